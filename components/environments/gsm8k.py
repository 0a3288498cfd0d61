"""GSM8K: grade-school word problems, a calculator or Python, and a number that is graded (arXiv:2110.14168)."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from components.environments.calculator import CALCULATOR
from components.environments.datasets import Fields, OnProblem, TaskFile, read_split
from components.environments.environment import Observation, ToolEnvironment
from components.environments.graders import MARK, grade_number, numbers_in
from components.environments.python_tool import PythonTool
from components.environments.rewards import Grade
from components.environments.rows import Hub
from components.environments.sandbox.limits import DEFAULT_ISOLATION, Isolation
from components.errors import ConfigError, Problem
from components.types import Message, Role, Task, ToolCall

ToolName = Literal["calculator", "python", "none"]
ADVICE: Mapping[ToolName, str] = {
    "calculator": "Work out every sum with the calculator. ",
    "python": "Work out every sum with Python code. ",
    "none": "",
}
_CALLS = {
    "calculator": ToolCall("calculator", {"expression": "6*14-20"}),
    "python": ToolCall("python", {"code": "6*14-20"}),
}


class Gsm8k(ToolEnvironment):
    """Word problems with a calculator or Python (`tool`). Reward 1 for the right number.

    `data` is a folder with train.jsonl and test.jsonl (or Parquet), local or gs://, or hub:openai/gsm8k#main.

    A model that solves none of them learns nothing from that alone. `format_weight` rewards a last line that is the
    mark and a number, `tool_weight` an episode with a call that worked; each is a named part of the reward.
    """

    def __init__(
        self,
        data: str,
        tool: ToolName = "calculator",
        worked_example: bool = True,
        instruction: str | None = None,
        format_weight: float = 0.0,
        tool_weight: float = 0.0,
        on_problem: OnProblem = "stop",
        hub_cache: str | None = None,
        offline: bool = False,
        isolation: Isolation = DEFAULT_ISOLATION,
    ) -> None:
        """`hub_cache` and `offline` are for data of the hub (rows.py); `isolation` is for the tool python."""
        if tool_weight and tool == "none":
            raise ConfigError(Problem("tool_weight", tool_weight, "has no effect without a tool"))
        self._weights = {"format": format_weight, "tool": tool_weight}
        self._worked_calls = 0
        self._data = data
        self._on_problem: OnProblem = on_problem
        self._hub = Hub(hub_cache, offline)
        self._python = PythonTool(isolation) if tool == "python" else None
        self.tools = (self._python.tool,) if self._python else (CALCULATOR,) if tool == "calculator" else ()
        self.system_prompt = instruction_with(tool) if instruction is None else instruction
        if worked_example:
            self.examples = worked_example_with(tool)

    @classmethod
    def runs_code_with(cls, options: Mapping[str, Any]) -> bool:
        """Only with the tool python."""
        return options.get("tool") == "python"

    def tasks(self, split: str) -> Iterable[Task]:
        """The rows of a split in their order. Raises DataError that names every unusable row and field."""
        return self.read(split).tasks

    def read(self, split: str) -> TaskFile:
        """As `tasks`, with the rows that were left out."""
        fields = Fields(prompt="question", answer="answer", gold=gold_answer)
        return read_split(self._data, split, fields, name=f"gsm8k-{split}-", on_problem=self._on_problem, hub=self._hub)

    async def step(self, message: Message) -> Observation:
        """Run the calls, or take the text as the answer."""
        observation = await super().step(message)
        self._worked_calls += observation.tool_use.calls - observation.tool_use.errors
        return observation

    async def reward(self) -> dict[str, float | Grade]:
        """The grade of the answer (0 where there is none), and the parts that have a weight."""
        answer = self.answer or ""
        earned = {"format": _ends_with_mark(answer), "tool": self._worked_calls > 0}
        parts = {name: weight * earned[name] for name, weight in self._weights.items() if weight}
        return {"answer": self.grade(self.task, answer), **parts}

    def grade(self, task: Task, answer: str) -> Grade:
        """1.0 for the right number, by the choices of graders.py."""
        return grade_number(answer, task.answer or "")

    async def close(self) -> None:
        """Remove the folder of the episode's Python code."""
        if self._python is not None:
            await self._python.close()

    def solution(self, task: Task) -> Sequence[Message]:
        """The gold solution with its sums as calls of the tool, and its text with the mark at the end."""
        text = str(task.data.get("answer", ""))
        calls: list[Message] = []
        if self.tools:
            name, argument = self.tools[0].name, "code" if self._python else "expression"
            calls = [
                Message(Role.ASSISTANT, "", tool_calls=(ToolCall(name, {argument: expression}),))
                for expression, _ in calculator_demonstrations(task)
            ]
        return (*calls, Message(Role.ASSISTANT, re.sub(r"<<[^>]*>>", "", text)))


def instruction_with(tool: ToolName) -> str:
    """What the policy is told to do, with a tool or without."""
    return (
        f"Solve the problem step by step. {ADVICE[tool]}"
        f"End with the answer on a line of its own: {MARK} and then the number alone."
    )


def worked_example_with(tool: ToolName) -> tuple[Message, ...]:
    """A problem and its solution, by a call where there is a tool."""
    called: tuple[Message, ...] = ()
    if tool != "none":
        called = (Message(Role.ASSISTANT, "", tool_calls=(_CALLS[tool],)), Message(Role.TOOL, "64", name=tool))
    return (
        Message(Role.USER, "A baker fills 6 trays with 14 rolls each and sells 20 rolls. How many rolls are left?"),
        *called,
        Message(Role.ASSISTANT, f"6 trays of 14 rolls, less the 20 that are sold, leave 64 rolls.\n{MARK} 64"),
    )


def _ends_with_mark(answer: str) -> bool:
    last = answer.strip().rpartition("\n")[2]
    return last.startswith(MARK) and len(numbers_in(last)) == 1


def gold_answer(solution: str) -> str:
    """What stands behind the last #### of a solution. Raises ValueError when that is not exactly one number."""
    _, mark, gold = solution.rpartition(MARK)
    if not mark:
        raise ValueError(f"the solution has no {MARK} before its answer")
    if len(numbers_in(gold)) != 1:
        raise ValueError(f"{gold.strip()!r} behind {MARK} is not exactly one number")
    return gold.strip()


def calculator_demonstrations(task: Task) -> list[tuple[str, str]]:
    """The (expression, result) pairs that a solution's <<48/2=24>> notes hold, in order."""
    solution: Any = task.data.get("answer", "")
    notes = [part.split(">>", 1)[0] for part in str(solution).split("<<")[1:] if ">>" in part]
    return [(expression, result) for expression, equals, result in (note.rpartition("=") for note in notes) if equals]

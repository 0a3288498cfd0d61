"""Sums that are too hard to do in the head, and a calculator: the smallest thing worth learning a tool for."""

import random
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

from components.environments.calculator import CALCULATOR
from components.environments.environment import Observation, ToolEnvironment
from components.environments.graders import grade_number
from components.environments.rewards import Grade
from components.errors import ConfigError, Problem
from components.types import Message, Role, Task, ToolCall

OPERATORS = {"+": int.__add__, "-": int.__sub__, "*": int.__mul__}
# Fixed, so that every recipe shows the same ones; they are never drawn as tasks.
_EXAMPLE_OPERANDS = ((12, 30), (86, 19), (7, 45), (250, 4))


class Arithmetic(ToolEnvironment):
    """Problems a op b, with a and b from `low` to `high`. The reward is 1 for the right number, else 0.

    answer "tool": the result of the first call is the answer and ends the episode; so does a call that fails, and a
    text without a call, whose number is the answer. answer "text": results are fed back and the final text is graded.
    Train and test are disjoint, both are functions of the seed, and `test_tasks` come first, so that the number of
    train tasks does not change them.
    """

    tools = (CALCULATOR,)

    def __init__(
        self,
        low: int = 2,
        high: int = 998,
        operators: Sequence[str] = ("+", "-", "*"),
        train_tasks: int = 1000,
        test_tasks: int = 200,
        worked_examples: int = 2,
        answer: Literal["tool", "text"] = "tool",
        instruction: str = "",
        seed: int = 0,
    ) -> None:
        self._low, self._high, self._operators = low, high, tuple(operators)
        self._size = high - low + 1
        self._counts = {"test": test_tasks, "train": train_tasks}
        self._seed = seed
        self._ends_with_tool = answer == "tool"
        self.system_prompt = instruction or None
        self._check(worked_examples)
        shown = [(a, self._operators[i % len(self._operators)], b) for i, (a, b) in enumerate(_EXAMPLE_OPERANDS)]
        self._shown = shown[:worked_examples]
        self.examples = tuple(message for problem in self._shown for message in self._worked(*problem))

    @property
    def characters(self) -> str:
        """Every character of prompts, calls and results: the rest of a character tokenizer's alphabet."""
        return "".join(sorted({*"0123456789-", *self._operators}))

    def tasks(self, split: str) -> Iterable[Task]:
        """The problems of "train" or "test"."""
        if split not in self._counts:
            raise ConfigError(Problem("split", split, 'must be "train" or "test"'))
        problems = self._problems()
        tests = [_task(*next(problems)) for _ in range(self._counts["test"])]
        return tests if split == "test" else [_task(*next(problems)) for _ in range(self._counts["train"])]

    def demonstration(self, task: Task, *, with_tool: bool) -> Message:
        """What a good policy writes: the call, or the answer itself. For supervised tuning."""
        if not with_tool:
            return Message(Role.ASSISTANT, task.answer or "")
        return Message(Role.ASSISTANT, "", tool_calls=(ToolCall("calculator", {"expression": task.prompt}),))

    def solution(self, task: Task) -> Sequence[Message]:
        """The call, and the answer where the episode goes on after it."""
        call = self.demonstration(task, with_tool=True)
        return (call,) if self._ends_with_tool else (call, self.demonstration(task, with_tool=False))

    async def step(self, message: Message) -> Observation:
        """Run the calls; with answer "tool" that is the end."""
        observation = await super().step(message)
        if observation.done or not self._ends_with_tool:
            return observation
        if message.tool_calls and not observation.tool_use.errors:
            self.answer = observation.messages[0].content
        return Observation(observation.messages, done=True, tool_use=observation.tool_use)

    def grade(self, task: Task, answer: str) -> Grade:
        """1.0 for the right number, by the choices of graders.py."""
        return grade_number(answer, task.answer or "")

    def _problems(self) -> Iterator[tuple[int, str, int]]:
        """All problems but the shown ones, each once, in an order that the seed gives."""
        draw = random.Random(self._seed)
        seen = set(self._shown)
        while True:
            a, rest = divmod(draw.randrange(self._size**2 * len(self._operators)), self._size * len(self._operators))
            b, which = divmod(rest, len(self._operators))
            problem = (self._low + a, self._operators[which], self._low + b)
            if problem not in seen:
                seen.add(problem)
                yield problem

    def _worked(self, a: int, operator: str, b: int) -> list[Message]:
        task = _task(a, operator, b)
        answer = Message(Role.ASSISTANT, task.answer or "")
        messages = [Message(Role.USER, task.prompt), self.demonstration(task, with_tool=True)]
        return messages if self._ends_with_tool else [*messages, Message(Role.TOOL, answer.content), answer]

    def _check(self, worked_examples: int) -> None:
        problems = []
        unknown = [operator for operator in self._operators if operator not in OPERATORS]
        if unknown or not self._operators or len(set(self._operators)) != len(self._operators):
            problems.append(Problem("operators", self._operators, f"must be some of {' '.join(OPERATORS)}, each once"))
        if not 0 <= self._low <= self._high:
            problems.append(Problem("low", self._low, f"must be from 0 to high, which is {self._high}"))
        if not 0 <= worked_examples <= len(_EXAMPLE_OPERANDS):
            problems.append(Problem("worked_examples", worked_examples, f"must be from 0 to {len(_EXAMPLE_OPERANDS)}"))
        if min(self._counts.values()) < 1:
            problems.append(Problem("train_tasks, test_tasks", self._counts, "must be 1 or more"))
        # The shown problems may lie among them.
        room = self._size**2 * len(self._operators) - len(_EXAMPLE_OPERANDS)
        if not problems and sum(self._counts.values()) > room:
            problems.append(
                Problem("train_tasks, test_tasks", self._counts, f"there are {max(room, 0)} problems in all")
            )
        if problems:
            raise ConfigError(problems)


def _task(a: int, operator: str, b: int) -> Task:
    prompt = f"{a}{operator}{b}"
    return Task(id=prompt, prompt=prompt, answer=str(OPERATORS[operator](a, b)))

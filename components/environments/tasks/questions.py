"""Any data set of questions and answers as an environment: name the fields, and who grades."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from components.config import load
from components.environments.datasets import Fields, OnProblem, TaskFile, read_split
from components.environments.environment import ToolEnvironment
from components.environments.graders import grade_exact, grade_number, numbers_in
from components.environments.judge import JudgeConfig, shared_judge
from components.environments.latex import grade_latex
from components.environments.rewards import Grade
from components.environments.rows import Hub
from components.environments.sandbox.limits import DEFAULT_ISOLATION, Isolation
from components.environments.tasks.splits import check_split
from components.environments.unit_tests import UnitTests
from components.errors import ConfigError, Problem
from components.types import Message, Role, Task

Grader = Literal["number", "exact", "loose", "latex", "unit_tests", "judge"]
_CODE = re.compile(r"```(?:python|py)?[ \t]*\n(.*?)```", flags=re.DOTALL | re.IGNORECASE)


class Questions(ToolEnvironment):
    """Any data set of questions and answers; graded as number, text, LaTeX, by unit tests, or by a judge model.

    `data` is a file, a folder with a file for each split, local or gs://, or hub:OWNER/NAME (rows.py). `grader`:

        number       the number that counts, as for GSM8K (graders.py)
        exact        the text itself; `loose` forgives case, punctuation and articles
        latex        the last boxed formula, compared as mathematics (latex.py)
        unit_tests   the answer field holds asserts, a line each; the last code block is run against them in the sandbox
        judge        a rubric and a model behind an API: `judge: {endpoint, model, rubric, ...}` (judge.py)
    """

    def __init__(
        self,
        data: str,
        grader: Grader,
        prompt_field: str = "question",
        answer_field: str = "answer",
        id_field: str | None = None,
        instruction: str = "",
        judge: Mapping[str, Any] | None = None,
        on_problem: OnProblem = "stop",
        hub_cache: str | None = None,
        offline: bool = False,
        isolation: Isolation = DEFAULT_ISOLATION,
    ) -> None:
        if (judge is not None) != (grader == "judge"):
            message = "is needed by the grader judge, and has no effect on any other"
            raise ConfigError(Problem("judge", judge, message))
        self._data, self._grader = data, grader
        self._fields = Fields(prompt_field, answer_field, id_field, gold=_one_number if grader == "number" else str)
        self._on_problem: OnProblem = on_problem
        self._hub = Hub(hub_cache, offline)
        self._judge = shared_judge(load(JudgeConfig, judge, where="judge")) if judge is not None else None
        self._tests = UnitTests(isolation) if grader == "unit_tests" else None
        self.system_prompt = instruction or None

    @classmethod
    def runs_code_with(cls, options: Mapping[str, Any]) -> bool:
        """Only where unit tests grade."""
        return options.get("grader") == "unit_tests"

    def tasks(self, split: str) -> Iterable[Task]:
        """The rows of a split in their order. Raises DataError that names every unusable row and field."""
        return self.read(split).tasks

    def read(self, split: str) -> TaskFile:
        """As `tasks`, with the rows that were left out."""
        check_split(split)
        return read_split(self._data, split, self._fields, name=f"{split}-", on_problem=self._on_problem, hub=self._hub)

    async def grade(self, task: Task, answer: str) -> Grade:
        """The grade of an answer, by the grader that was chosen."""
        gold = task.answer or ""
        if self._judge is not None:
            return await self._judge.grade(task.prompt, answer, gold)
        if self._tests is not None:
            blocks = _CODE.findall(answer)
            tests = [line for line in gold.splitlines() if line.strip()]
            return await self._tests.grade_asserts(blocks[-1] if blocks else answer, tests)
        if self._grader == "latex":
            return await grade_latex(answer, gold)
        if self._grader == "number":
            return grade_number(answer, gold)
        return grade_exact(answer, gold, loose=self._grader == "loose")

    def solution(self, task: Task) -> Sequence[Message]:
        """The gold answer, in a box where mathematics is graded."""
        gold = task.answer or ""
        return (Message(Role.ASSISTANT, f"\\boxed{{{gold}}}" if self._grader == "latex" else gold),)


def _one_number(text: str) -> str:
    if len(numbers_in(text)) != 1:
        raise ValueError(f"{text.strip()[:100]!r} is not exactly one number")
    return text

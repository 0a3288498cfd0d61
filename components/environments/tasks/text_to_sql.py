"""Questions about a database, answered by a query whose result is compared with that of the right one."""

import functools
import random
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from components.environments.environment import ToolEnvironment
from components.environments.rewards import Grade
from components.environments.sql import Database, Rows, sql_tool
from components.environments.tasks.made_files import made_file
from components.environments.tasks.shop import asked, write_shop
from components.environments.tasks.splits import check_counts, check_split
from components.environments.tools import ToolError
from components.errors import ConfigError, GraderFailedError, Problem
from components.types import Message, Role, Task, ToolCall

INSTRUCTION = (
    "Answer the question with one SQLite query. Try queries with the tool if you like, and end with the query alone. "
    "The database:\n"
)
_FENCED = re.compile(r"```(?:sql|sqlite)?[ \t]*\n(.*?)```", flags=re.DOTALL | re.IGNORECASE)
_ORDERED = re.compile(r"\border\s+by\b", flags=re.IGNORECASE)


class TextToSql(ToolEnvironment):
    """Write the SQL that answers a question about a shop's database of four tables. Reward 1 for the right result.

    Results are equal when they hold the same rows, in the same order where the right query asks for one. Names of
    columns do not matter, their order does; numbers are equal within a millionth.
    """

    def __init__(
        self,
        tool: bool = True,
        train_tasks: int = 250,
        test_tasks: int = 60,
        instruction: str = INSTRUCTION,
        worked_example: bool = True,
        seed: int = 0,
    ) -> None:
        """`tool` lets the policy try queries; the schema stands behind `instruction`; `seed` makes the data, too."""
        problems = check_counts(train_tasks, test_tasks)
        if not problems and train_tasks + test_tasks >= (room := len(_shuffled(seed))):
            message = f"there are {room - 1} questions beside the worked example's"
            problems.append(Problem("train_tasks, test_tasks", (train_tasks, test_tasks), message))
        if problems:
            raise ConfigError(problems)
        self._train, self._test, self._seed = train_tasks, test_tasks, seed
        path = made_file(f"shop-{seed}.sqlite3", functools.partial(write_shop, seed=seed))
        self.tools = (sql_tool(_database(path)),) if tool else ()
        self._compared = _database(path, max_rows=1000, max_characters=200_000)
        self.system_prompt = instruction + self._compared.schema()
        if worked_example:
            task = _shuffled(seed)[0]
            self.examples = (Message(Role.USER, task.prompt), Message(Role.ASSISTANT, f"```sql\n{task.answer}\n```"))

    def tasks(self, split: str) -> Iterable[Task]:
        """The questions of "train" or "test": a function of the options."""
        check_split(split)
        ordered = _shuffled(self._seed)[1:]
        return ordered[: self._test] if split == "test" else ordered[self._test : self._test + self._train]

    def grade(self, task: Task, answer: str) -> Grade:
        """1.0 for a query with the right result; its last code block is the answer, or all of the text."""
        blocks = _FENCED.findall(answer[-20_000:])
        sql = (blocks[-1] if blocks else answer).strip()
        try:
            expected = self._compared.query(task.answer or "")
        except ToolError as error:
            raise GraderFailedError(f"the right query of task {task.id} fails: {error}") from error
        try:
            found = self._compared.query(sql)
        except ToolError as error:
            return Grade(0.0, f"the query fails: {error}")
        return grade_rows(found, expected, ordered=_ORDERED.search(task.answer or "") is not None)

    def solution(self, task: Task) -> Sequence[Message]:
        """The right query, tried where there is a tool."""
        answer = Message(Role.ASSISTANT, f"```sql\n{task.answer}\n```")
        call = ToolCall("sql", {"query": task.answer})
        return (Message(Role.ASSISTANT, "", tool_calls=(call,)), answer) if self.tools else (answer,)


def grade_rows(found: Rows, expected: Rows, *, ordered: bool) -> Grade:
    """1.0 for the same rows, in the same order where `ordered`."""
    if len(found.columns) != len(expected.columns):
        return Grade(0.0, f"the result has {len(found.columns)} columns, {len(expected.columns)} are right")
    if len(found.rows) != len(expected.rows) or not found.complete:
        return Grade(0.0, f"the result has {len(found.rows)} rows, {len(expected.rows)} are right")
    mine, right = ([tuple(map(_plain, row)) for row in each.rows] for each in (found, expected))
    if mine == right or (not ordered and Counter(mine) == Counter(right)):
        return Grade(1.0, f"the result is right, {len(right)} rows")
    if Counter(mine) == Counter(right):
        return Grade(0.0, "the rows are right, but not their order")
    wrong = next(iter((Counter(mine) - Counter(right)).keys()))
    return Grade(0.0, f"the result holds {str(wrong)[:200]}, which is not right")


def _plain(value: Any) -> Any:
    """A number up to what rounding leaves; 3 and 3.0 are equal, and so are their hashes."""
    return float(f"{value:.7g}") if isinstance(value, float) else value


@functools.cache
def _database(path: Path, max_rows: int = 50, max_characters: int = 8000) -> Database:
    return Database(path, max_rows=max_rows, max_characters=max_characters)


@functools.cache
def _shuffled(seed: int) -> list[Task]:
    """All questions in the order in which splits take them; the first is the worked example's."""
    tasks = [Task(f"shop {each.question}", each.question, each.sql) for each in asked()]
    random.Random(seed).shuffle(tasks)
    return tasks

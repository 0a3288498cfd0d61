"""A data set -> tasks, and a list of every row that is none.

A row that lacks its prompt or its answer is never filled in: its grade would be 0 for ever.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

from components.environments.rows import Hub, read_rows, split_files
from components.environments.sizes import encodable
from components.errors import DataError, Problem
from components.types import Task

OnProblem = Literal["stop", "skip"]


@dataclass(frozen=True, slots=True)
class TaskFile:
    """What a file held. `problems` are the rows that were left out, by line and field."""

    tasks: tuple[Task, ...]
    problems: tuple[Problem, ...] = ()


@runtime_checkable
class ReadsTasks(Protocol):
    """An environment that can say which rows it left out."""

    def read(self, split: str) -> TaskFile:
        """The tasks of a split, and the rows of it that are none."""
        ...


@dataclass(frozen=True, slots=True)
class Fields:
    """The names of a row's fields. Without `id`, a task is named by its line. The rest of a row becomes Task.data.

    `gold` makes the answer that is graded out of the answer's text; its ValueError says why a row cannot be used.
    """

    prompt: str
    answer: str
    id: str | None = None
    gold: Callable[[str], str] = str


def read_tasks(uri: str, fields: Fields, *, name: str = "", on_problem: OnProblem = "stop") -> TaskFile:
    """The tasks of a file, in its order. `name` is put before the line number where rows have no id of their own.

    Numbers in a field are taken as their text. Raises DataError: with "stop" for any problem, listing all of them;
    with "skip" only when no task is left.
    """
    return _tasks([uri], fields, name, on_problem)


def read_split(
    source: str,
    split: str,
    fields: Fields,
    *,
    name: str = "",
    on_problem: OnProblem = "stop",
    hub: Hub = Hub(),  # noqa: B008
) -> TaskFile:
    """The tasks of a split of a data set, which may be of several files; see rows.py. Raises as `read_tasks` does."""
    return _tasks(split_files(source, split, hub=hub), fields, name, on_problem)


def _tasks(files: list[str], fields: Fields, name: str, on_problem: OnProblem) -> TaskFile:
    tasks: dict[str, Task] = {}
    problems: list[Problem] = []
    for part, uri in enumerate(files):
        unnamed = f"{name}{part}-" if len(files) > 1 else name
        for where, row in read_rows(uri, problems):
            try:
                task = _task(row, fields, f"{unnamed}{where.rpartition(':')[2]}", where)
                if task.id in tasks:
                    raise DataError(Problem(f"{where}: {fields.id}", task.id, "an earlier row has this id"))
                tasks[task.id] = task
            except DataError as error:
                problems += error.problems
    if problems and (on_problem == "stop" or not tasks):
        raise DataError(problems)
    if not tasks:
        raise DataError(Problem(", ".join(files), "", "the file has no rows"))
    return TaskFile(tuple(tasks.values()), tuple(problems))


def _task(row: Mapping[str, Any], fields: Fields, unnamed: str, where: str) -> Task:
    wanted = [field for field in (fields.id, fields.prompt, fields.answer) if field is not None]
    texts, problems = _texts(row, wanted, where)
    if fields.answer in texts:
        try:
            texts["gold"] = fields.gold(texts[fields.answer])
        except ValueError as error:
            problems.append(Problem(f"{where}: {fields.answer}", texts[fields.answer], str(error)))
    if problems:
        raise DataError(problems)
    rest = {key: value for key, value in row.items() if key not in (fields.id, fields.prompt)}
    return Task(texts[fields.id] if fields.id else unnamed, texts[fields.prompt], texts["gold"], rest)


def _texts(row: Mapping[str, Any], wanted: list[str], where: str) -> tuple[dict[str, str], list[Problem]]:
    """The wanted fields as text, and a problem for each that has none."""
    texts: dict[str, str] = {}
    problems: list[Problem] = []
    for field in wanted:
        value = row.get(field)
        usable = isinstance(value, (str, int, float)) and not isinstance(value, bool)
        if isinstance(value, float) and not math.isfinite(value):
            usable = False
        if field not in row:
            problems.append(Problem(f"{where}: {field}", sorted(row), "the row has other fields, but not this one"))
        elif not usable or not str(value).strip():
            problems.append(Problem(f"{where}: {field}", value, "must be a text or a number, and not empty"))
        elif isinstance(value, str) and value != encodable(value):
            problems.append(Problem(f"{where}: {field}", value, "holds a lone surrogate, which is no character"))
        else:
            texts[field] = str(value)
    return texts, problems

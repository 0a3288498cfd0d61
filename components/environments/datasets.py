"""A JSONL file, local or gs://, -> tasks, and a list of every row that is none.

A row that lacks its prompt or its answer is never filled in: its grade would be 0 for ever.
"""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from components import storage
from components.errors import DataError, Problem
from components.types import Task

OnProblem = Literal["stop", "skip"]


@dataclass(frozen=True, slots=True)
class TaskFile:
    """What a file held. `problems` are the rows that were left out, by line and field."""

    tasks: tuple[Task, ...]
    problems: tuple[Problem, ...] = ()


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
    tasks: dict[str, Task] = {}
    problems: list[Problem] = []
    # Not splitlines: a JSON text may hold U+2028, which is no end of a line.
    for number, line in enumerate(_read_text(uri).split("\n"), start=1):
        if not line.strip():
            continue
        try:
            task = _task(line, fields, f"{name}{number}", f"{uri}:{number}")
            if task.id in tasks:
                raise DataError(Problem(f"{uri}:{number}: {fields.id}", task.id, "an earlier row has this id"))
            tasks[task.id] = task
        except DataError as error:
            problems += error.problems
    if problems and (on_problem == "stop" or not tasks):
        raise DataError(problems)
    if not tasks:
        raise DataError(Problem(uri, "", "the file has no rows"))
    return TaskFile(tuple(tasks.values()), tuple(problems))


def _read_text(uri: str) -> str:
    if not storage.exists(uri):
        raise DataError(Problem(uri, uri, "there is no such file"))
    try:
        return storage.read_bytes(uri).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(
            Problem(uri, error.object[error.start : error.end], f"not UTF-8 at byte {error.start}")
        ) from error


def _task(line: str, fields: Fields, unnamed: str, where: str) -> Task:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DataError(Problem(where, line, f"not JSON: {error}")) from None
    if not isinstance(row, dict):
        raise DataError(Problem(where, row, "a row must be a JSON object"))
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
        else:
            texts[field] = str(value)
    return texts, problems

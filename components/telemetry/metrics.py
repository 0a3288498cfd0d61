"""Numbers of each step -> one line of JSON each, readable after a crash and after a resume.

A line is an object with its `step`. JSON has no NaN and no infinity: such a number is written as null, and its key is
listed under `not_finite`. After a resume a line `{"resumed_after": 5}` takes back every earlier line of a later step.
"""

import json
import math
from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

from components import storage
from components.errors import DataError, Problem

_NOT_FINITE = "not_finite"
_RESUMED = "resumed_after"


@runtime_checkable
class _ArrayLike(Protocol):
    """A scalar or array of numpy, jax or torch."""

    def __float__(self) -> float:
        """The number that a scalar holds."""
        ...

    def tolist(self) -> Any:
        """Plain numbers, in nested lists where there are dimensions."""
        ...


class MetricsLog:
    """Appends steps to a log on a local path or gs:// URI; a step is on the storage when `write` returns.

    `resumed_after` is the last step that a resumed run keeps: lines of later steps are superseded.
    """

    def __init__(self, uri: str, *, resumed_after: int | None = None) -> None:
        self._log = storage.LineLog(uri)
        if resumed_after is not None:
            self._append({_RESUMED: resumed_after})

    def write(self, step: int, values: Mapping[str, Any]) -> None:
        """Append one step. Values are numbers, texts, None, arrays of any library, or lists and mappings of them.

        Raises TypeError naming the key for anything else.
        """
        not_finite: list[str] = []
        line = {"step": step} | {key: plain(value, key, not_finite) for key, value in values.items()}
        self._append(line | ({_NOT_FINITE: not_finite} if not_finite else {}))

    def _append(self, line: Mapping[str, Any]) -> None:
        self._log.append(json.dumps(line, allow_nan=False))
        self._log.sync()


def read_metrics(uri: str) -> list[dict[str, Any]]:
    """The last line of each step, by step; an empty list where there is no log. A line cut by a crash does not count.

    Raises DataError for a whole line that is no JSON object with a step.
    """
    by_step: dict[int, dict[str, Any]] = {}
    for number, text in enumerate(storage.read_lines(uri), start=1):
        line = _parsed(text, f"{uri}:{number}")
        if _RESUMED in line:
            by_step = {step: kept for step, kept in by_step.items() if step <= line[_RESUMED]}
        else:
            by_step[line["step"]] = line
    return [by_step[step] for step in sorted(by_step)]


def plain(value: Any, where: str, not_finite: list[str]) -> Any:
    """A value as JSON holds it. Numbers that are not finite become None, and their key is added to `not_finite`."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        if math.isfinite(value):
            return float(value)
        not_finite.append(where)
        return None
    if isinstance(value, Mapping):
        return {str(key): plain(each, f"{where}.{key}", not_finite) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each, f"{where}.{index}", not_finite) for index, each in enumerate(value)]
    if isinstance(value, _ArrayLike):
        numbers = value.tolist()
        # A bfloat16 scalar lists itself as itself.
        return plain(float(numbers) if isinstance(numbers, _ArrayLike) else numbers, where, not_finite)
    raise TypeError(f"metric {where}: {type(value).__name__} is no number, text, list or mapping; convert it first")


def _parsed(text: str, where: str) -> dict[str, Any]:
    try:
        line = json.loads(text)
    except json.JSONDecodeError:
        line = None
    if not isinstance(line, dict) or not ("step" in line or _RESUMED in line):
        raise DataError(
            Problem(where=where, value=text, message="is no JSON object with a step; remove the line to go on")
        )
    return line

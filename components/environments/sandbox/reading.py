"""What comes out of an execution's pipes, and how it ended -> its record."""

import contextlib
import json
import os
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from components.environments.sandbox.limits import Execution, Limits, Outcome

_PART = 65536


@dataclass(frozen=True, slots=True)
class Ended:
    """An execution, and what the driver reported: the code's own word."""

    execution: Execution
    report: Mapping[str, Any]


class Stream:
    """What comes out of a pipe, up to a number of bytes. `over` when there was more."""

    def __init__(self, descriptor: int, most: int) -> None:
        self.descriptor, self._most = descriptor, most
        self._parts: list[bytes] = []
        self._size = 0
        self.over = False
        os.set_blocking(descriptor, False)

    def read(self) -> bool:
        """Take what is there; false at the end."""
        try:
            part = os.read(self.descriptor, _PART)
        except BlockingIOError:
            return True
        kept = part[: self._most - self._size]
        self._parts.append(kept)
        self._size += len(kept)
        self.over = self.over or len(part) > len(kept)
        return bool(part)

    def drain(self) -> None:
        """Take the rest of what is there."""
        with contextlib.suppress(BlockingIOError):
            while not self.over and (part := os.read(self.descriptor, _PART)):
                kept = part[: self._most - self._size]
                self._parts.append(kept)
                self._size += len(kept)
                self.over = len(part) > len(kept)

    def text(self) -> str:
        """As text; what is no UTF-8 is replaced."""
        return b"".join(self._parts).decode("utf-8", errors="replace")


def ended(answer: Mapping[str, Any], streams: Sequence[Stream], limits: Limits, seconds: float) -> Ended:
    """The record of an execution. `answer` is the template's: late, status (as of os.wait) and cpu_seconds.

    `streams` are stdout, stderr and report.
    """
    stdout, stderr, said = streams
    report = _report(said.text())
    outcome, error, exit_code = _outcome(answer, report, limits, over=stdout.over or stderr.over or said.over)
    execution = Execution(
        outcome=outcome,
        stdout=stdout.text(),
        stderr=stderr.text(),
        value=_text(report.get("value")),
        error=error,
        exit_code=exit_code,
        seconds=seconds,
        cpu_seconds=float(answer.get("cpu_seconds", 0.0)),
        peak_megabytes=float(answer.get("peak_megabytes", 0.0)),
    )
    return Ended(execution, report)


def _outcome(
    answer: Mapping[str, Any], report: Mapping[str, Any], limits: Limits, *, over: bool
) -> tuple[Outcome, str | None, int | None]:
    if over:
        return Outcome.OUTPUT, f"wrote more than {limits.output_bytes} bytes", None
    if answer["late"]:
        return Outcome.TIME, f"took longer than {limits.seconds:g} seconds", None
    status = answer.get("status")
    if status is None or os.WIFSIGNALED(status):
        number = signal.SIGKILL if status is None else os.WTERMSIG(status)
        if number == signal.SIGXCPU:
            return Outcome.TIME, f"used more than {limits.cpu_seconds} seconds of processor time", None
        return Outcome.KILLED, f"was ended by {_name(number)}", None
    error = _text(report.get("error"))
    return Outcome.FINISHED if error is None else Outcome.RAISED, error, os.WEXITSTATUS(status)


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _report(text: str) -> dict[str, Any]:
    """The driver's report, or nothing: the code can write there whatever it likes."""
    try:
        report = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return report if isinstance(report, dict) else {}


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None

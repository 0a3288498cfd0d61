"""A run that is told to end -> its steps, which are processes below this one, are told too, and are waited for."""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

_LOOK_SECONDS = 0.1


@contextlib.contextmanager
def ended_together(patience: float) -> Iterator[None]:
    """For a block, SIGTERM raises KeyboardInterrupt as Ctrl-C does, and either ends the processes below this one.

    They get SIGTERM and `patience` seconds to save what they have, then SIGKILL. (Where there is no /proc they are not
    found; the train step sees by itself that its launcher is gone.)
    """
    is_main = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGTERM, _interrupt) if is_main else None
    try:
        yield
    except KeyboardInterrupt:
        end_processes(_below(os.getpid()), patience)
        raise
    finally:
        if is_main:
            signal.signal(signal.SIGTERM, before)


def end_processes(numbers: list[int], patience: float) -> None:
    """SIGTERM, and SIGKILL for those that are still there after `patience` seconds."""
    _send(numbers, signal.SIGTERM)
    deadline = time.monotonic() + patience
    while (left := [each for each in numbers if _is_alive(each)]) and time.monotonic() < deadline:
        time.sleep(_LOOK_SECONDS)
    _send(left, signal.SIGKILL)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _send(numbers: list[int], sent: signal.Signals) -> None:
    for number in numbers:
        with contextlib.suppress(ProcessLookupError):
            os.kill(number, sent)


def _below(number: int) -> list[int]:
    """The processes that a process has started, and those that they have."""
    found: list[int] = []
    for children in Path(f"/proc/{number}/task").glob("*/children"):
        # A thread may end between the listing and the reading.
        with contextlib.suppress(OSError):
            found += [int(each) for each in children.read_text().split()]
    return found + [below for each in found for below in _below(each)]


def _is_alive(number: int) -> bool:
    """A process that has ended but was not waited for does not count."""
    try:
        state = Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in ("Z", "X")

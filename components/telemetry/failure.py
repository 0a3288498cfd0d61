"""A step of a run that fails -> what it failed of, in the run's summary: for its report, and for who comes later.

@notes_failure("export")
def export(*, run_folder: str, ...): ...
"""

import contextlib
import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from components import storage
from components.telemetry.run_files import FAILURE, SUMMARY, failure_of, read_run, update_summary

P = ParamSpec("P")
T = TypeVar("T")


def note_failure(folder: str, step: str, message: str) -> None:
    """Write down that a run has failed, in this step (or nowhere: "")."""
    update_summary(folder, {FAILURE: {"step": step, "message": message}})


def forget_failure(folder: str) -> None:
    """The run goes on: what it failed of before is no longer so."""
    if storage.exists(storage.join(folder, SUMMARY)) and failure_of(read_run(folder, trajectories=False).summary):
        update_summary(folder, {}, drop=(FAILURE,))


def notes_failure(step: str) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """For a function with a keyword `run_folder`: what it raises is noted there, and raised all the same."""

    def decorate(work: Callable[P, T]) -> Callable[P, T]:
        @functools.wraps(work)
        def noting(*arguments: P.args, **keywords: P.kwargs) -> T:
            folder = str(keywords["run_folder"])
            forget_failure(folder)
            with _Noting(folder, step):
                return work(*arguments, **keywords)

        return noting

    return decorate


class _Noting:
    """Notes what the block raises."""

    def __init__(self, folder: str, step: str) -> None:
        self._folder, self._step = folder, step

    def __enter__(self) -> None:
        """Nothing to do yet."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Exception):
            # A storage that is away may be the failure; it must not hide it.
            with contextlib.suppress(OSError):
                # What is refused before anything runs leaves no folder behind.
                if storage.exists(self._folder):
                    note_failure(self._folder, self._step, f"{type(error).__name__}: {error}")

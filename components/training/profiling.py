"""Some optimizer steps -> a device timeline in `RUN/profile/`, for XProf, TensorBoard or Perfetto.

While it is taken every span is an annotation of the timeline, too, by the same name and with the same step: what the
device did lies below what the loop was doing.
"""

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import jax

from components import storage
from components.errors import ConfigError, Problem
from components.telemetry.progress import say
from components.telemetry.spans import annotate_with

FOLDER = "profile"


@dataclass(frozen=True, slots=True)
class StepRange:
    """Optimizer steps `first` to `last`, both of them in it."""

    first: int
    last: int

    @classmethod
    def parse(cls, text: str, where: str) -> "StepRange":
        """`10:12` -> steps 10, 11 and 12. Raises ConfigError naming `where`."""
        first, colon, last = text.partition(":")
        if not colon or not first.isdecimal() or not last.isdecimal() or not 1 <= int(first) <= int(last):
            raise ConfigError(Problem(where, text, "write it as FIRST:LAST, for example 10:12, counted from 1"))
        return cls(int(first), int(last))


class Profiler:
    """Starts before the first of the steps and writes after the last, or when it is closed."""

    def __init__(self, run_folder: str, steps: StepRange | None) -> None:
        self._folder = storage.join(run_folder, FOLDER)
        self._steps = steps
        self._running = ExitStack()

    def before(self, step: int) -> None:
        """Optimizer step `step` begins."""
        if self._steps is not None and step == self._steps.first:
            self._running.enter_context(profiled(self._folder))

    def after(self, step: int) -> None:
        """Optimizer step `step` has ended."""
        if self._steps is not None and step == self._steps.last:
            self.close()

    def close(self) -> None:
        """Write what was taken."""
        self._running.close()


@contextmanager
def profiled(folder: str) -> Iterator[None]:
    """Take a timeline of the block and write it below `folder`, on a disk or on gs://."""
    with tempfile.TemporaryDirectory() as scratch:
        local = Path(scratch) if storage.is_remote(folder) else Path(folder)
        local.mkdir(parents=True, exist_ok=True)
        jax.profiler.start_trace(str(local))
        try:
            with annotate_with(jax.profiler.TraceAnnotation):
                yield
        finally:
            jax.profiler.stop_trace()
            if storage.is_remote(folder):
                for file in (each for each in local.rglob("*") if each.is_file()):
                    storage.upload(file, storage.join(folder, *file.relative_to(local).parts))
            say(f"the device's timeline is in {folder}")

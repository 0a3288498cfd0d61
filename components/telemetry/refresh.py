"""A run that goes on -> its report, made anew now and then by a process of its own, so that the run never waits for it.

The process has the lowest priority, and starts so seldom that it works for at most a hundredth of the time.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import IO

from components.telemetry.progress import say

EVERY_SECONDS = 30.0
SHARE = 0.01
"""The least time between two reports, and the share of the time that one may be in the making."""

_LOWEST = 19  # of the priorities of Unix


class Refresher:
    """Starts one report at a time for the run in `folder`. Used by one thread; `close` may be called on another.

    `command` and `clock` are replaced in tests.
    """

    def __init__(
        self,
        folder: str,
        *,
        every: float = EVERY_SECONDS,
        command: Sequence[str] = (sys.executable, "-m", "components.telemetry.refresh"),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._command = [*command, folder]
        self._every = every
        self._clock = clock
        self._process: subprocess.Popen[bytes] | None = None
        self._errors: IO[bytes] | None = None
        self._started = clock()
        self._next = self._started + every
        self._told = False

    def step(self) -> None:
        """Something new is on the storage. Does not wait: what is due is started, what has ended is looked at."""
        self._look()
        if self._process is None and self._clock() >= self._next:
            self._started = self._clock()
            self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (closed when the process has ended)
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=self._errors
            )

    def close(self) -> None:
        """End a report that is in the making: what comes after the run makes a newer one, which it would replace."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._forget()

    def _look(self) -> None:
        if self._process is None or (code := self._process.poll()) is None:
            return
        took = self._clock() - self._started
        self._next = self._clock() + max(self._every, took / SHARE)
        if code and not self._told:
            self._told = True
            say(f"the report was not made anew; the run goes on without it: {self._last_words()}")
        self._forget()

    def _last_words(self) -> str:
        assert self._errors is not None
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else "its process was ended from outside"

    def _forget(self) -> None:
        if self._errors is not None:
            self._errors.close()
        self._process = self._errors = None


def main() -> None:
    """Make the report of the folder that is named on the command line, when nobody else needs the processor."""
    os.nice(_LOWEST)
    from components.telemetry.report import write_report  # with it comes matplotlib

    write_report(sys.argv[1])


if __name__ == "__main__":
    main()

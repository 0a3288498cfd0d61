"""What kfp's local runner prints -> what a person wants to see, and the whole of it in a file.

The runner gives no hook, only a stream into which its own log, the executor's log and the step's output are mixed. The
lines of the step itself go through; of the rest stay the beginning and the end of each step.
"""

import io
import re
import time
from collections.abc import Callable
from typing import IO

_ANSI = re.compile(r"\x1b\[[0-9;]*m")
_RUNNER = re.compile(r"\d\d:\d\d:\d\d\.\d{3} - [A-Z]+ - (?P<text>.*)")
_EXECUTOR = re.compile(r"\s*\[KFP Executor [^]]*\]: (?P<text>.*)")
_STARTED = re.compile(r"Executing task '(?P<step>[^']+)'")
_ENDED = re.compile(r"Task '(?P<step>[^']+)' finished with status (?P<status>\w+)")
_TOLD = re.compile(r"components\.errors\.\w+Error\b")
"""An error that is for people: its message says all, and is told at the end."""
_ERROR = re.compile(r"[A-Za-z_][\w.]*(Error|Exception|Interrupt|Exit|Group)\b")


class Progress(io.TextIOBase):
    """A stream to write to in place of standard output. `show` gets the lines for the terminal, `log` gets them all."""

    def __init__(
        self, show: Callable[[str], None], log: IO[str], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.step: str | None = None
        self.failed_step: str | None = None
        self._show = show
        self._log = log
        self._clock = clock
        self._started = clock()
        self._rest = ""
        self._shown = False
        self._output: list[str] = []
        self._held: list[str] = []
        self._failed_output: list[str] = []

    def writable(self) -> bool:
        """It is a stream to write to."""
        return True

    def write(self, text: str) -> int:
        """Take whatever the runner prints; whole lines are sorted at once."""
        *lines, self._rest = (self._rest + text).split("\n")
        for line in lines:
            plain = _ANSI.sub("", line).rstrip()
            self._log.write(f"{plain}\n")
            self._line(plain)
        self._log.flush()
        return len(text)

    def error_of_failed_step(self) -> str:
        """The failed step's own message: the end of its last traceback. One that left none was ended from outside."""
        output = self._failed_output
        starts = [number for number, line in enumerate(output) if line.startswith("Traceback (")]
        if not starts:
            last = "".join(f"\n  {line}" for line in output[-5:]) or " nothing"
            return f"the step ended without an error of its own: killed, or out of memory? It last said:{last}"
        tail = output[starts[-1] + 1 :]
        found = next((number for number, line in enumerate(tail) if _ERROR.match(line)), 0)
        return re.sub(r"^[\w.]*\.(?=\w+(?:: |$))", "", "\n".join(tail[found:]).strip())

    def _line(self, line: str) -> None:
        runner = _RUNNER.match(line)
        if runner:
            self._runner_line(runner["text"])
        elif self.step is not None:
            self._step_line(line.removeprefix("    "))

    def _runner_line(self, text: str) -> None:
        self._shown = False
        if started := _STARTED.search(text):
            self.step, self._started, self._output = started["step"], self._clock(), []
            self._show(f"== {self.step}")
        elif text.startswith("Streamed logs"):
            self._shown = True
        elif ended := _ENDED.search(text):
            failed = ended["status"] != "SUCCESS"
            # What still runs after a failure is the exit handler.
            if failed and self.failed_step is None:
                self.failed_step, self._failed_output = self.step, self._output
            self._end_traceback(failed)
            self._show(f"   {self._clock() - self._started:.1f} s{', failed' if failed else ''}")
            self.step = None

    def _step_line(self, line: str) -> None:
        """The executor echoes its whole input as JSON after "Got executor_input": that is not shown."""
        executor = _EXECUTOR.match(line)
        if executor:
            self._shown = not executor["text"].startswith("Got executor_input")
        elif line == "}" and not self._shown:
            self._shown = True
        elif self._shown and line:
            self._output.append(line)
            if self._held or line.startswith("Traceback ("):
                self._held.append(line)
            else:
                self._show(f"   {line}")

    def _end_traceback(self, failed: bool) -> None:
        """Show what was held since a traceback began, unless it ends with an error for people, which is told alone."""
        held, self._held = self._held, []
        if not (failed and any(_TOLD.match(line) for line in held)):
            for line in held:
                self._show(f"   {line}")

"""An event loop -> how late it is, and which code held it up. Always on.

    async with LoopLag() as lag:
        ...
    lag.worst_seconds

Every episode and every tool waits while one callback runs. A heartbeat on the loop measures how late it comes; a
thread that watches the heartbeat names the code that runs when it stays out, once for each place.
"""

import asyncio
import sys
import sysconfig
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import FrameType

from components.telemetry.progress import say
from components.telemetry.spans import now

BEAT = 0.01
"""Seconds between two beats: a block that begins just after one is seen shorter by so much."""
LATE = 0.05
"""Lateness in seconds from which a beat counts as late."""
MAX_PLACES = 20
"""Places that are told of; more of them are no news."""

_LIBRARIES = (*(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")), "<frozen")


@dataclass(frozen=True, slots=True)
class Place:
    """A line of code, and the function that it is in."""

    file: str
    line: int
    function: str

    @classmethod
    def of(cls, frame: FrameType) -> "Place":
        """Where a frame is now."""
        return cls(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_qualname)

    def __str__(self) -> str:
        return f"{self.file}:{self.line} ({self.function})"


class LoopLag:
    """Watches the loop that it is entered on. `bound` is how many seconds of silence are told of."""

    def __init__(self, *, bound: float = 1.0, tell: Callable[[str], None] = say) -> None:
        self.worst_seconds = 0.0
        self.blocked_by: dict[Place, float] = {}
        self._bound = bound
        self._tell = tell
        self._beats = 0
        self._late = 0
        self._late_seconds = 0.0
        self._last = now()
        self._loop_thread = 0
        self._ended = threading.Event()

    async def __aenter__(self) -> "LoopLag":
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        self._last = now()
        self._next = self._loop.call_later(BEAT, self._beat)
        self._watcher = threading.Thread(target=self._watch, name="loop lag", daemon=True)
        self._watcher.start()
        return self

    async def __aexit__(self, *exception: object) -> None:
        self._next.cancel()
        self._measure()
        self._ended.set()
        self._watcher.join()

    def totals(self) -> dict[str, int | float]:
        """Since the start: `beats`, those that were `late`, and `late_seconds`, by which they were."""
        return {"beats": self._beats, "late": self._late, "late_seconds": self._late_seconds}

    def _beat(self) -> None:
        self._measure()
        self._next = self._loop.call_later(BEAT, self._beat)

    def _measure(self) -> None:
        moment = now()
        lateness = max(moment - self._last - BEAT, 0.0)
        self._last = moment
        self._beats += 1
        self.worst_seconds = max(self.worst_seconds, lateness)
        if lateness > LATE:
            self._late += 1
            self._late_seconds += lateness

    def _watch(self) -> None:
        """The thread. It sleeps but for a few looks in each `bound`."""
        while not self._ended.wait(self._bound / 4):
            silence = now() - self._last
            if silence > self._bound:
                self._name(silence)

    def _name(self, silence: float) -> None:
        frames = _running(sys._current_frames().get(self._loop_thread))
        if not frames:
            return
        place, inside = Place.of(_responsible(frames)), Place.of(frames[0])
        known = place in self.blocked_by
        if not known and len(self.blocked_by) >= MAX_PLACES:
            return
        self.blocked_by[place] = max(silence, self.blocked_by.get(place, 0.0))
        if not known:
            deeper = "" if place == inside else f", inside {inside}"
            self._tell(
                f"the event loop has stood still for {silence:.1f} s, and with it all episodes and tools, at {place}"
                f"{deeper}; await something there, or move the work to a thread with asyncio.to_thread"
            )


def _running(innermost: FrameType | None) -> list[FrameType]:
    """The frames of the callback that the loop runs, the innermost first.

    None of them when the loop itself waits: then other threads, or other programs, do not let it go on.
    """
    frames: list[FrameType] = []
    frame = innermost
    while frame is not None:
        if frame.f_globals.get("__name__") == "asyncio.events" and frame.f_code.co_name == "_run":
            return frames
        frames.append(frame)
        frame = frame.f_back
    return []


def _responsible(frames: Sequence[FrameType]) -> FrameType:
    """The innermost frame outside of libraries, or the innermost of all where there is no other."""
    return next((each for each in frames if not each.f_code.co_filename.startswith(_LIBRARIES)), frames[0])

"""What jax reports of its compilations -> seconds in the clock of the role whose thread compiled.

Tracing, lowering and compiling (or fetching from the cache on the disk) all count. A program that is traced inside
another one's tracing is part of it, and counted once.
"""

import functools
import threading
import time

import jax

from components.telemetry.clock import COMPILING, RoleClock
from components.telemetry.spans import record

_EVENTS = "/jax/core/compile/"
_SHORT = 1e-3
"""Seconds; there are thousands of shorter stretches, and nobody looks for them."""


class _Charged(threading.local):
    """Whose time the calling thread spends, and the stretches that are counted already and may lie in a longer one."""

    clock: RoleClock | None = None

    def __init__(self) -> None:
        self.counted: list[tuple[float, float]] = []


_charged = _Charged()


def charge_compilation(clock: RoleClock) -> None:
    """From now on, what the calling thread compiles counts as `compiling` in `clock`, and becomes a span."""
    _listen()
    _charged.clock = clock


@functools.cache
def _listen() -> None:
    """Once in a process; jax has no way to stop."""
    jax.monitoring.register_event_duration_secs_listener(_heard)


def _heard(event: str, duration_secs: float, **kwargs: str | int) -> None:
    clock = _charged.clock
    if clock is None or not event.startswith(_EVENTS):
        return
    end = time.perf_counter()
    seconds, inside = duration_secs, 0.0
    start = end - seconds
    while _charged.counted and _charged.counted[-1][0] >= start:
        inside += _charged.counted.pop()[1]
    _charged.counted.append((start, seconds))
    del _charged.counted[:-100]
    clock.carve(COMPILING, max(seconds - inside, 0.0))
    if seconds > _SHORT:
        record("compile", start, end, event=event.removeprefix(_EVENTS))

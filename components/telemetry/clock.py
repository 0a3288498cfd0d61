"""What a role is doing, moment by moment -> seconds by state.

A role (trainer, engine) is in exactly one state at a time. A state whose name begins with "waiting" is idle, and what
follows names the cause: "waiting for generation". Every other state counts as work.
"""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

STARTING = "starting"
BUSY = "busy"
COMPILING = "compiling"


def is_waiting(state: str) -> bool:
    """Whether a state is idle."""
    return state.startswith("waiting")


def idle_share(totals: Mapping[str, int | float]) -> float:
    """Waiting seconds over all seconds except those of the start, between 0 and 1; 0 where there are none."""
    counted = {state: seconds for state, seconds in totals.items() if state != STARTING}
    whole = sum(counted.values())
    return sum(seconds for state, seconds in counted.items() if is_waiting(state)) / whole if whole else 0.0


class RoleClock:
    """Seconds by state of one role. One thread switches; any thread reads.

    `clock` gives seconds and is replaced in tests.
    """

    def __init__(self, role: str, *, state: str = STARTING, clock: Callable[[], float] = time.perf_counter) -> None:
        self.role = role
        self._clock = clock
        self._lock = threading.Lock()
        self._state = state
        self._since = clock()
        self._totals: dict[str, float] = {}

    @property
    def state(self) -> str:
        """The state that the role is in."""
        return self._state

    def switch(self, state: str) -> str:
        """Leave the current state for another and return the one that was left."""
        with self._lock:
            moment = self._clock()
            left = self._state
            self._totals[left] = self._totals.get(left, 0.0) + moment - self._since
            self._state, self._since = state, moment
        return left

    @contextmanager
    def during(self, state: str) -> Iterator[None]:
        """Be in `state` for a block, then go back."""
        left = self.switch(state)
        try:
            yield
        finally:
            self.switch(left)

    def carve(self, state: str, seconds: float) -> None:
        """The last `seconds` of the current state were in truth spent in `state`."""
        with self._lock:
            self._move(self._state, state, seconds)

    def reassign(self, state: str, parts: Mapping[str, float]) -> None:
        """Of the time spent in `state`, so much was in truth spent in other states."""
        with self._lock:
            for other, seconds in parts.items():
                self._move(state, other, seconds)

    def rename(self, old: str, new: str) -> None:
        """Be in `new` from now on if the current state is `old`. May be called by a thread that does not switch."""
        with self._lock:
            if self._state == old:
                moment = self._clock()
                self._totals[old] = self._totals.get(old, 0.0) + moment - self._since
                self._state, self._since = new, moment

    def totals(self) -> dict[str, float]:
        """Seconds by state since the clock was made, the current state up to now included."""
        with self._lock:
            totals = dict(self._totals)
            totals[self._state] = totals.get(self._state, 0.0) + self._clock() - self._since
        # What has been moved elsewhere to the last second leaves nothing.
        return {state: seconds for state, seconds in totals.items() if seconds > 1e-9}

    def _move(self, state: str, other: str, seconds: float) -> None:
        self._totals[state] = self._totals.get(state, 0.0) - seconds
        self._totals[other] = self._totals.get(other, 0.0) + seconds

    def idle_share(self) -> float:
        """The share of its time, after the start, that the role has waited."""
        return idle_share(self.totals())


def difference(later: Mapping[str, int | float], earlier: Mapping[str, int | float]) -> dict[str, int | float]:
    """What was added between two readings of `totals`, or of any other set of counters."""
    return {state: seconds - earlier.get(state, 0.0) for state, seconds in later.items()}

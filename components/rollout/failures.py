"""Failed episodes, one by one -> the moment at which a run has to stop, and a summary of what went wrong."""

import time
from collections import Counter, deque
from collections.abc import Callable

from components.errors import RunStoppedError
from components.types import Failure, Trajectory


class FailureLimits:
    """Bounds on failures: `in_a_row` of whatever kind, and `share` of one kind among the last `window` attempts.

    In a row are attempts of which each began after the one before had failed: many that run at once and fail at once,
    because one thing stood still for a moment, count as one.
    """

    def __init__(
        self, *, in_a_row: int, share: float, window: int, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._in_a_row = in_a_row
        self._share = share
        self._window = window
        self._clock = clock
        self._streak = 0
        self._last_failed = 0.0
        self._recent: deque[str | None] = deque(maxlen=window)
        self._recent_by_kind: Counter[str | None] = Counter()
        self._by_kind: Counter[str] = Counter()
        self._last: dict[str, str] = {}
        self._attempts = 0

    def observe(self, trajectory: Trajectory) -> None:
        """An attempt has ended. Raises RunStoppedError with a summary by kind when a bound is reached."""
        failure = trajectory.failure
        self._remember(failure)
        if failure is None:
            self._streak = 0
            return
        now = self._clock()
        if now - trajectory.seconds >= self._last_failed:
            self._streak += 1
            self._last_failed = now
        if self._streak >= self._in_a_row:
            raise RunStoppedError(
                f"{self._streak} episodes failed in a row (max_failures_in_a_row); the last one, a failure "
                f"of kind {failure.kind!r}, said: {failure.message}{self._summary()}"
            )
        if self._recent_by_kind[failure.kind] > self._share * self._window:
            raise RunStoppedError(
                f"{self._recent_by_kind[failure.kind]} of the last {len(self._recent)} attempts failed in one way, "
                f"{failure.kind!r} (max_failure_share is {self._share:.0%} of {self._window}); "
                f"the last one said: {failure.message}{self._summary()}"
            )

    def _remember(self, failure: Failure | None) -> None:
        kind = failure.kind if failure else None
        if len(self._recent) == self._window:
            self._recent_by_kind[self._recent[0]] -= 1
        self._recent.append(kind)
        self._recent_by_kind[kind] += 1
        self._attempts += 1
        if failure is not None:
            self._by_kind[failure.kind] += 1
            self._last[failure.kind] = failure.message

    def _summary(self) -> str:
        lines = [f"  {kind:<12} {times:>6}   last: {self._last[kind]}" for kind, times in self._by_kind.most_common()]
        return "\n".join([f"\n{self._by_kind.total()} of {self._attempts} attempts failed, by kind:", *lines])

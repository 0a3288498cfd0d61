"""Failed episodes, one by one -> the moment at which a run has to stop, and a summary of what went wrong."""

from collections import Counter, deque

from components.errors import RunStoppedError
from components.types import Failure

WINDOW = 200
"""Attempts that a share of failures is taken over."""


class FailureLimits:
    """Bounds on failures: `in_a_row` of whatever kind, and `share` of one kind among the last WINDOW attempts."""

    def __init__(self, in_a_row: int, share: float) -> None:
        self._in_a_row = in_a_row
        self._share = share
        self._failures_in_a_row = 0
        self._recent: deque[str | None] = deque(maxlen=WINDOW)
        self._recent_by_kind: Counter[str | None] = Counter()
        self._by_kind: Counter[str] = Counter()
        self._last: dict[str, str] = {}
        self._attempts = 0

    def observe(self, failure: Failure | None) -> None:
        """An attempt has ended. Raises RunStoppedError with a summary by kind when a bound is reached."""
        self._remember(failure)
        if failure is None:
            return
        if self._failures_in_a_row >= self._in_a_row:
            raise RunStoppedError(
                f"{self._failures_in_a_row} episodes failed in a row (max_failures_in_a_row); the last one, a failure "
                f"of kind {failure.kind!r}, said: {failure.message}{self._summary()}"
            )
        share = self._recent_by_kind[failure.kind] / WINDOW
        if share > self._share:
            raise RunStoppedError(
                f"{self._recent_by_kind[failure.kind]} of the last {len(self._recent)} attempts failed in one way, "
                f"{failure.kind!r} (max_failure_share is {self._share:.0%} of {WINDOW}); "
                f"the last one said: {failure.message}{self._summary()}"
            )

    def _remember(self, failure: Failure | None) -> None:
        kind = failure.kind if failure else None
        if len(self._recent) == WINDOW:
            self._recent_by_kind[self._recent[0]] -= 1
        self._recent.append(kind)
        self._recent_by_kind[kind] += 1
        self._attempts += 1
        self._failures_in_a_row = self._failures_in_a_row + 1 if failure else 0
        if failure is not None:
            self._by_kind[failure.kind] += 1
            self._last[failure.kind] = failure.message

    def _summary(self) -> str:
        lines = [f"  {kind:<12} {times:>6}   last: {self._last[kind]}" for kind, times in self._by_kind.most_common()]
        return "\n".join([f"\nOf {self._attempts} attempts failed, by kind:", *lines])

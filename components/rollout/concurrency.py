"""How a step went -> how many episodes may run at once: the controller behind `max_concurrency: auto`.

    auto = AutoConcurrency(group_size=4, tasks_per_step=8, max_staleness=2)
    limit = auto.update(trainer_waited=0.3, recomputed=0.0, queued=0.1)

While the trainer waits, more episodes hide more of their tools' latency. Too many of them push each other out of the
engine's cache, so that contexts are computed again, or stand in its queue and grow old there: then fewer are better.
It grows fast until the first sign of pressure and by one group at a time from there on, as TCP does (RFC 5681).
"""

WAITED = 0.02
"""The share of a step's time that the trainer may wait before more episodes are wanted."""
RECOMPUTED = 0.1
"""The share of prefilled tokens that had been in the cache before, above which there are too many episodes for it."""
QUEUED = 1.0
"""Waiting requests per slot above which there are more episodes than the engine can serve."""
GROWTH, SHRINKAGE = 1.5, 0.8


class AutoConcurrency:
    """The limit of episodes that run at once: whole groups, from one group to as many as pacing lets run.

    Starts at the episodes of one optimizer step. Pure arithmetic: the same readings give the same limits.
    """

    def __init__(self, *, group_size: int, tasks_per_step: int, max_staleness: int) -> None:
        self._group_size = group_size
        self._most = (max_staleness + 1) * tasks_per_step * group_size
        self._pressed = False
        self.limit = tasks_per_step * group_size

    @property
    def at_bound(self) -> bool:
        """Whether pacing alone holds back further episodes: a greater limit would change nothing."""
        return self.limit == self._most

    def update(self, *, trainer_waited: float, recomputed: float, queued: float) -> int:
        """The limit after a step in which the trainer waited for that share of its time.

        `recomputed` is the share of prefilled tokens that had been computed before, `queued` the requests that wait in
        the engine per slot. Pressure counts for more than waiting: an engine without room serves no more by more load.
        """
        if recomputed > RECOMPUTED or queued > QUEUED:
            self._pressed = True
            self._set(self.limit * SHRINKAGE)
        elif trainer_waited > WAITED:
            grown = self.limit if self._pressed else self.limit * GROWTH
            self._set(max(grown, self.limit + self._group_size))
        return self.limit

    def _set(self, episodes: int | float) -> None:
        groups = max(1, int(episodes / self._group_size))
        self.limit = min(groups * self._group_size, self._most)

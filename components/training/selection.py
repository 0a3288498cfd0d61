"""Episodes as they end, and as they are trained -> whether the trainer sees what was played.

Whatever waits for nobody prefers what comes quickly: with a bound on staleness, a closed group or a rule that filters,
long and slow episodes may never be trained, and the policy learns from the short ones alone. The monitor compares the
mean length of all episodes that ended with the mean of those that went into an update. It keeps sums only.

The sums are of one process: they start at nothing after a resume, and `episodes` says how many they are of.
"""

from collections.abc import Callable, Mapping

from components.types import Trajectory

MEASURES: Mapping[str, Callable[[Trajectory], float]] = {
    "tokens": lambda trajectory: float(trajectory.generated_tokens),
    "turns": lambda trajectory: float(len(trajectory.turns)),
    "seconds": lambda trajectory: float(trajectory.seconds),
}
"""What is compared: sampled tokens, turns, and seconds from start to end (tools included) of an episode."""


class SelectionMonitor:
    """Cumulative means over two sets of episodes. Not thread-safe."""

    def __init__(self) -> None:
        self._dispatched = _Sums()
        self._trained = _Sums()

    def dispatched(self, trajectory: Trajectory) -> None:
        """An attempt has ended, whatever its outcome. One that still runs counts when it ends."""
        self._dispatched.add(trajectory)

    def trained(self, trajectory: Trajectory) -> None:
        """An episode, counted as dispatched when it ended, went into an update."""
        self._trained.add(trajectory)

    def numbers(self) -> dict[str, dict[str, dict[str, float]]]:
        """For a line of metrics. `ratio` is trained / dispatched; a number that is not known (yet) is left out.

            {"selection": {"episodes": {"trained": 56.0, "dispatched": 64.0, "ratio": 0.875},
                           "tokens": {"trained": 190.0, "dispatched": 240.0, "ratio": 0.79},
                           "turns": ..., "seconds": ...}}

        Far below 1, long or slow episodes are starved; that of `episodes` is the share of attempts that was trained.
        """
        trained, dispatched = self._trained.means(), self._dispatched.means()
        return {"selection": {name: _compared(trained, dispatched, name) for name in ("episodes", *MEASURES)}}


class _Sums:
    def __init__(self) -> None:
        self._episodes = 0
        self._sums = dict.fromkeys(MEASURES, 0.0)

    def add(self, trajectory: Trajectory) -> None:
        self._episodes += 1
        for name, measure in MEASURES.items():
            self._sums[name] += measure(trajectory)

    def means(self) -> dict[str, float]:
        """The number of episodes and, where it is not 0, the mean of each measure."""
        count = self._episodes
        means = {name: value / count for name, value in self._sums.items()} if count else {}
        return {"episodes": float(count), **means}


def _compared(trained: Mapping[str, float], dispatched: Mapping[str, float], name: str) -> dict[str, float]:
    means = {"trained": trained, "dispatched": dispatched}
    known = {key: each[name] for key, each in means.items() if name in each}
    if "trained" in known and known.get("dispatched"):
        known["ratio"] = known["trained"] / known["dispatched"]
    return known

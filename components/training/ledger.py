"""Every generated token -> its fate, by the policy version that sampled it.

    generated = trained + stale + filtered + failed + surplus + in flight

The two sides are counted apart: `sampled` is called where the policy answers, `settle` where a trajectory's fate is
decided, and what lies between is held per episode. `check` raises when they disagree.
"""

from collections import Counter
from collections.abc import Collection, Sequence
from enum import StrEnum

from components.errors import HeadraceError
from components.types import SequenceId, Trajectory

Episode = tuple[str, int, int, int]
"""Task id, epoch, member, attempt."""


class Fate(StrEnum):
    """What became of a trajectory's tokens.

    trained: in an optimizer step. stale: older than the recipe allows. filtered: valid, but of a group that carries no
    gradient. failed: of an episode that broke. surplus: finished after it was needed, or lost with a killed run.
    """

    TRAINED = "trained"
    STALE = "stale"
    FILTERED = "filtered"
    FAILED = "failed"
    SURPLUS = "surplus"


class Ledger:
    """Counts tokens by fate and version. Not thread-safe: it belongs to the event loop."""

    def __init__(self) -> None:
        self._generated: Counter[int] = Counter()
        self._settled: Counter[tuple[int, Fate]] = Counter()
        self._in_flight: dict[Episode, Counter[int]] = {}

    def sampled(self, sequence: SequenceId, versions: Sequence[int]) -> None:
        """A turn of this episode was sampled: one version per token."""
        counted = Counter(versions)
        self._generated.update(counted)
        self._in_flight.setdefault(_episode(sequence), Counter()).update(counted)

    def settle(self, trajectory: Trajectory, fate: Fate) -> None:
        """The fate of all tokens of this trajectory is decided, once."""
        episode = episode_of(trajectory)
        held = self._in_flight.pop(episode, Counter())
        if held.total() != trajectory.generated_tokens:
            raise HeadraceError(
                f"token ledger: the trajectory of task {episode[0]!r} (epoch, member, attempt {episode[1:]}) holds "
                f"{trajectory.generated_tokens} tokens and {held.total()} are in flight for it; "
                "it was settled twice, or tokens were sampled unseen"
            )
        self._add(held, fate)

    def abandon(self, *, task: tuple[str, int] | None = None, kept: Collection[Episode] = ()) -> None:
        """What is in flight will never be trained on, and is surplus: the run ends, was killed, or closed a group.

        `task` (id and epoch) narrows it to one group's episodes; those in `kept` stay in flight.
        """
        gone = [each for each in self._in_flight if each not in kept and (task is None or each[:2] == task)]
        for episode in gone:
            self._add(self._in_flight.pop(episode), Fate.SURPLUS)

    def tokens(self) -> dict[str, int]:
        """Tokens by fate, plus `generated` and `in_flight`."""
        fates = {fate.value: 0 for fate in Fate}
        for (_, fate), amount in self._settled.items():
            fates[fate.value] += amount
        return {"generated": self._generated.total(), **fates, "in_flight": self._total_in_flight().total()}

    def by_version(self) -> dict[int, dict[str, int]]:
        """The same account for each policy version that sampled a token, by version."""
        in_flight = self._total_in_flight()
        return {
            version: {
                "generated": self._generated[version],
                **{fate.value: self._settled[version, fate] for fate in Fate},
                "in_flight": in_flight[version],
            }
            for version in sorted(self._generated)
        }

    def check(self) -> None:
        """Raise when the two sides of the account differ, for any version."""
        for version, tokens in self.by_version().items():
            counted = sum(tokens.values()) - tokens["generated"]
            if counted != tokens["generated"]:
                raise HeadraceError(
                    f"token ledger: version {version} generated {tokens['generated']} tokens and {counted} are "
                    f"accounted for: {tokens}"
                )

    def _add(self, amounts: Counter[int], fate: Fate) -> None:
        for version, amount in amounts.items():
            self._settled[version, fate] += amount

    def _total_in_flight(self) -> Counter[int]:
        total: Counter[int] = Counter()
        for amounts in self._in_flight.values():
            total.update(amounts)
        return total


def episode_of(trajectory: Trajectory) -> Episode:
    """The episode that a trajectory is the record of."""
    return (trajectory.task.id, trajectory.epoch, trajectory.member, trajectory.attempt)


def _episode(sequence: SequenceId) -> Episode:
    return (sequence.task_id, sequence.epoch, sequence.member, sequence.attempt)

"""Every generated token -> its fate.

    generated = trained + stale + filtered + failed + surplus + in flight

The two sides are counted apart: `sampled` is called where the policy answers, `settle` where a trajectory's fate is
decided, and what lies between is held per episode. `check` raises when they disagree.
"""

from collections import Counter
from collections.abc import Mapping
from enum import StrEnum

from components.errors import HeadraceError
from components.types import SequenceId, Trajectory

_Episode = tuple[str, int, int, int]


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
    """Counts tokens by fate. Not thread-safe: it belongs to the event loop."""

    def __init__(self) -> None:
        self._generated = 0
        self._settled: Counter[Fate] = Counter()
        self._in_flight: Counter[_Episode] = Counter()

    def sampled(self, sequence: SequenceId, tokens: int) -> None:
        """`tokens` were sampled in a turn of this episode."""
        self._generated += tokens
        self._in_flight[(sequence.task_id, sequence.epoch, sequence.member, sequence.attempt)] += tokens

    def settle(self, trajectory: Trajectory, fate: Fate) -> None:
        """The fate of all tokens of this trajectory is decided, once."""
        episode = (trajectory.task.id, trajectory.epoch, trajectory.member, trajectory.attempt)
        held = self._in_flight.pop(episode, 0)
        if held != trajectory.generated_tokens:
            raise HeadraceError(
                f"token ledger: the trajectory of task {episode[0]!r} (epoch, member, attempt {episode[1:]}) holds "
                f"{trajectory.generated_tokens} tokens and {held} are in flight for it; "
                "it was settled twice, or tokens were sampled unseen"
            )
        self._settled[fate] += held

    def abandon(self) -> None:
        """What is still in flight will never be trained on: the run ends, or was killed."""
        self._settled[Fate.SURPLUS] += self._in_flight.total()
        self._in_flight.clear()

    def tokens(self) -> dict[str, int]:
        """Tokens by fate, plus `generated` and `in_flight`."""
        fates = {fate.value: self._settled[fate] for fate in Fate}
        return {"generated": self._generated, **fates, "in_flight": self._in_flight.total()}

    def check(self) -> None:
        """Raise when the two sides of the account differ."""
        counted = self._settled.total() + self._in_flight.total()
        if counted != self._generated:
            raise HeadraceError(f"token ledger: {self._generated} tokens were generated and {counted} accounted for")

    def restore(self, tokens: Mapping[str, int]) -> None:
        """Take over a checkpoint's `tokens()`. What was in flight then died with the process, and is surplus."""
        self._generated = tokens["generated"]
        self._settled = Counter({fate: tokens[fate.value] for fate in Fate})
        self._settled[Fate.SURPLUS] += tokens["in_flight"]
        self._in_flight.clear()

"""What happens in a run, as events -> what the run knows at any moment: one fold, while it runs and after a kill.

    history = History()
    for event in journal:
        history.apply(event)

An optimizer step counts when its `Stepped` is there. What was consumed for a step that never came to its end is taken
back by `Resumed` and is consumed again; it was trained on in a state that died with its process.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from components.errors import CheckpointError
from components.training.ledger import Fate, Ledger, episode_of
from components.types import Group, Outcome, SequenceId, Trajectory

Member = tuple[int, int]
"""Member and attempt of one trajectory of a group."""


@dataclass(frozen=True, slots=True)
class Opened:
    """The run begins. `settings` and `inputs` (name to folder) are all that its steps depend on.

    `fingerprints` tell whether an input is still what it was.
    """

    settings: Mapping[str, Any]
    inputs: Mapping[str, str]
    fingerprints: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Sampled:
    """A turn was sampled: `versions` are pairs of a policy version and a number of tokens, in order."""

    sequence: SequenceId
    versions: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Ended:
    """An attempt came to its end, well or not, in the group at `position`."""

    position: int
    trajectory: Trajectory


@dataclass(frozen=True, slots=True)
class Closed:
    """A group was closed without the members that still ran."""

    position: int
    task_id: str
    epoch: int


@dataclass(frozen=True, slots=True)
class Rejected:
    """A group will not be trained on. `stale` are the members that were too old; the others had too few beside them."""

    position: int
    stale: tuple[Member, ...] = ()


@dataclass(frozen=True, slots=True)
class Consumed:
    """A group went into the optimizer step that is open, with these members; `stale` ones were left out."""

    position: int
    members: tuple[Member, ...]
    fate: Fate
    stale: tuple[Member, ...] = ()


@dataclass(frozen=True, slots=True)
class Stepped:
    """The policy is at `version`, and this is its adapter's fingerprint."""

    version: int
    fingerprint: str


@dataclass(frozen=True, slots=True)
class Resumed:
    """Another process goes on; whatever was running in the one before is gone."""

    version: int


Event = Opened | Sampled | Ended | Closed | Rejected | Consumed | Stepped | Resumed


@dataclass(frozen=True, slots=True)
class Step:
    """One optimizer step that counts: the groups in the order in which they were trained on."""

    version: int
    fingerprint: str
    groups: tuple[Group, ...]


@dataclass
class History:
    """`version` optimizer steps were made; every task before `position`, and those in `done`, are settled."""

    version: int = 0
    position: int = 0
    done: set[int] = field(default_factory=set)
    ledger: Ledger = field(default_factory=Ledger)
    events: int = 0
    opened: Opened | None = None
    _ended: dict[int, list[Trajectory]] = field(default_factory=dict)
    _open_step: list[Consumed] = field(default_factory=list)

    @property
    def unsettled(self) -> Mapping[int, tuple[Trajectory, ...]]:
        """By position: the attempts that have ended in groups that are not settled, in order of their ends."""
        return {position: tuple(trajectories) for position, trajectories in self._ended.items()}

    def apply(self, event: Event) -> Step | None:
        """Take one event in. Gives the optimizer step that it completes, if it does."""
        self.events += 1
        match event:
            case Opened():
                self.opened = event
            case Sampled(sequence, versions):
                self.ledger.sampled(sequence, [version for version, tokens in versions for _ in range(tokens)])
            case Ended(position, trajectory):
                self._end(position, trajectory)
            case Closed(position, task_id, epoch):
                kept = {episode_of(each) for each in self._ended.get(position, ())}
                self.ledger.abandon(task=(task_id, epoch), kept=kept)
            case Rejected(position, stale):
                self._settle(position, Fate.FILTERED, stale)
            case Consumed():
                self._open_step.append(event)
            case Stepped():
                return self._step(event)
            case Resumed():
                self._open_step.clear()
                self.ledger.abandon(kept={episode_of(each) for group in self._ended.values() for each in group})
        return None

    def facts(self) -> dict[str, Any]:
        """What a checkpoint of this moment says of the journal beside it; see `check`."""
        return {"events": self.events, "ledger": self.ledger.tokens()}

    def check(self, facts: Mapping[str, Any], where: str) -> None:
        """Raise CheckpointError when a checkpoint's `facts`, of as many events as were applied, tell another story."""
        if facts["ledger"] != self.ledger.tokens():
            raise CheckpointError(
                f"{where}: the journal's first {self.events} events account for {self.ledger.tokens()} tokens and the "
                f"checkpoint for {facts['ledger']}; the two are not of one run"
            )

    def _end(self, position: int, trajectory: Trajectory) -> None:
        if trajectory.outcome is Outcome.FAILED:
            self.ledger.settle(trajectory, Fate.FAILED)
        self._ended.setdefault(position, []).append(trajectory)

    def _step(self, event: Stepped) -> Step:
        groups = []
        for consumed in self._open_step:
            chosen = set(consumed.members)
            attempts = self._ended[consumed.position]
            members = tuple(sorted((each for each in attempts if member_of(each) in chosen), key=member_of))
            groups.append(Group(members[0].task, members, position=consumed.position, epoch=members[0].epoch))
            self._settle(consumed.position, consumed.fate, consumed.stale)
        self._open_step.clear()
        self.version = event.version
        return Step(event.version, event.fingerprint, tuple(groups))

    def _settle(self, position: int, fate: Fate, stale: Iterable[Member]) -> None:
        """Every valid member of the group has its fate, and the group will not be played again."""
        for trajectory in self._ended.pop(position, ()):
            if trajectory.outcome is not Outcome.FAILED:
                self.ledger.settle(trajectory, Fate.STALE if member_of(trajectory) in stale else fate)
        self.done.add(position)
        while self.position in self.done:
            self.done.remove(self.position)
            self.position += 1


def member_of(trajectory: Trajectory) -> Member:
    """Which attempt of which member of its group a trajectory is."""
    return trajectory.member, trajectory.attempt


def steps_of(events: Iterable[Event], history: History) -> Iterator[Step]:
    """Apply events one by one; gives every optimizer step that counts, as it is completed."""
    for event in events:
        step = history.apply(event)
        if step is not None:
            yield step

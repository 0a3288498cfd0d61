"""Tasks -> groups of trajectories, many at once, each handed on the moment it is complete.

Nothing here waits for the slowest episode. How far generation may run ahead of training is decided at admission
(the AReaL rule, arXiv:2505.24298): a task starts only while

    accepted + running < (max_staleness + version + 1) * tasks_per_step

and while there is room for its episodes under `max_concurrency`. With `max_staleness` 0 this is synchronous and
on-policy, and groups are handed on in order of admission, so that a run is a function of its seed. Otherwise the order
is that of completion.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal

from pydantic import Field

from components.config import config
from components.errors import ConfigError, Problem
from components.rollout.cursor import Admission
from components.rollout.failures import FailureLimits
from components.telemetry.spans import count
from components.types import Group, Outcome, SequenceId, Task, Trajectory

Play = Callable[[Task, SequenceId], Awaitable[Trajectory]]


@config
class RolloutConfig:
    """`tasks_per_step` groups of `group_size` episodes feed one optimizer step; `max_concurrency` counts episodes.

    `auto` lets the concurrency grow while the trainer waits and shrink when the engine's cache is too small for it.
    `group_quorum` closes a group without its slowest members, once so many have a reward; what they sampled is surplus.
    `drop_older_than` leaves out trajectories whose oldest token is that many versions behind; pacing admits none that
    are more than `max_staleness` behind, but one that plays for long grows old. Neither is set by default: both favour
    what is quick. An episode that fails is tried `max_attempts` times in all. `max_failures_in_a_row` failed episodes
    (each begun after the one before) stop the run, and so does one kind of failure in more than `max_failure_share` of
    the last 200 attempts, or of four times as many as run at once, if that is more.
    """

    group_size: Annotated[int, Field(ge=2)] = 8
    tasks_per_step: Annotated[int, Field(ge=1)] = 4
    max_concurrency: Annotated[int, Field(ge=1)] | Literal["auto"] = 64
    max_staleness: Annotated[int, Field(ge=0)] = 0
    drop_older_than: Annotated[int, Field(ge=0)] | None = None
    group_quorum: Annotated[int, Field(ge=2)] | None = None
    max_attempts: Annotated[int, Field(ge=1)] = 2
    max_failures_in_a_row: Annotated[int, Field(ge=1)] = 16
    max_failure_share: Annotated[float, Field(gt=0, le=1)] = 0.5

    def __post_init__(self) -> None:
        problems = []
        if self.max_concurrency != "auto" and self.max_concurrency < self.group_size:
            message = f"must be at least group_size ({self.group_size}), or no group can ever start"
            problems.append(Problem("max_concurrency", self.max_concurrency, message))
        if self.group_quorum is not None and self.group_quorum >= self.group_size:
            message = f"must be less than group_size ({self.group_size}), or it changes nothing"
            problems.append(Problem("group_quorum", self.group_quorum, message))
        if self.drop_older_than is not None and self.drop_older_than < self.max_staleness:
            message = f"is below max_staleness ({self.max_staleness}): what may be generated would be thrown away"
            problems.append(Problem("drop_older_than", self.drop_older_than, message))
        if self.group_quorum is not None and self.max_staleness == 0:
            message = "makes a run depend on time, which max_staleness 0 rules out; allow a staleness of 1 or more"
            problems.append(Problem("group_quorum", self.group_quorum, message))
        if problems:
            raise ConfigError(problems)

    @property
    def episodes_per_step(self) -> int:
        """Episodes of one optimizer step; the concurrency that `auto` starts with."""
        return self.tasks_per_step * self.group_size


@dataclass(frozen=True, slots=True)
class Listener:
    """Who is told what happens, each in the moment in which it does. Positions are those of admissions."""

    ended: Callable[[int, Trajectory], None] = lambda position, trajectory: None
    """An attempt came to its end, well or not."""
    closed: Callable[[int, Task, int], None] = lambda position, task, epoch: None
    """A group (task, epoch) was closed without the members that still ran."""
    rejected: Callable[[Group], None] = lambda group: None
    """A group has fewer than two members with a reward and will not be handed on."""


class Orchestrator:
    """An asynchronous iterator of complete groups with at least two valid members; the others are only told of.

    Use it as a context manager: on leaving, episodes that still run are cancelled. A bug in `play` ends the iteration
    with that very error. `recovered` are attempts that ended before a restart, by position: they are not played again.
    `concurrency` is the limit that counts while `max_concurrency` is auto.
    """

    def __init__(
        self,
        play: Play,
        admissions: Iterator[Admission],
        settings: RolloutConfig,
        *,
        version: int = 0,
        last_version: int,
        listener: Listener = Listener(),
        recovered: Mapping[int, Sequence[Trajectory]] | None = None,
    ) -> None:
        automatic = settings.max_concurrency == "auto"
        self.concurrency = settings.episodes_per_step if automatic else int(settings.max_concurrency)
        self._play = play
        self._admissions = admissions
        self._settings = settings
        self._version = version
        self._last_version = last_version
        self._listener = listener
        self._recovered = dict(recovered or {})
        self._accepted = version * settings.tasks_per_step
        self._running: set[asyncio.Task[Group]] = set()
        self._episodes = 0
        self._failures = FailureLimits(
            in_a_row=settings.max_failures_in_a_row,
            share=settings.max_failure_share,
            window=max(200, 4 * self.concurrency),
        )
        self._complete: asyncio.Queue[asyncio.Task[Group]] = asyncio.Queue()
        self._early: dict[int, Group | None] = {}
        self._admitted: deque[int] = deque()

    async def __aenter__(self) -> "Orchestrator":
        self._admit()
        return self

    async def __aexit__(self, *exception: object) -> None:
        running = list(self._running)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    def __aiter__(self) -> "Orchestrator":
        return self

    async def __anext__(self) -> Group:
        while True:
            ready = self._in_order()
            if ready is not None:
                return ready
            if not self._running and self._complete.empty():
                raise StopAsyncIteration
            self._settle(_result(await self._complete.get()))
            self._admit()

    def advance(self, version: int) -> None:
        """The policy has seen `version` optimizer updates: more tasks may start."""
        self._version = version
        self._admit()

    def replace(self) -> None:
        """A group that was handed on will not be trained on: another task may take its place."""
        self._accepted -= 1
        self._admit()

    @property
    def running_episodes(self) -> int:
        """Episodes that are being played now."""
        return self._episodes

    @property
    def crowded(self) -> bool:
        """Whether another task might start now, if `concurrency` left room for its group."""
        return self._full and self._accepted + len(self._running) < self._ahead

    @property
    def buffered_groups(self) -> int:
        """Groups that are complete and not handed on yet."""
        return self._complete.qsize() + len(self._early)

    @property
    def _ahead(self) -> int:
        """How many groups may have been accepted or be running, at the present version."""
        settings = self._settings
        return min(self._version + settings.max_staleness + 1, self._last_version) * settings.tasks_per_step

    @property
    def _full(self) -> bool:
        return self._episodes > 0 and self._episodes + self._settings.group_size > self.concurrency

    def _admit(self) -> None:
        while not self._full and self._accepted + len(self._running) < self._ahead:
            admission = next(self._admissions)
            self._admitted.append(admission.position)
            self._episodes += self._settings.group_size
            task = asyncio.create_task(self._play_group(admission), name=f"group of task {admission.task.id}")
            self._running.add(task)
            task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[Group]) -> None:
        self._running.discard(task)
        if not task.cancelled():
            # Only a group that trains fills the quota: one that broke is replaced by the next task.
            self._accepted += task.exception() is None and len(task.result().valid) >= 2
            self._complete.put_nowait(task)

    async def _play_group(self, admission: Admission) -> Group:
        before = self._recovered.pop(admission.position, ())
        async with asyncio.TaskGroup() as members:
            playing = [
                members.create_task(self._play_member(admission, member, before))
                for member in range(self._settings.group_size)
            ]
            if self._settings.group_quorum is not None:
                await self._close_at_quorum(admission, playing, self._settings.group_quorum)
        trajectories = tuple(task.result() for task in playing if not task.cancelled())
        return Group(admission.task, trajectories, position=admission.position, epoch=admission.epoch)

    async def _close_at_quorum(
        self, admission: Admission, playing: Sequence[asyncio.Task[Trajectory]], quorum: int
    ) -> None:
        pending, valid = set(playing), 0
        while pending and valid < quorum:
            done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            # A member that raised has already cancelled this wait, through the task group.
            valid += sum(task.result().outcome is not Outcome.FAILED for task in done)
        for task in pending:
            task.cancel()
        if pending:
            await asyncio.wait(pending)
            self._listener.closed(admission.position, admission.task, admission.epoch)

    async def _play_member(self, admission: Admission, member: int, before: Sequence[Trajectory]) -> Trajectory:
        first = SequenceId(task_id=admission.task.id, epoch=admission.epoch, member=member)
        attempts = {each.attempt: each for each in before if each.member == member}
        try:
            for attempt in range(self._settings.max_attempts):
                if attempt in attempts:
                    trajectory = attempts[attempt]
                else:
                    trajectory = await self._play(admission.task, replace(first, attempt=attempt))
                    self._observe(admission.position, trajectory)
                if trajectory.outcome is not Outcome.FAILED:
                    break
        finally:
            self._episodes -= 1
            self._admit_unless_closing()
        return trajectory

    def _admit_unless_closing(self) -> None:
        current = asyncio.current_task()
        if current is None or not current.cancelling():
            self._admit()

    def _observe(self, position: int, trajectory: Trajectory) -> None:
        count("episodes", outcome=trajectory.outcome.value)
        self._listener.ended(position, trajectory)
        self._failures.observe(trajectory)

    def _settle(self, group: Group) -> None:
        valid = len(group.valid) >= 2
        if not valid:
            self._listener.rejected(group)
        self._early[group.position] = group if valid else None

    def _in_order(self) -> Group | None:
        """The next group to hand on: by admission when the run must be reproducible, else whichever is complete."""
        while self._early:
            position = self._admitted[0] if self._settings.max_staleness == 0 else next(iter(self._early))
            if position not in self._early:
                return None
            self._admitted.remove(position)
            group = self._early.pop(position)
            if group is not None:
                return group
        return None


def _result(task: asyncio.Task[Group]) -> Group:
    """The group, or the error that ended it: a task group wraps it, and who reads it wants the very error."""
    try:
        return task.result()
    except BaseExceptionGroup as wrapped:
        raise wrapped.exceptions[0] from None


async def play_all(play: Play, sequences: list[tuple[Task, SequenceId]], *, max_concurrency: int) -> list[Trajectory]:
    """Play every (task, sequence) once, at most `max_concurrency` at a time; trajectories in the order given."""
    room = asyncio.Semaphore(max_concurrency)

    async def one(task: Task, sequence: SequenceId) -> Trajectory:
        async with room:
            return await play(task, sequence)

    async with asyncio.TaskGroup() as playing:
        tasks = [playing.create_task(one(task, sequence)) for task, sequence in sequences]
    return [task.result() for task in tasks]

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
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from typing import Annotated

from pydantic import Field

from components.config import config
from components.errors import ConfigError, Problem, RunStoppedError
from components.rollout.cursor import Admission
from components.telemetry.spans import count
from components.types import Group, Outcome, SequenceId, Task, Trajectory

Play = Callable[[Task, SequenceId], Awaitable[Trajectory]]


@config
class RolloutConfig:
    """`tasks_per_step` groups of `group_size` episodes feed one optimizer step; `max_concurrency` counts episodes.

    An episode that fails is tried `max_attempts` times in all; `max_failures_in_a_row` failed episodes stop the run.
    """

    group_size: Annotated[int, Field(ge=2)] = 8
    tasks_per_step: Annotated[int, Field(ge=1)] = 4
    max_concurrency: Annotated[int, Field(ge=1)] = 64
    max_staleness: Annotated[int, Field(ge=0)] = 0
    max_attempts: Annotated[int, Field(ge=1)] = 2
    max_failures_in_a_row: Annotated[int, Field(ge=1)] = 16

    def __post_init__(self) -> None:
        if self.max_concurrency < self.group_size:
            message = f"must be at least group_size ({self.group_size}), or no group can ever start"
            raise ConfigError(Problem(where="max_concurrency", value=self.max_concurrency, message=message))


class Orchestrator:
    """An asynchronous iterator of complete groups with at least two valid members; the others are only counted.

    Use it as a context manager: on leaving, episodes that still run are cancelled. `on_trajectory` is called with every
    finished attempt, failed ones too, in order of completion. A bug in `play` ends the iteration with that very error.
    """

    def __init__(
        self,
        play: Play,
        admissions: Iterator[Admission],
        settings: RolloutConfig,
        *,
        version: int = 0,
        last_version: int,
        on_trajectory: Callable[[Trajectory], None] = lambda trajectory: None,
        on_rejected: Callable[[Group], None] = lambda group: None,
    ) -> None:
        self._play = play
        self._admissions = admissions
        self._settings = settings
        self._version = version
        self._last_version = last_version
        self._on_trajectory = on_trajectory
        self._on_rejected = on_rejected
        self._accepted = version * settings.tasks_per_step
        self._running: set[asyncio.Task[Group]] = set()
        self._episodes = 0
        self._failures_in_a_row = 0
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

    @property
    def running_episodes(self) -> int:
        """Episodes that are being played now."""
        return self._episodes

    def _admit(self) -> None:
        settings = self._settings
        while True:
            ahead = min(self._version + settings.max_staleness + 1, self._last_version) * settings.tasks_per_step
            full = self._episodes + settings.group_size > settings.max_concurrency
            if full or self._accepted + len(self._running) >= ahead:
                return
            admission = next(self._admissions)
            self._admitted.append(admission.position)
            self._episodes += settings.group_size
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
        async with asyncio.TaskGroup() as members:
            playing = [
                members.create_task(self._play_member(admission, member)) for member in range(self._settings.group_size)
            ]
        trajectories = tuple(task.result() for task in playing)
        return Group(admission.task, trajectories, position=admission.position, epoch=admission.epoch)

    async def _play_member(self, admission: Admission, member: int) -> Trajectory:
        first = SequenceId(task_id=admission.task.id, epoch=admission.epoch, member=member)
        try:
            for attempt in range(self._settings.max_attempts):
                trajectory = await self._play(admission.task, replace(first, attempt=attempt))
                self._observe(trajectory)
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

    def _observe(self, trajectory: Trajectory) -> None:
        count("episodes", outcome=trajectory.outcome.value)
        self._on_trajectory(trajectory)
        if trajectory.failure is None:
            self._failures_in_a_row = 0
            return
        count("failed_episodes", kind=trajectory.failure.kind)
        self._failures_in_a_row += 1
        if self._failures_in_a_row >= self._settings.max_failures_in_a_row:
            raise RunStoppedError(
                f"{self._failures_in_a_row} episodes failed in a row (max_failures_in_a_row); the last one, a failure "
                f"of kind {trajectory.failure.kind!r}, said: {trajectory.failure.message}"
            )

    def _settle(self, group: Group) -> None:
        valid = len(group.valid) >= 2
        if not valid:
            self._on_rejected(group)
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

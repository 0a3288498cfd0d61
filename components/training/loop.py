"""Groups of trajectories, as they come -> optimizer steps, each proven, published and written down.

The loop lives on the event loop and does no work itself: gradients, proofs and checkpoints run on one worker thread, so
that tools are answered while the trainer computes. Everything it knows beyond the train state fits a checkpoint.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, ParamSpec, TypeVar

from components.rollout.cursor import TaskCursor
from components.rollout.orchestrator import Orchestrator, RolloutConfig
from components.rollout.session import Session
from components.telemetry.clock import BUSY, RoleClock, difference
from components.telemetry.progress import say
from components.telemetry.spans import span
from components.training.learner import Learner
from components.training.ledger import Fate, Ledger
from components.training.records import RunRecords, episode_numbers, version_numbers
from components.training.weight_sync import SyncProof, WeightSync
from components.types import Completion, Group, Outcome, Policy, SequenceId, Task, Trajectory

WAITING = "waiting for rollouts"
SYNC = "weight sync"
CHECKPOINT = "checkpoint"

P = ParamSpec("P")
T = TypeVar("T")


@dataclass
class Progress:
    """What a checkpoint holds beside the train state: optimizer steps made, the account, and what has been consumed.

    `consumed` are positions of tasks that were trained on (or given up) although an earlier one, `position`, was not.
    """

    version: int = 0
    position: int = 0
    consumed: set[int] = field(default_factory=set)
    ledger: Ledger = field(default_factory=Ledger)

    def consume(self, group: Group) -> None:
        """The group will not be played again."""
        self.consumed.add(group.position)
        while self.position in self.consumed:
            self.consumed.remove(self.position)
            self.position += 1


@dataclass(frozen=True, slots=True)
class _Reading:
    """The clocks and the account at one moment; a step's numbers are what lies between two of them."""

    moment: float
    trainer: dict[str, float]
    engine: dict[str, float]
    tokens: dict[str, int]


class TrainingLoop:
    """One run of optimizer steps, from `progress.version` to `steps`.

    `save` writes a checkpoint; it is called on the worker thread every `checkpoint_every` steps and after the last.
    """

    def __init__(
        self,
        session: Session,
        policy: Policy,
        learner: Learner,
        sync: WeightSync,
        cursor: TaskCursor,
        progress: Progress,
        records: RunRecords,
        *,
        rollout: RolloutConfig,
        steps: int,
        checkpoint_every: int,
        save: Callable[[Progress], None],
    ) -> None:
        self.progress = progress
        self.clock = RoleClock("trainer")
        self.proofs: list[SyncProof] = []
        self._session = session
        self._policy = policy
        self._learner = learner
        self._sync = sync
        self._cursor = cursor
        self._records = records
        self._rollout = rollout
        self._steps = steps
        self._checkpoint_every = checkpoint_every
        self._save = save
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="trainer")

    async def run(self) -> None:
        """Make the steps. Leaves nothing in flight, and no thread, however it ends."""
        try:
            await self._prove_start()
            async with self._orchestrator() as orchestrator:
                while self.progress.version < self._steps:
                    await self._step(orchestrator)
        finally:
            self.progress.ledger.abandon()
            self._worker.shutdown()

    def _orchestrator(self) -> Orchestrator:
        return Orchestrator(
            self._play,
            self._cursor,
            self._rollout,
            version=self.progress.version,
            last_version=self._steps,
            on_trajectory=self._on_trajectory,
            on_rejected=self._on_rejected,
        )

    async def _prove_start(self) -> None:
        """The adapter that the run starts from is proven like every later one."""
        with self.clock.during(SYNC):
            proof = await self._work(self._sync.publish, self._learner.state.adapter, self.progress.version)
        self.proofs.append(proof)

    async def _step(self, orchestrator: Orchestrator) -> None:
        before = self._reading()
        groups = await self._consume(orchestrator)
        learned = await self._work(self._learner.finish)
        self.progress.version += 1
        with self.clock.during(SYNC):
            proof = await self._work(self._sync.publish, self._learner.state.adapter, self.progress.version)
        self.proofs.append(proof)
        orchestrator.advance(self.progress.version)
        self.progress.ledger.check()
        step = self.progress.version
        if step % self._checkpoint_every == 0 or step == self._steps:
            with self.clock.during(CHECKPOINT):
                await self._work(self._save, self.progress)
        numbers = learned | self._numbers(groups, proof, before, self._reading())
        self._records.step(step, numbers, groups)
        say(_line(step, self._steps, numbers))

    async def _consume(self, orchestrator: Orchestrator) -> list[Group]:
        """Turn the groups of one optimizer step into gradients, each as it arrives."""
        groups: list[Group] = []
        while len(groups) < self._rollout.tasks_per_step:
            self.clock.switch(WAITING)
            group = await anext(orchestrator)
            self.clock.switch(BUSY)
            fate = await self._work(self._learner.add, group)
            self._settle(group.valid, fate)
            self.progress.consume(group)
            groups.append(group)
        return groups

    async def _play(self, task: Task, sequence: SequenceId) -> Trajectory:
        with span("episode", task=task.id, member=sequence.member):
            return await self._session.player.play(self._counted_policy, task, sequence)

    async def _counted_policy(self, prompt_ids: Sequence[int], *, sequence: SequenceId, max_tokens: int) -> Completion:
        completion = await self._policy(prompt_ids, sequence=sequence, max_tokens=max_tokens)
        self.progress.ledger.sampled(sequence, len(completion.token_ids))
        return completion

    def _on_trajectory(self, trajectory: Trajectory) -> None:
        if trajectory.outcome is Outcome.FAILED:
            self.progress.ledger.settle(trajectory, Fate.FAILED)
            self._records.failed(trajectory)

    def _on_rejected(self, group: Group) -> None:
        self._settle(group.valid, Fate.FILTERED)
        self.progress.consume(group)

    def _settle(self, trajectories: Sequence[Trajectory], fate: Fate) -> None:
        for trajectory in trajectories:
            self.progress.ledger.settle(trajectory, fate)

    def _reading(self) -> _Reading:
        engine = self._session.engine.statistics()
        return _Reading(time.perf_counter(), self.clock.totals(), engine.seconds, self.progress.ledger.tokens())

    def _numbers(self, groups: list[Group], proof: SyncProof, before: _Reading, after: _Reading) -> dict[str, Any]:
        return {
            **episode_numbers([member for group in groups for member in group.trajectories]),
            **version_numbers(groups, self.progress.version - 1),
            # What is in flight is a level; the others are what this step added.
            "tokens": {**difference(after.tokens, before.tokens), "in_flight": after.tokens["in_flight"]},
            "tokens_generated_so_far": after.tokens["generated"],
            "trainer_seconds": difference(after.trainer, before.trainer),
            "engine_seconds": difference(after.engine, before.engine),
            "seconds": after.moment - before.moment,
            "canary_difference": proof.canary_difference,
            "delta_norm": proof.delta_norm,
            "sync_seconds": proof.seconds,
        }

    async def _work(self, function: Callable[P, T], *arguments: P.args, **keywords: P.kwargs) -> T:
        assert not keywords, "run_in_executor takes none"
        return await asyncio.get_running_loop().run_in_executor(self._worker, function, *arguments)


def _line(step: int, steps: int, numbers: dict[str, Any]) -> str:
    waiting = numbers["trainer_seconds"].get(WAITING, 0.0)
    failed = sum(numbers["failures"].values())
    return (
        f"step {step:>{len(str(steps))}}/{steps}  reward {numbers['reward_mean']:.3f}  "
        f"generated {numbers['tokens_generated_so_far']} tokens  {numbers['seconds']:.1f} s, waiting {waiting:.1f} s"
        + (f"  {failed} episodes failed" if failed else "")
    )

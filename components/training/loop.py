"""Groups of trajectories, as they come -> optimizer steps, each proven, published and written down.

The loop lives on the event loop and does no work itself: gradients, proofs and checkpoints run on one worker thread, so
that tools are answered while the trainer computes. Whatever happens becomes an event of the run's history and a line of
its journal, in the moment in which it happens: from these a killed run is gone on with.
"""

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ParamSpec, Protocol, TypeVar, runtime_checkable

from components import storage
from components.errors import RunStoppedError
from components.model.compile_time import charge_compilation
from components.model.roofline import peak_operations, step_operations
from components.rollout.collector import rare_collections
from components.rollout.concurrency import AutoConcurrency
from components.rollout.cursor import TaskCursor
from components.rollout.orchestrator import Listener, Orchestrator, RolloutConfig
from components.rollout.session import Session
from components.telemetry.clock import BUSY, RoleClock, idle_share, is_waiting
from components.telemetry.loop_lag import LoopLag
from components.telemetry.progress import say
from components.telemetry.spans import counters
from components.training.history import (
    Closed,
    Consumed,
    Ended,
    Event,
    History,
    Member,
    Opened,
    Rejected,
    Resumed,
    Sampled,
    Stepped,
    member_of,
)
from components.training.journal_lines import version_runs
from components.training.learner import Learner
from components.training.ledger import Fate
from components.training.profiling import Profiler
from components.training.readings import Reading, step_numbers
from components.training.records import RunRecords, episode_numbers, version_numbers
from components.training.selection import SelectionMonitor
from components.training.stalls import Stalls
from components.training.update import TrainState
from components.training.weight_sync import SyncProof, WeightSync, fingerprint
from components.types import Completion, Group, Outcome, Policy, SequenceId, Task, Trajectory

SYNC = "weight sync"
CHECKPOINT = "checkpoint"

P = ParamSpec("P")
T = TypeVar("T")


@runtime_checkable
class Recorder(Protocol):
    """Where events go; see `training/journal.py`."""

    def append(self, event: Event) -> None:
        """Add one. Does not wait."""
        ...


def begin(history: History, journal: Recorder, opening: Opened) -> None:
    """Write down that a run begins, or that another process goes on with it."""
    event = Resumed(history.version) if history.events else opening
    if history.events:
        say(f"resumed after step {history.version}; {len(history.unsettled)} groups are partly or wholly played")
    history.apply(event)
    journal.append(event)


@dataclass(frozen=True, slots=True)
class RunPlan:
    """How long a run is, and how often it saves. `grace_seconds` is the time that a checkpoint has after a stop."""

    steps: int
    checkpoint_every: int
    grace_seconds: float = 10.0


Save = Callable[[int, TrainState, Mapping[str, Any]], None]


class TrainingLoop:
    """One run of optimizer steps, from `history.version` to `plan.steps`.

    `save` writes a checkpoint of a step, a state and the history's facts; it is called on the worker thread, every
    `checkpoint_every` steps, after the last, and when the run is stopped.
    """

    def __init__(
        self,
        session: Session,
        policy: Policy,
        learner: Learner,
        sync: WeightSync,
        cursor: TaskCursor,
        history: History,
        journal: Recorder,
        records: RunRecords,
        *,
        rollout: RolloutConfig,
        plan: RunPlan,
        save: Save,
        profiler: Profiler,
    ) -> None:
        self.history = history
        self.clock = RoleClock("trainer")
        self.proofs: list[SyncProof] = []
        self._session = session
        self._policy = policy
        self._learner = learner
        self._sync = sync
        self._cursor = cursor
        self._journal = journal
        self._records = records
        self._rollout = rollout
        self._plan = plan
        self._save = save
        self._profiler = profiler
        self._saved = history.version
        self._selection = SelectionMonitor()
        self._stalls = Stalls(self.clock, session.engine)
        self._lag = LoopLag()
        self._auto = AutoConcurrency(
            group_size=rollout.group_size, tasks_per_step=rollout.tasks_per_step, max_staleness=rollout.max_staleness
        )
        self._stop = asyncio.Event()
        self._stop_reason = ""
        self._worker = ThreadPoolExecutor(
            1, thread_name_prefix="trainer", initializer=charge_compilation, initargs=(self.clock,)
        )

    async def run(self) -> None:
        """Make the steps. Leaves nothing in flight, and no thread, however it ends.

        Raises RunStoppedError when `stop` was called before the last step.
        """
        try:
            await self._prove_start()
            with rare_collections():
                async with self._lag, self._orchestrator() as orchestrator:
                    await self._until_stopped(orchestrator)
        finally:
            self._profiler.close()
            self.history.ledger.abandon()
            # After a stop that outlasted the grace period, nobody waits for what is still being computed.
            self._worker.shutdown(wait=not self._stop.is_set(), cancel_futures=True)
        if self.history.version < self._plan.steps:
            raise RunStoppedError(
                f"{self._stop_reason}: stopped after step {self.history.version} of {self._plan.steps}; nothing is "
                "lost, and the same command goes on from here"
            )

    def stop(self, reason: str) -> None:
        """End at the next moment between two pieces of work. Called on the event loop."""
        storage.hurry(self._plan.grace_seconds)
        self._stop_reason = reason
        self._stop.set()

    def _orchestrator(self) -> Orchestrator:
        orchestrator = Orchestrator(
            self._play,
            self._cursor,
            self._rollout,
            version=self.history.version,
            last_version=self._plan.steps,
            listener=Listener(ended=self._on_ended, closed=self._on_closed, rejected=self._on_rejected),
            recovered=self.history.unsettled,
        )
        if self._rollout.max_staleness == 0:
            # A context that lost its slot is computed again, with other last bits: a reproducible run keeps them all.
            orchestrator.concurrency = min(orchestrator.concurrency, self._session.engine.config.slots)
        return orchestrator

    async def _prove_start(self) -> None:
        """The adapter that the run starts from is proven like every later one."""
        with self.clock.during(SYNC):
            proof = await self._work(self._sync.publish, self._learner.state.adapter, self.history.version)
        self.proofs.append(proof)

    async def _until_stopped(self, orchestrator: Orchestrator) -> None:
        """Make steps to the end, or until `stop`: then what is being computed is finished, within the grace period."""
        steps = asyncio.ensure_future(self._steps(orchestrator))
        stopped = asyncio.ensure_future(self._stop.wait())
        try:
            await asyncio.wait((steps, stopped), return_when=asyncio.FIRST_COMPLETED)
            if not steps.done():
                say(f"{self._stop_reason}: saving what is done, up to step {self.history.version}")
                deadline = time.monotonic() + self._plan.grace_seconds
                await asyncio.wait((steps,), timeout=self._plan.grace_seconds)
                await self._save_within(deadline - time.monotonic(), idle=steps.done())
            if steps.done():
                steps.result()
        finally:
            stopped.cancel()
            steps.cancel()

    async def _save_within(self, seconds: float, *, idle: bool) -> None:
        """A checkpoint only shortens the next start: whatever it would hold can be computed again from the journal."""
        if self._saved == self.history.version:
            return
        try:
            if not idle:
                raise TimeoutError
            await asyncio.wait_for(self._checkpoint(), seconds)
        except TimeoutError:
            say(f"no checkpoint within {self._plan.grace_seconds:g} s; the next start computes from the journal")

    async def _steps(self, orchestrator: Orchestrator) -> None:
        before = self._reading()
        while self.history.version < self._plan.steps and not self._stop.is_set():
            self._profiler.before(self.history.version + 1)
            groups = await self._consume(orchestrator)
            if len(groups) < self._rollout.tasks_per_step:
                return
            learned = await self._work(self._learner.finish)
            # Written down before it serves, so that no token of this version is recorded before the version is.
            self._record(Stepped(self.history.version + 1, await self._work(fingerprint, self._learner.state.adapter)))
            proof = await self._publish(orchestrator)
            after = self._reading()
            numbers = learned | self._numbers(groups, proof, before, after)
            self._write_down(numbers | {"concurrency": orchestrator.concurrency}, groups)
            self._adapt(orchestrator, numbers)
            before = after
            step = self.history.version
            self._profiler.after(step)
            if step % self._plan.checkpoint_every == 0 or step == self._plan.steps:
                await self._checkpoint()

    async def _publish(self, orchestrator: Orchestrator) -> SyncProof:
        """Prove the present version and serve it; the next tasks may start."""
        with self._during(SYNC):
            proof = await self._work(self._sync.publish, self._learner.state.adapter, self.history.version)
        self.proofs.append(proof)
        orchestrator.advance(self.history.version)
        self.history.ledger.check()
        return proof

    def _adapt(self, orchestrator: Orchestrator, numbers: Mapping[str, Any]) -> None:
        if self._rollout.max_concurrency == "auto" and self._rollout.max_staleness > 0:
            orchestrator.concurrency = self._auto.update(
                trainer_waited=idle_share(numbers["trainer_seconds"]),
                recomputed=numbers["recomputed_share"],
                queued=numbers["queued_share"],
            )

    async def _checkpoint(self) -> None:
        with self._during(CHECKPOINT):
            version, facts = self.history.version, self.history.facts()
            await self._work(self._save, version, self._learner.state, facts)
            self._saved = version

    @contextmanager
    def _during(self, state: str) -> Iterator[None]:
        with self.clock.during(state):
            self._stalls.settle()
            yield
        self._stalls.settle()

    async def _consume(self, orchestrator: Orchestrator) -> list[Group]:
        """Turn the groups of one optimizer step into gradients, each as it arrives. Fewer come back after a stop."""
        groups: list[Group] = []
        while len(groups) < self._rollout.tasks_per_step:
            group = await self._next(orchestrator)
            if group is None:
                break
            self._stalls.consumed(group, self.history.version + 1)
            stale = self._stale(group)
            group = _without(group, stale)
            if len(group.valid) < 2 or self._learner.refuses(group):
                self._record(Rejected(group.position, stale))
                orchestrator.replace()
                continue
            fate = await self._work(self._learner.add, group)
            members = tuple(member_of(trajectory) for trajectory in group.valid)
            self._record(Consumed(group.position, members, fate, stale))
            groups.append(group)
            for trajectory in group.valid if fate is Fate.TRAINED else ():
                self._selection.trained(trajectory)
        return groups

    async def _next(self, orchestrator: Orchestrator) -> Group | None:
        """The next group, or None when the run is stopped first."""
        group = asyncio.ensure_future(anext(orchestrator))
        stopped = asyncio.ensure_future(self._stop.wait())
        self._stalls.begin(crowded=orchestrator.crowded)
        done, _ = await asyncio.wait((group, stopped), timeout=0)
        if not done:
            self._session.trainer_waits(True)
            await asyncio.wait((group, stopped), return_when=asyncio.FIRST_COMPLETED)
        self._session.trainer_waits(orchestrator.buffered_groups == 0)
        stopped.cancel()
        if not group.done():
            group.cancel()
            self._stalls.end(BUSY, None)
            return None
        self._stalls.end(BUSY, group.result())
        return group.result()

    def _stale(self, group: Group) -> tuple[Member, ...]:
        """Members that the recipe calls too old to be trained on."""
        bound = self._rollout.drop_older_than
        if bound is None:
            return ()
        return tuple(member_of(each) for each in group.valid if self.history.version - each.oldest_version > bound)

    async def _play(self, task: Task, sequence: SequenceId) -> Trajectory:
        try:
            return await self._session.player.play(self._counted_policy, task, sequence, self._stalls.open(sequence))
        finally:
            self._session.engine.forget(sequence)

    async def _counted_policy(self, prompt_ids: Sequence[int], *, sequence: SequenceId, max_tokens: int) -> Completion:
        completion = await self._policy(prompt_ids, sequence=sequence, max_tokens=max_tokens)
        self._record(Sampled(sequence, version_runs(completion.versions)))
        return completion

    def _on_ended(self, position: int, trajectory: Trajectory) -> None:
        self._record(Ended(position, trajectory))
        self._selection.dispatched(trajectory)
        if trajectory.outcome is Outcome.FAILED:
            self._records.failed(trajectory)

    def _on_closed(self, position: int, task: Task, epoch: int) -> None:
        self._record(Closed(position, task.id, epoch))

    def _on_rejected(self, group: Group) -> None:
        self._stalls.consumed(group, self.history.version + 1)
        self._record(Rejected(group.position))

    def _record(self, event: Event) -> None:
        self.history.apply(event)
        self._journal.append(event)

    def _write_down(self, numbers: dict[str, Any], groups: Sequence[Group]) -> None:
        step = self.history.version
        self._records.step(step, numbers, groups, self._learner.logprobs)
        say(_line(step, self._plan.steps, numbers))
        if not numbers["trained_tokens"]:
            say(f"step {step}: nothing was trained, as the rewards of each group were all equal")

    def _reading(self) -> Reading:
        engine = self._session.engine.statistics()
        counted = counters()
        operations = step_operations(
            self._session.model.architecture,
            int(counted.get("trainer_tokens", 0)),
            int(counted.get("trainer_sampled", 0)),
        )
        tokens = self.history.ledger.tokens()
        return Reading(time.perf_counter(), self.clock.totals(), engine, tokens, operations)

    def _numbers(self, groups: list[Group], proof: SyncProof, before: Reading, after: Reading) -> dict[str, Any]:
        return {
            **episode_numbers([member for group in groups for member in group.trajectories]),
            **version_numbers(groups, self.history.version - 1),
            **self._selection.numbers(),
            **self._stalls.queue_numbers(),
            "environments": {self._session.player.name: self._stalls.environment_numbers()},
            "groups": len(groups),
            **step_numbers(before, after, slots=self._session.engine.config.slots, peak=peak_operations()),
            "canary_difference": proof.canary_difference,
            "delta_norm": proof.delta_norm,
            "sync_seconds": proof.seconds,
            # The longest time so far in which tools went unanswered because something held up the event loop.
            "loop_lag_seconds_worst": self._lag.worst_seconds,
        }

    async def _work(self, function: Callable[P, T], *arguments: P.args, **keywords: P.kwargs) -> T:
        assert not keywords, "run_in_executor takes none"
        return await asyncio.get_running_loop().run_in_executor(self._worker, function, *arguments)


def _without(group: Group, members: Sequence[Member]) -> Group:
    if not members:
        return group
    kept = tuple(each for each in group.trajectories if member_of(each) not in members)
    return Group(group.task, kept, position=group.position, epoch=group.epoch)


def _line(step: int, steps: int, numbers: dict[str, Any]) -> str:
    waiting = sum(seconds for state, seconds in numbers["trainer_seconds"].items() if is_waiting(state))
    failed = sum(numbers["failures"].values())
    return (
        f"step {step:>{len(str(steps))}}/{steps}  reward {numbers['reward_mean']:.3f}  "
        f"generated {numbers['tokens_generated_so_far']} tokens  {numbers['seconds']:.1f} s, waiting {waiting:.1f} s"
        + (f"  {failed} failed" if failed else "")
    )

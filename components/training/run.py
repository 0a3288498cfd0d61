"""Tasks, a base and an adapter on a disk -> a better adapter on the disk: the train step, put together.

Everything is checked before the first token is sampled. A run that was killed is gone on with by the same command: it
loses the optimizer step that was open, and with `max_staleness` 0 it ends with the very bits of an uninterrupted run.
"""

import asyncio
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from components import storage
from components.algorithms.objective import Objective, ObjectiveConfig
from components.config import config, dump, from_json
from components.engine.core import EngineConfig
from components.engine.sampling import SamplingConfig
from components.errors import ConfigError, Problem, ProofError
from components.model.base_artifact import read_base
from components.model.lockstep import on_host
from components.model.lora import Adapter
from components.model.peft import WEIGHTS_FILE, read_config, save_adapter
from components.model.placement import MeshConfig, PlacementConfig, Placements, make_placements, placement_of
from components.model.platform import hardware
from components.model.remat import Remat
from components.model.weights import Model
from components.rollout.cursor import TaskCursor
from components.rollout.orchestrator import RolloutConfig
from components.rollout.player import EnvironmentConfig
from components.rollout.prepare import read_tasks
from components.rollout.session import Session, open_session
from components.rollout.tokenizer import Tokenizer
from components.storage import sole_process
from components.telemetry.alerts import Alerts
from components.telemetry.clock import idle_share
from components.telemetry.failure import notes_failure
from components.telemetry.metrics import read_metrics
from components.telemetry.outlets.opened import TelemetryConfig, open_outlets
from components.telemetry.outlets.outlet import Outlets
from components.telemetry.progress import say
from components.telemetry.refresh import Refresher
from components.telemetry.run_files import METRICS, update_summary
from components.telemetry.trace import write_trace
from components.training.canaries import make_weight_sync
from components.training.checkpoint import Checkpoints
from components.training.critic import CriticConfig, make_critic
from components.training.history import Event, History, Opened, Step
from components.training.interruption import run_until_interrupted
from components.training.journal import Journal, read_journal
from components.training.learner import Learner
from components.training.loop import RunPlan, TrainingLoop, begin
from components.training.optimizer import OptimizerConfig, make_optimizer
from components.training.packing import PackingConfig, check_row_length
from components.training.profiling import Profiler, StepRange
from components.training.records import RunRecords, episode_numbers
from components.training.resume import check_opening, resume
from components.training.update import TrainState, init_state, make_accumulate, make_apply, make_score
from components.types import Task

LOCK = "train.lock"
LOCK_SECONDS = 5.0
"""How much longer than its grace period another process is waited for that is about to end."""


@config
class TrainConfig:
    """`steps` optimizer steps. A checkpoint is written every `checkpoint_every` of them, and the newest are kept.

    `sync_tolerance` bounds how far, in nats, trainer and engine may differ on a canary before a version serves.
    `grace_seconds` is the time to save that a process has which is told to stop (SIGTERM).
    `mesh` splits what trainer and engine share over several devices; `placement` gives each side a mesh of its own.
    Without either both share the default device. `critic` is for an objective that needs one, which has one without it,
    too. `remat` is what the backward pass keeps of the forward pass: `full` the least, `none` the most, in less time.
    """

    steps: Annotated[int, Field(ge=1, lt=2**31)]
    rollout: RolloutConfig = RolloutConfig()
    sampling: SamplingConfig = SamplingConfig()
    engine: EngineConfig = EngineConfig()
    objective: ObjectiveConfig = ObjectiveConfig()
    critic: CriticConfig | None = None
    optimizer: OptimizerConfig = OptimizerConfig()
    packing: PackingConfig = PackingConfig()
    checkpoint_every: Annotated[int, Field(ge=1)] = 5
    checkpoints_kept: Annotated[int, Field(ge=1)] = 2
    sync_tolerance: Annotated[float, Field(gt=0)] = 1e-3
    grace_seconds: Annotated[float, Field(ge=0)] = 10.0
    telemetry: TelemetryConfig = TelemetryConfig()
    mesh: MeshConfig | None = None
    placement: PlacementConfig | None = None
    remat: Remat = "full"

    def __post_init__(self) -> None:
        objective, problems = Objective.from_config(self.objective), []
        if self.critic is not None and not objective.needs_critic:
            message = f"has no effect unless objective.advantage is gae, and it is {objective.advantage}"
            problems.append(Problem("train.critic", self.critic, message))
        if objective.minibatches > self.rollout.episodes_per_step:
            episodes = f"{self.rollout.tasks_per_step} x {self.rollout.group_size} = {self.rollout.episodes_per_step}"
            message = f"is more than the {episodes} episodes of an optimizer step; a minibatch has at least one"
            problems.append(Problem("train.objective.minibatches", objective.minibatches, message))
        if problems:
            raise ConfigError(problems)

    def profiled_steps(self) -> StepRange | None:
        """The steps of which a device timeline is wanted. Raises ConfigError for a range that is none."""
        text = self.telemetry.profile_steps
        return StepRange.parse(text, "train.telemetry.profile_steps") if text else None

    def sides(self) -> Placements:
        """Where trainer and engine live. Raises ConfigError where there are too few devices, or rows are uneven."""
        sides = make_placements(self.mesh, self.placement)
        sides.trainer.check_rows(self.packing.rows, "packing.rows")
        sides.engine.check_rows(self.engine.slots, "engine.slots")
        return sides


@notes_failure("train")
def train(
    *,
    section: str,
    environment: str,
    seed: int,
    run_folder: str,
    tasks: str,
    base: str,
    adapter: str,
    trained: str,
) -> dict[str, Any]:
    """Train and write the adapter to the folder `trained`; gives what the run's summary keeps of this step.

    Raises ConfigError, DataError, WeightsError, CheckpointError or ConflictError before any work, ProofError or
    RunStoppedError in it.
    """
    settings = from_json(TrainConfig, section, where="train")
    world = from_json(EnvironmentConfig, environment, where="environment")
    check_row_length(settings.packing, world.limits.max_context)
    settings.profiled_steps()
    sides = settings.sides()
    problems = read_tasks(tasks, "train")
    cursor = TaskCursor(problems, seed=seed)
    start, lora = Path(adapter), read_config(Path(adapter))
    inputs = {"tasks": Path(tasks), "base": Path(base), "adapter": start}
    opening = _opening(inputs, settings, world, seed, cursor)
    by_id = {task.id: task for task in problems}
    check_opening(next(read_journal(run_folder, by_id), opening), opening)
    patience = settings.grace_seconds + LOCK_SECONDS
    with (
        sole_process(storage.join(run_folder, LOCK), patience=patience, on_wait=say),
        open_session(
            base=Path(base),
            adapter=start,
            environment=world,
            engine=settings.engine,
            seed=seed,
            sides=sides,
            reproducible=settings.rollout.max_staleness == 0,
        ) as session,
    ):
        learner = make_learner(session.model, session.adapter, settings, seed)
        checkpoints = Checkpoints(storage.join(run_folder, "checkpoints"), keep=settings.checkpoints_kept)
        journal = Journal(run_folder)
        watchers = _Watchers.open(run_folder, settings.telemetry, opening, world)
        events = read_journal(run_folder, by_id)
        history, records = _resume(run_folder, events, checkpoints, learner, session.tokenizer, watchers)
        _refuse_fewer_steps(settings.steps, history.version)
        cursor.resume(history.position, cursor.fingerprint, done=history.done)
        with journal, records:
            begin(history, journal, opening)
            profiler = Profiler(run_folder, settings.profiled_steps())
            loop = _loop(session, settings, learner, problems, cursor, history, journal, records, checkpoints, profiler)
            try:
                asyncio.run(run_until_interrupted(loop))
            except ProofError as error:
                update_summary(run_folder, {"alerts": [*map(str, watchers.alerts.told), f"sync proof: {error}"]})
                raise
        summary = _summary(loop, session, settings, world)
        save_adapter(Path(trained), on_host(learner.state.adapter), lora, base_name=str(base))
    write_trace(storage.join(run_folder, "trace.json"))
    update_summary(run_folder, summary)
    return summary


def make_learner(model: Model, adapter: Adapter, settings: TrainConfig, seed: int) -> Learner:
    """A learner at step 0, starting from `adapter`, in a run of this seed."""
    objective = Objective.from_config(settings.objective)
    optimizer = make_optimizer(settings.optimizer, settings.steps)
    temperature = settings.sampling.temperature or 1.0
    state, critic = placement_of(adapter).weights(init_state(adapter, optimizer)), None
    if objective.needs_critic:
        judged, critic = make_critic(
            settings.critic or CriticConfig(),
            model.architecture,
            adapter,
            optimizer=settings.optimizer,
            steps=settings.steps,
            value_clip=objective.value_clip,
            seed=seed,
        )
        state = dataclasses.replace(state, critic=judged)
    return Learner(
        model.base,
        state,
        objective,
        settings.packing,
        accumulate=make_accumulate(model.architecture, objective, temperature=temperature, remat=settings.remat),
        apply=make_apply(optimizer),
        score=make_score(model.architecture, temperature=temperature),
        max_skipped=settings.optimizer.max_skipped,
        critic=critic,
        seed=seed,
    )


def _opening(
    inputs: Mapping[str, Path], settings: TrainConfig, world: EnvironmentConfig, seed: int, cursor: TaskCursor
) -> Opened:
    """What a later process compares itself with, and what a replay needs."""
    return Opened(
        settings={"seed": seed, "environment": dump(world), "train": dump(settings)},
        inputs={name: str(folder.absolute()) for name, folder in inputs.items()},
        fingerprints={
            "tasks": cursor.fingerprint,
            "base": read_base(inputs["base"]).fingerprint,
            "adapter": storage.checksum(inputs["adapter"] / WEIGHTS_FILE)[:16],
        },
    )


def _refuse_fewer_steps(steps: int, made: int) -> None:
    if steps < made:
        raise ConfigError(Problem("train.steps", steps, f"the run has already made {made} steps; give so many or more"))


def _fates(by_version: Mapping[int, Mapping[str, int]]) -> dict[str, dict[str, int]]:
    """As JSON keeps it: versions as text, and fates only."""
    return {
        str(version): {fate: amount for fate, amount in tokens.items() if fate != "generated"}
        for version, tokens in by_version.items()
    }


@dataclasses.dataclass(frozen=True, slots=True)
class _Watchers:
    """Who looks at each step's numbers."""

    reports: Refresher
    alerts: Alerts
    outlets: Outlets

    @classmethod
    def open(cls, run_folder: str, settings: TelemetryConfig, opening: Opened, world: EnvironmentConfig) -> "_Watchers":
        outlets = open_outlets(
            settings,
            run_folder,
            model=Path(opening.inputs["base"]).name,
            environment=world.use,
            parameters=opening.settings,
        )
        return cls(Refresher(run_folder), Alerts(settings.alerts), outlets)


def _resume(
    run_folder: str,
    events: Iterator[Event],
    checkpoints: Checkpoints,
    learner: Learner,
    tokenizer: Tokenizer,
    watchers: _Watchers,
) -> tuple[History, RunRecords]:
    """Where the run stands, and its records without a gap: a kill may have come before a step's line was written."""
    recorded = {line["step"] for line in read_metrics(storage.join(run_folder, METRICS))}
    missing: list[tuple[Step, dict[str, Any]]] = []

    def on_step(step: Step, numbers: Mapping[str, float]) -> None:
        if step.version not in recorded:
            missing.append((step, dict(numbers)))

    history = resume(events, checkpoints, learner, on_step=on_step)
    records = RunRecords(
        run_folder,
        resumed_after=history.version or None,
        tokenizer=tokenizer,
        reports=watchers.reports,
        alerts=watchers.alerts,
        outlets=watchers.outlets,
    )
    for step, numbers in missing:
        trajectories = [member for group in step.groups for member in group.trajectories]
        records.step(step.version, numbers | episode_numbers(trajectories), step.groups)
    return history, records


def _loop(
    session: Session,
    settings: TrainConfig,
    learner: Learner,
    problems: Sequence[Task],
    cursor: TaskCursor,
    history: History,
    journal: Journal,
    records: RunRecords,
    checkpoints: Checkpoints,
    profiler: Profiler,
) -> TrainingLoop:
    def save(version: int, state: TrainState, facts: Mapping[str, Any]) -> None:
        # A checkpoint must not know of an event that the journal, or of a step that the records could lose.
        journal.flush()
        records.flush()
        checkpoints.save(version, state, facts)

    return TrainingLoop(
        session,
        session.policy(settings.sampling),
        learner,
        make_weight_sync(session, problems, tolerance=settings.sync_tolerance),
        cursor,
        history,
        journal,
        records,
        rollout=settings.rollout,
        plan=RunPlan(settings.steps, settings.checkpoint_every, settings.grace_seconds),
        save=save,
        profiler=profiler,
    )


def _summary(loop: TrainingLoop, session: Session, settings: TrainConfig, world: EnvironmentConfig) -> dict[str, Any]:
    trainer, engine = loop.clock.totals(), session.engine.statistics()
    last = loop.proofs[-1]
    return {
        "steps": settings.steps,
        "hardware": hardware(),
        "tokens": loop.history.ledger.tokens(),
        "tokens_by_version": {world.use: _fates(loop.history.ledger.by_version())},
        "trainer_seconds": trainer,
        "engine_seconds": engine.seconds,
        "trainer_idle_share": idle_share(trainer),
        "engine_idle_share": idle_share(engine.seconds),
        "objective": Objective.from_config(settings.objective).describe(),
        "renderer": str(session.player.choice),
        "proofs": {
            "sync": {
                "versions": len(loop.proofs),
                "worst_canary_difference": max(proof.canary_difference for proof in loop.proofs),
                "last": last.as_dict(),
            }
        },
    }

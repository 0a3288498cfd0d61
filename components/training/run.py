"""Tasks, a base and an adapter on a disk -> a better adapter on the disk: the train step, put together.

Everything is checked before the first token is sampled. A checkpoint in the run folder is gone on from: the same
command after a kill continues, and with `max_staleness` 0 ends with the very bits of an uninterrupted run.
"""

import asyncio
import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from jaxtyping import Float
from pydantic import Field

from components import storage
from components.algorithms.objective import Objective, ObjectiveConfig
from components.config import config, from_json
from components.engine.core import EngineConfig
from components.engine.sampling import SamplingConfig
from components.errors import CheckpointError
from components.model.lora import Adapter, module_names
from components.model.peft import read_config, save_adapter
from components.rollout.cursor import TaskCursor
from components.rollout.orchestrator import RolloutConfig
from components.rollout.player import EnvironmentConfig
from components.rollout.prepare import read_tasks
from components.rollout.session import Session, open_session
from components.telemetry.clock import idle_share
from components.telemetry.progress import say
from components.telemetry.run_files import update_summary
from components.telemetry.spans import write_trace
from components.training.checkpoint import Checkpoints
from components.training.learner import Learner
from components.training.loop import Progress, TrainingLoop
from components.training.optimizer import OptimizerConfig, make_optimizer
from components.training.packing import Packer, PackingConfig, check_row_length
from components.training.records import RunRecords
from components.training.update import Score, init_state, make_accumulate, make_apply, make_score
from components.training.weight_sync import Canaries, TrainerScore, WeightSync
from components.types import Sample, Task

CANARIES = 3
CANARY_TOKENS = 32


@config
class TrainConfig:
    """`steps` optimizer steps. A checkpoint is written every `checkpoint_every` of them, and the newest are kept.

    `sync_tolerance` bounds how far, in nats, trainer and engine may differ on a canary before a version serves.
    """

    steps: Annotated[int, Field(ge=1)]
    rollout: RolloutConfig = RolloutConfig()
    sampling: SamplingConfig = SamplingConfig()
    engine: EngineConfig = EngineConfig()
    objective: ObjectiveConfig = ObjectiveConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    packing: PackingConfig = PackingConfig()
    checkpoint_every: Annotated[int, Field(ge=1)] = 5
    checkpoints_kept: Annotated[int, Field(ge=1)] = 2
    sync_tolerance: Annotated[float, Field(gt=0)] = 1e-3


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

    Raises ConfigError, DataError, WeightsError or CheckpointError before any work, ProofError or RunStoppedError in it.
    """
    settings = from_json(TrainConfig, section, where="train")
    world = from_json(EnvironmentConfig, environment, where="environment")
    check_row_length(settings.packing, world.limits.max_context)
    problems = read_tasks(tasks, "train")
    start, lora = Path(adapter), read_config(Path(adapter))
    with open_session(base=Path(base), adapter=start, environment=world, engine=settings.engine, seed=seed) as session:
        loop, learner = _assemble(session, settings, problems, seed, run_folder, section + environment)
        asyncio.run(loop.run())
        summary = _summary(loop, session, settings)
        save_adapter(Path(trained), learner.state.adapter, lora, base_name=str(base))
    write_trace(storage.join(run_folder, "trace.json"))
    update_summary(run_folder, summary)
    return summary


def _assemble(
    session: Session, settings: TrainConfig, problems: Sequence[Task], seed: int, run_folder: str, identity: str
) -> tuple[TrainingLoop, Learner]:
    cursor = TaskCursor(problems, seed=seed)
    checkpoints = Checkpoints(storage.join(run_folder, "checkpoints"), keep=settings.checkpoints_kept)
    recipe_hash = hashlib.sha256(f"{identity} seed {seed}".encode()).hexdigest()[:16]
    learner = _learner(session, settings)
    progress = _resume(checkpoints, learner, cursor, recipe_hash)

    def save(now: Progress) -> None:
        facts = {
            "recipe_hash": recipe_hash,
            "position": now.position,
            "consumed": sorted(now.consumed),
            "tasks": cursor.fingerprint,
            "ledger": now.ledger.tokens(),
        }
        checkpoints.save(now.version, learner.state, facts)

    loop = TrainingLoop(
        session,
        session.policy(settings.sampling),
        learner,
        _weight_sync(session, settings, problems),
        cursor,
        progress,
        RunRecords(run_folder, resumed_after=progress.version or None),
        rollout=settings.rollout,
        steps=settings.steps,
        checkpoint_every=settings.checkpoint_every,
        save=save,
    )
    return loop, learner


def _learner(session: Session, settings: TrainConfig) -> Learner:
    objective = Objective.from_config(settings.objective)
    optimizer = make_optimizer(settings.optimizer, settings.steps)
    architecture, temperature = session.model.architecture, settings.sampling.temperature or 1.0
    return Learner(
        session.model.base,
        init_state(session.adapter, optimizer),
        objective,
        settings.packing,
        accumulate=make_accumulate(architecture, objective, temperature=temperature),
        apply=make_apply(optimizer),
        score=make_score(architecture, temperature=temperature),
    )


def _resume(checkpoints: Checkpoints, learner: Learner, cursor: TaskCursor, recipe_hash: str) -> Progress:
    """Take over the newest good checkpoint, if there is one."""
    found = checkpoints.restore(learner.state)
    progress = Progress()
    if found is None:
        return progress
    if found.facts["recipe_hash"] != recipe_hash:
        raise CheckpointError(
            f"{checkpoints.folder} was made by a recipe with hash {found.facts['recipe_hash']}, this one has "
            f"{recipe_hash}; resume with the settings that it was made with, or start a new run"
        )
    learner.state = found.state
    progress.version = found.step
    progress.position, progress.consumed = found.facts["position"], set(found.facts["consumed"])
    progress.ledger.restore(found.facts["ledger"])
    cursor.resume(progress.position, found.facts["tasks"], done=progress.consumed)
    say(f"resumed after step {found.step} from {checkpoints.folder}")
    return progress


def _weight_sync(session: Session, settings: TrainConfig, problems: Sequence[Task]) -> WeightSync:
    score = make_score(session.model.architecture, temperature=1.0)
    return WeightSync(
        session.engine,
        _trainer_score(session, score),
        _canaries(session, problems),
        expected_modules=len(module_names(session.adapter)),
        tolerance=settings.sync_tolerance,
    )


def _canaries(session: Session, problems: Sequence[Task]) -> Canaries:
    """The first tokens of a few real prompts."""
    encoded = (session.tokenizer.encode(task.prompt)[:CANARY_TOKENS] for task in problems)
    return [ids for ids in encoded if len(ids) > 1][:CANARIES]


def _trainer_score(session: Session, score: Score) -> TrainerScore:
    packing = PackingConfig(rows=1, row_length=CANARIES * CANARY_TOKENS)

    def scored(adapter: Adapter, canaries: Canaries) -> list[Float[np.ndarray, " tokens"]]:
        packer = Packer(packing, lambda length: 1.0)
        for canary in canaries:
            mask = (False, *(True,) * (len(canary) - 1))
            unknown = (0.0,) * len(canary)
            packer.add(Sample(tuple(canary), mask, unknown, (0,) * len(canary), advantage=0.0))
        microbatch = packer.flush()
        assert microbatch is not None, "there is at least one canary of two tokens"
        flat = np.asarray(score(session.model.base, adapter, microbatch))
        ends = np.cumsum([len(canary) - 1 for canary in canaries])
        return list(np.split(flat[: ends[-1]], ends[:-1]))

    return scored


def _summary(loop: TrainingLoop, session: Session, settings: TrainConfig) -> dict[str, Any]:
    trainer, engine = loop.clock.totals(), session.engine.statistics()
    last = loop.proofs[-1]
    return {
        "steps": settings.steps,
        "tokens": loop.progress.ledger.tokens(),
        "trainer_seconds": trainer,
        "engine_seconds": engine.seconds,
        "trainer_idle_share": idle_share(trainer),
        "engine_idle_share": idle_share(engine.seconds),
        "objective": Objective.from_config(settings.objective).describe(),
        "proofs": {
            "sync": {
                "versions": len(loop.proofs),
                "worst_canary_difference": max(proof.canary_difference for proof in loop.proofs),
                "last": last.as_dict(),
            }
        },
    }

"""Rows, a base and an adapter on a disk -> a tuned adapter on the disk: the tune step, put together.

Rows, settings and a teacher's vocabulary are checked before the model is loaded. A run that was killed is gone on with
by the same command and ends with the very bits of one that was not.
"""

import asyncio
import random
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from components import storage
from components.config import dump, from_json
from components.errors import CheckpointError
from components.model import platform
from components.model.base_artifact import read_base
from components.model.checkpoint_folder import own_ends
from components.model.footprint import read_architecture
from components.model.lockstep import on_host
from components.model.peft import WEIGHTS_FILE, load_adapter, read_config, save_adapter
from components.model.placement import make_placements
from components.model.source import locate
from components.model.weights import Model, load
from components.rollout.player import EnvironmentConfig, Player, make_player
from components.rollout.prepare import read_tasks
from components.rollout.tokenizer import load_tokenizer
from components.storage import sole_process
from components.telemetry.failure import notes_failure
from components.telemetry.metrics import MetricsLog
from components.telemetry.progress import say
from components.telemetry.run_files import TUNING, update_summary
from components.telemetry.trace import write_trace
from components.training.checkpoint import Checkpoints
from components.training.interruption import run_until_interrupted
from components.training.optimizer import make_optimizer
from components.training.resumable import refuse_changes
from components.training.tuning.demonstrations import demonstrate_all
from components.training.tuning.examples import Example, fingerprint, fitting, lay_out_all
from components.training.tuning.loop import Progress, TuningLoop
from components.training.tuning.methods import describe, make_loss
from components.training.tuning.order import RowOrder, split_held_out
from components.training.tuning.rows import read_rows
from components.training.tuning.settings import TuneConfig, free_to_change
from components.training.tuning.teaching import check_teacher, load_teacher, teacher_fingerprint
from components.training.tuning.tuner import Tuner, make_tuner

LOCK = "tune.lock"
LOCK_SECONDS = 5.0
FOLDER = "tuning"
"""Below the run's folder: its checkpoints."""


@dataclass(frozen=True, slots=True)
class Data:
    """What rows became; the numbers say how many were left out, and why."""

    examples: tuple[Example, ...]
    training: list[int]
    held_out: list[int]
    left_out: Mapping[str, int]


@notes_failure("tune")
def tune(
    *, section: str, environment: str, seed: int, run_folder: str, tasks: str, base: str, adapter: str, tuned: str
) -> dict[str, Any]:
    """Tune and write the adapter to the folder `tuned`; gives what the run's summary keeps of this step.

    Raises ConfigError, DataError, WeightsError, CheckpointError or ConflictError before any work, and RunStoppedError
    in it.
    """
    settings = from_json(TuneConfig, section, where="tune")
    world = from_json(EnvironmentConfig, environment, where="environment")
    placement = make_placements(settings.mesh).trainer
    placement.check_rows(settings.packing.rows, "tune.packing.rows")
    platform.use_compilation_cache()
    artifact = read_base(Path(base))
    tokenizer = load_tokenizer(artifact.source)
    architecture = read_architecture(artifact.source)
    player = make_player(world, tokenizer, ends=own_ends(locate(artifact.source), architecture))
    data = read_data(settings, player, tasks, seed)
    teaching = settings.distill.teacher if settings.distill else None
    if teaching is not None:
        check_teacher(teaching, architecture.vocab_size, tokenizer)
    steps = settings.total_steps(len(data.training))
    optimizer = make_optimizer(settings.optimizer, steps)
    lora = read_config(Path(adapter))
    inputs = {
        "rows": fingerprint(data.examples),
        "base": artifact.fingerprint,
        "adapter": storage.checksum(Path(adapter) / WEIGHTS_FILE)[:16],
        **({"teacher": teacher_fingerprint(teaching)} if teaching else {}),
    }
    opening = {"settings": {"seed": seed, "tune": dump(settings)}, "inputs": inputs}
    patience = settings.grace_seconds + LOCK_SECONDS
    with sole_process(storage.join(run_folder, LOCK), patience=patience, on_wait=say):
        model = load(artifact.source, dtype=artifact.dtype, quantise=artifact.quantise, placement=placement)
        start = placement.weights(load_adapter(Path(adapter), model.architecture))
        teacher: Model | None = None if teaching is None else load_teacher(teaching, placement)
        tuner = make_tuner(
            model,
            start,
            make_loss(settings),
            optimizer,
            settings.packing,
            teacher=teacher,
            max_skipped=settings.optimizer.max_skipped,
            remat=settings.remat,
        )
        loop = _loop(tuner, settings, data, opening, run_folder, seed)
        asyncio.run(run_until_interrupted(loop))
        save_adapter(Path(tuned), on_host(tuner.state.adapter), lora, base_name=str(base))
    summary = _summary(settings, data, loop.progress, int(tuner.state.skipped), inputs)
    write_trace(storage.join(run_folder, FOLDER, "trace.json"))
    update_summary(run_folder, {"tuning": summary})
    return summary


def read_data(settings: TuneConfig, player: Player, tasks: str, seed: int) -> Data:
    """All examples, and which of them are held out. Raises DataError that lists every row which cannot be used."""
    chosen = settings.rows
    problems = read_tasks(tasks, "train")
    left_out: dict[str, int] = {}
    if chosen.demonstrations is not None:
        drawn = random.Random(seed)
        wanted = [(task, drawn.random() < chosen.demonstrations.tool_share) for task in problems]
        examples = asyncio.run(demonstrate_all(player, wanted))
    else:
        found = read_rows(
            chosen.files,
            compares=settings.method.compares,
            min_reward=chosen.min_reward,
            skip=chosen.bad_rows == "skip",
        )
        for problem in found.problems:
            say(f"left out: {problem}")
        left_out = {"bad_rows": len(found.problems), "lower_reward": found.below}
        examples = asyncio.run(lay_out_all(player, found.talks, problems[0]))
    fit = fitting(examples, settings.packing.row_length, drop=chosen.too_long == "drop")
    left_out["too_long"] = fit.too_long
    training, held_out = split_held_out(len(fit.examples), chosen.held_out, seed)
    say(
        f"{settings.method}: {len(training)} rows to learn from, {len(held_out)} held out"
        + "".join(f", {count} left out ({name.replace('_', ' ')})" for name, count in left_out.items() if count)
    )
    return Data(fit.examples, training, held_out, left_out)


def _loop(
    tuner: Tuner, settings: TuneConfig, data: Data, opening: Mapping[str, Any], run_folder: str, seed: int
) -> TuningLoop:
    """The loop where the run stands: at its start, or after the newest checkpoint."""
    checkpoints = Checkpoints(storage.join(run_folder, FOLDER, "checkpoints"), keep=settings.checkpoints_kept)
    found = checkpoints.restore(tuner.state)
    progress = Progress()
    if found is not None:
        _check_opening(found.facts, opening, str(checkpoints.folder))
        tuner.state = found.state
        progress = Progress.of(found.step, found.facts)
        say(f"resumed after step {progress.step}, at row {progress.position + 1}")

    def save(progress: Progress) -> None:
        checkpoints.save(progress.step, tuner.state, {**progress.facts(), **opening})

    return TuningLoop(
        tuner,
        data.examples,
        RowOrder(data.training, seed),
        data.held_out,
        settings,
        progress,
        MetricsLog(storage.join(run_folder, TUNING), resumed_after=progress.step),
        save=save,
    )


def _check_opening(before: Mapping[str, Any], now: Mapping[str, Any], where: str) -> None:
    """Raises ConfigError for settings that have changed, CheckpointError for inputs."""
    sections = [each["settings"]["tune"] for each in (before, now)]
    refuse_changes(before["settings"], now["settings"], free_to_change(*sections))
    for name, was in before["inputs"].items():
        if now["inputs"].get(name) != was:
            raise CheckpointError(
                f"{where} was made with {name} of fingerprint {was}, and these are {now['inputs'].get(name)}: bring "
                "back what they were, or start a new run"
            )


def _summary(
    settings: TuneConfig, data: Data, progress: Progress, skipped: int, inputs: Mapping[str, str]
) -> dict[str, Any]:
    said = [int(sum(int(each.said.sum()) for each in example.laid)) for example in data.examples]
    return {
        "method": str(settings.method),
        "objective": describe(settings),
        "steps": progress.step,
        "rows": len(data.training),
        "rows_seen": progress.position,
        "held_out_rows": len(data.held_out),
        "left_out": dict(data.left_out),
        "completion_tokens": sum(said[row] for row in data.training),
        "skipped_steps": skipped,
        "held_out": progress.held_out,
        "fingerprints": dict(inputs),
    }

"""A base, a trained adapter and unseen tasks -> scores with intervals, side by side, and the run's page.

Both policies play the same tasks with the same engine: the base is the adapter with B set to zero, so nothing but the
weights differs. The score of a task is a function of its sequence's name, whatever ran beside it.
"""

import asyncio
import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, NamedTuple

import jax
import jax.numpy as jnp
from pydantic import Field

from components import storage
from components.config import config, from_json
from components.engine.core import EngineConfig
from components.engine.sampling import SamplingConfig
from components.errors import DataError, Problem
from components.evaluation.measures import TOOL_CATEGORIES, Scores, compare, measure_names, scores_of, tool_matrix
from components.evaluation.scalars import measure_scalars, run_scalars
from components.model.lora import Adapter
from components.model.peft import load_adapter
from components.model.placement import MeshConfig, make_placements, placement_of
from components.rollout.orchestrator import play_all
from components.rollout.player import EnvironmentConfig
from components.rollout.prepare import read_tasks
from components.rollout.session import Session, open_session
from components.telemetry.failure import notes_failure
from components.telemetry.progress import say
from components.telemetry.report import write_report
from components.telemetry.run_files import EVALUATION, read_run, update_summary
from components.telemetry.spans import span
from components.types import Policy, SequenceId, Task, Trajectory

BASE_VERSION, TRAINED_VERSION = 0, 1


@config
class EvaluateConfig:
    """`tasks` of the test split are scored greedily (None takes all), and `samples` times each at `temperature`.

    A task counts as solved from a reward of `solved_at` on. Failed episodes are no score: they are counted, and more
    than `max_failed_share` of them stops the step, because the tasks that are left are no fair sample.
    `mesh` splits the model over several devices.
    """

    tasks: Annotated[int, Field(ge=1)] | None = None
    samples: Annotated[int, Field(ge=0)] = 0
    temperature: Annotated[float, Field(gt=0)] = 1.0
    solved_at: float = 1.0
    max_failed_share: Annotated[float, Field(ge=0, le=1)] = 0.02
    max_concurrency: Annotated[int, Field(ge=1)] = 64
    engine: EngineConfig = EngineConfig()
    mesh: MeshConfig | None = None

    def measure_names(self) -> list[str]:
        """What is measured, the headline first."""
        return measure_names(self.samples)


class Evaluation(NamedTuple):
    """All scalars of the run so far, and the confusion matrix of outcome against tool use after training."""

    scalars: dict[str, int | float]
    categories: list[str]
    tool_use: list[list[int]]


@notes_failure("evaluate")
def evaluate(
    *,
    section: str,
    environment: str,
    seed: int,
    run_folder: str,
    tasks: str,
    base: str,
    start: str,
    trained: str,
    report: str,
) -> Evaluation:
    """Score a policy before and after training; writes `evaluation.json` and the page `report`.

    Before is the adapter in the folder `start`, which training started from, or the bare base where that is empty.
    Raises DataError when there is no task to score, RunStoppedError when too many episodes failed.
    """
    settings = from_json(EvaluateConfig, section, where="evaluate")
    world = from_json(EnvironmentConfig, environment, where="environment")
    chosen = read_tasks(tasks, "test")[: settings.tasks]
    if not chosen:
        raise DataError(Problem("evaluate", tasks, "there are no test tasks, so there would be no score"))
    sides = make_placements(settings.mesh)
    sides.engine.check_rows(settings.engine.slots, "evaluate.engine.slots")
    with open_session(
        base=Path(base), adapter=Path(trained), environment=world, engine=settings.engine, seed=seed, sides=sides
    ) as session:
        before = _started_from(Path(start), session) if start else _without_change(session.adapter)
        policies = {"before": (before, BASE_VERSION), "after": (session.adapter, TRAINED_VERSION)}
        scores = {}
        for name, (policy_adapter, version) in policies.items():
            session.engine.swap(policy_adapter, version)
            say(f"evaluate: {len(chosen)} tasks, {name} training")
            with span("evaluate", policy=name):
                scores[name] = asyncio.run(_score(session, settings, chosen))
        is_finite = all(bool(jnp.isfinite(leaf).all()) for leaf in jax.tree.leaves(session.adapter))
    measures = compare(
        scores["before"], scores["after"], solved_at=settings.solved_at, max_failed_share=settings.max_failed_share
    )
    matrix = tool_matrix(scores["after"], solved_at=settings.solved_at)
    record = {"measures": measures, "tool_use": {"categories": TOOL_CATEGORIES, "matrix": matrix}}
    storage.write_text(storage.join(run_folder, EVALUATION), json.dumps(record, indent=2))
    update_summary(run_folder, measure_scalars(measures) | {"adapter_is_finite": is_finite})
    write_report(run_folder, report)
    return Evaluation(run_scalars(read_run(run_folder)), list(TOOL_CATEGORIES), matrix)


async def _score(session: Session, settings: EvaluateConfig, tasks: Sequence[Task]) -> Scores:
    greedy = await _play(session, SamplingConfig(temperature=0.0), tasks, 1, settings)
    sampling = SamplingConfig(temperature=settings.temperature)
    sampled = await _play(session, sampling, tasks, settings.samples, settings)
    return scores_of([trajectories[0] for trajectories in greedy], sampled)


async def _play(
    session: Session, sampling: SamplingConfig, tasks: Sequence[Task], samples: int, settings: EvaluateConfig
) -> list[list[Trajectory]]:
    policy: Policy = session.policy(sampling)

    async def play(task: Task, sequence: SequenceId) -> Trajectory:
        return await session.player.play(policy, task, sequence)

    sequences = [(task, SequenceId(task.id, member=member)) for task in tasks for member in range(samples)]
    played = await play_all(play, sequences, max_concurrency=settings.max_concurrency)
    return [played[start : start + samples] for start in range(0, len(played), samples or 1)]


def _started_from(folder: Path, session: Session) -> Adapter:
    """The adapter in a folder, where the session's own is."""
    return placement_of(session.adapter).weights(load_adapter(folder, session.model.architecture))


def _without_change(adapter: Adapter) -> Adapter:
    """The base itself, in the adapter's shapes, so that nothing is compiled again."""
    layers = tuple(
        {name: dataclasses.replace(pair, b=jnp.zeros_like(pair.b)) for name, pair in layer.items()}
        for layer in adapter.layers
    )
    return jax.block_until_ready(Adapter(layers=layers))

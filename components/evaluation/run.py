"""A base, a trained adapter and unseen tasks -> scores with intervals, side by side, and the run's page.

Both policies play the same tasks with the same engine: the base is the adapter with B set to zero, so nothing but the
weights differs. The score of a task is a function of its sequence's name, whatever ran beside it.
"""

import asyncio
import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import jax
import jax.numpy as jnp
from pydantic import Field

from components import storage
from components.config import config, from_json
from components.engine.core import EngineConfig
from components.engine.sampling import SamplingConfig
from components.errors import DataError, Problem, RunStoppedError
from components.evaluation.statistics import mean_interval, paired_difference
from components.model.lora import Adapter
from components.rollout.orchestrator import play_all
from components.rollout.player import EnvironmentConfig
from components.rollout.prepare import read_tasks
from components.rollout.session import Session, open_session
from components.telemetry.progress import say
from components.telemetry.report import write_report
from components.telemetry.run_files import EVALUATION, update_summary
from components.telemetry.spans import span
from components.types import Failure, Policy, SequenceId, Task, Trajectory

BASE_VERSION, TRAINED_VERSION = 0, 1


@config
class EvaluateConfig:
    """`tasks` of the test split are scored greedily (None takes all), and `samples` times each at `temperature`.

    A task counts as solved from a reward of `solved_at` on. Failed episodes are no score: they are counted, and more
    than `max_failed_share` of them stops the step, because the tasks that are left are no fair sample.
    """

    tasks: Annotated[int, Field(ge=1)] | None = None
    samples: Annotated[int, Field(ge=0)] = 0
    temperature: Annotated[float, Field(gt=0)] = 1.0
    solved_at: float = 1.0
    max_failed_share: Annotated[float, Field(ge=0, le=1)] = 0.02
    max_concurrency: Annotated[int, Field(ge=1)] = 64
    engine: EngineConfig = EngineConfig()


@dataclasses.dataclass(frozen=True, slots=True)
class Scores:
    """What one policy did: per task its greedy reward (None where the episode failed), and its sampled rewards.

    `failures` are those of the greedy episodes.
    """

    greedy: list[float | None]
    sampled: list[list[float]]
    failures: list[Failure] = dataclasses.field(default_factory=list)


def evaluate(
    *, section: str, environment: str, seed: int, run_folder: str, tasks: str, base: str, trained: str, report: str
) -> dict[str, Any]:
    """Score base and trained policy and give the run's scalars; writes `evaluation.json` and the page `report`.

    Raises DataError when there is no task to score, RunStoppedError when too many episodes failed.
    """
    settings = from_json(EvaluateConfig, section, where="evaluate")
    world = from_json(EnvironmentConfig, environment, where="environment")
    chosen = read_tasks(tasks, "test")[: settings.tasks]
    if not chosen:
        raise DataError(Problem("evaluate", tasks, "there are no test tasks, so there would be no score"))
    with open_session(
        base=Path(base), adapter=Path(trained), environment=world, engine=settings.engine, seed=seed
    ) as session:
        policies = {"before": (_without_change(session.adapter), BASE_VERSION)}
        policies["after"] = (session.adapter, TRAINED_VERSION)
        scores = {}
        for name, (policy_adapter, version) in policies.items():
            session.engine.swap(policy_adapter, version)
            say(f"evaluate: {len(chosen)} tasks, {name} training")
            with span("evaluate", policy=name):
                scores[name] = asyncio.run(_score(session, settings, chosen))
    measures = compare(scores["before"], scores["after"], settings)
    storage.write_text(storage.join(run_folder, EVALUATION), json.dumps({"measures": measures}, indent=2))
    scalars = _scalars(measures)
    update_summary(run_folder, scalars)
    write_report(run_folder, report)
    return {key: value for key, value in scalars.items() if isinstance(value, float | int)}


def compare(before: Scores, after: Scores, settings: EvaluateConfig) -> list[dict[str, Any]]:
    """Each measure before, after, and their paired difference over the tasks that both policies finished."""
    pairs = [
        (first, second)
        for first, second in zip(before.greedy, after.greedy, strict=True)
        if first is not None and second is not None
    ]
    failed = len(before.greedy) - len(pairs)
    if failed > settings.max_failed_share * len(before.greedy):
        last = (before.failures + after.failures)[-1]
        raise RunStoppedError(
            f"{failed} of {len(before.greedy)} evaluation tasks failed, more than max_failed_share = "
            f"{settings.max_failed_share:g} allows, so that the others are no fair sample; the last failure, of kind "
            f"{last.kind!r}, said: {last.message}"
        )
    solved = [(float(first >= settings.solved_at), float(second >= settings.solved_at)) for first, second in pairs]
    measures = [_measure("greedy accuracy", solved), _measure("greedy reward", pairs)]
    if settings.samples:
        sampled = [(_share(first, settings), _share(second, settings)) for first, second in _both(before, after)]
        passed = [(float(first > 0), float(second > 0)) for first, second in sampled]
        measures += [_measure("sampled accuracy", sampled), _measure(f"pass@{settings.samples}", passed)]
    return measures


def _measure(name: str, pairs: Sequence[tuple[float, float]]) -> dict[str, Any]:
    first, second = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    return {
        "name": name,
        "before": dataclasses.asdict(mean_interval(first)),
        "after": dataclasses.asdict(mean_interval(second)),
        "paired": dataclasses.asdict(paired_difference(first, second)),
    }


def _both(before: Scores, after: Scores) -> list[tuple[list[float], list[float]]]:
    """The samples of the tasks of which both policies finished at least one."""
    return [(first, second) for first, second in zip(before.sampled, after.sampled, strict=True) if first and second]


def _share(rewards: Sequence[float], settings: EvaluateConfig) -> float:
    return sum(reward >= settings.solved_at for reward in rewards) / len(rewards)


def _scalars(measures: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The run's numbers under flat names, as a table of runs shows them."""
    scalars: dict[str, Any] = {}
    for measure in measures:
        name = measure["name"].removeprefix("greedy ").replace(" ", "_").replace("@", "_at_")
        scalars[f"{name}_before"] = measure["before"]["value"]
        scalars[f"{name}_after"] = measure["after"]["value"]
        scalars[f"{name}_after_low"] = measure["after"]["low"]
        scalars[f"{name}_after_high"] = measure["after"]["high"]
        scalars[f"{name}_improvement"] = measure["paired"]["difference"]["value"]
    accuracy = measures[0]
    scalars["accuracy_after_interval"] = [accuracy["after"]["low"], accuracy["after"]["high"]]
    scalars["improvement_p_value"] = accuracy["paired"]["p_value"]
    scalars["evaluation_tasks"] = accuracy["after"]["count"]
    return scalars


async def _score(session: Session, settings: EvaluateConfig, tasks: Sequence[Task]) -> Scores:
    greedy = await _play(session, SamplingConfig(temperature=0.0), tasks, 1, settings)
    sampling = SamplingConfig(temperature=settings.temperature)
    sampled = await _play(session, sampling, tasks, settings.samples, settings)
    return Scores(
        failures=[trajectories[0].failure for trajectories in greedy if trajectories[0].failure],
        greedy=[trajectories[0].reward for trajectories in greedy],
        sampled=[[member.reward for member in members if member.reward is not None] for members in sampled],
    )


async def _play(
    session: Session, sampling: SamplingConfig, tasks: Sequence[Task], samples: int, settings: EvaluateConfig
) -> list[list[Trajectory]]:
    policy: Policy = session.policy(sampling)

    async def play(task: Task, sequence: SequenceId) -> Trajectory:
        return await session.player.play(policy, task, sequence)

    sequences = [(task, SequenceId(task.id, member=member)) for task in tasks for member in range(samples)]
    played = await play_all(play, sequences, max_concurrency=settings.max_concurrency)
    return [played[start : start + samples] for start in range(0, len(played), samples or 1)]


def _without_change(adapter: Adapter) -> Adapter:
    """The base itself, in the adapter's shapes, so that nothing is compiled again."""
    layers = tuple(
        {name: dataclasses.replace(pair, b=jnp.zeros_like(pair.b)) for name, pair in layer.items()}
        for layer in adapter.layers
    )
    return jax.block_until_ready(Adapter(layers=layers))

"""An environment's problems -> a folder of tasks, one JSON object a line, checked before anything trains on them."""

import json
from collections.abc import Iterable
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from components.config import config, from_json
from components.environments.environment import environment_factory, tasks_of
from components.errors import ConfigError, DataError, Problem
from components.rollout.episode import EpisodeLimits
from components.rollout.player import EnvironmentConfig
from components.types import Task

SPLITS = ("train", "test")


@config
class PrepareConfig:
    """How many tasks of each split are taken from the front; None takes all, so it must not be endless."""

    train_tasks: Annotated[int, Field(ge=1)] | None = None
    test_tasks: Annotated[int, Field(ge=1)] | None = None


def write_tasks(*, section: str, environment: str, seed: int, folder: str) -> dict[str, Any]:
    """Write `train.jsonl` and `test.jsonl`; gives the counts and the number of prompts that stand in both.

    Raises DataError naming every task with an empty prompt or an id that stands twice, and for an empty split.
    """
    settings = from_json(PrepareConfig, section, where="prepare_data")
    world = from_json(EnvironmentConfig, environment, where="environment")
    source = environment_factory(world.use, world.options, isolation=world.isolation)()
    limits = {"train": settings.train_tasks, "test": settings.test_tasks}
    tasks = {split: _checked(islice(tasks_of(source, split), limits[split]), split, world.use) for split in SPLITS}
    Path(folder).mkdir(parents=True, exist_ok=True)
    for split in SPLITS:
        lines = (json.dumps(asdict(task), ensure_ascii=False) + "\n" for task in tasks[split])
        Path(folder, f"{split}.jsonl").write_text("".join(lines), encoding="utf-8")
    seen = {task.prompt for task in tasks["train"]}
    shared = sum(task.prompt in seen for task in tasks["test"])
    return {"train_tasks": len(tasks["train"]), "test_tasks": len(tasks["test"]), "prompts_in_both_splits": shared}


def read_tasks(folder: Path | str, split: str) -> list[Task]:
    """The tasks of a split that `write_tasks` wrote. Raises DataError where they are gone or a line is unreadable."""
    path = Path(folder, f"{split}.jsonl")
    if not path.is_file():
        raise DataError(Problem(str(path), split, "the output of prepare_data is gone; run that step again"))
    # Not splitlines: a prompt may hold U+2028, which ends no line of JSON.
    lines = path.read_text(encoding="utf-8").rstrip("\n").split("\n")
    return [_task(line, f"{path}:{number}") for number, line in enumerate(lines, start=1)]


def _task(line: str, where: str) -> Task:
    try:
        return Task(**json.loads(line))
    except (json.JSONDecodeError, TypeError) as error:
        raise DataError(Problem(where, line, f"is no task: {error}")) from None


def _checked(tasks: Iterable[Task], split: str, use: str) -> list[Task]:
    kept: list[Task] = []
    problems: list[Problem] = []
    ids: set[str] = set()
    for number, task in enumerate(tasks):
        where = f"{use}, task {number} of split {split}"
        if not task.prompt.strip():
            problems.append(Problem(where, task.id, "the prompt is empty"))
        if task.id in ids:
            problems.append(Problem(where, task.id, "the id stands twice; every task needs an id of its own"))
        try:
            EpisodeLimits().lowered_by(task.limits)
        except ConfigError as error:
            problems += [Problem(f"{where}: {each.where}", each.value, each.message) for each in error.problems]
        ids.add(task.id)
        kept.append(task)
    if not kept:
        problems.append(Problem(f"{use}, split {split}", 0, "there is no task; nothing could be trained or scored"))
    if problems:
        raise DataError(problems)
    return kept

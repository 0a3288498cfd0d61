"""An environment's problems -> a folder of tasks, one JSON object a line, checked before anything trains on them.

Beside the tasks lies a data card, for people (README.md) and for programs (card.json); see data_card.py.
"""

import asyncio
import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from components.config import config, from_json
from components.environments.datasets import ReadsTasks
from components.environments.environment import Environment, environment_factory, tasks_of
from components.errors import ConfigError, DataError, Problem
from components.rollout.data_card import SplitFacts, content_hash, write_card
from components.rollout.episode import EpisodeLimits
from components.rollout.player import EnvironmentConfig, make_player
from components.rollout.tokenizer import load_tokenizer
from components.types import Task

SPLITS = ("train", "test")
_MAX_DROPPED = 100_000
"""Tasks in a row that may be dropped before a split without an end is given up."""
_FIRST, _TOLD = 10_000, 3


@config
class PrepareConfig:
    """How many tasks of each split are taken from the front; None takes all, so it must not be endless.

    `max_prompt_tokens` is measured on the first prompt as the policy reads it: template, worked examples and tools
    included, in the tokens of `tokenizer` (by default that of `init_model.source`). A longer one is dropped and
    counted, or stops the run. `duplicate_prompts: drop` keeps the first task of each prompt, and no train task whose
    prompt is a test task's.
    """

    train_tasks: Annotated[int, Field(ge=1)] | None = None
    test_tasks: Annotated[int, Field(ge=1)] | None = None
    max_prompt_tokens: Annotated[int, Field(ge=1)] | None = None
    tokenizer: str | None = None
    overlong: Literal["drop", "stop"] = "drop"
    duplicate_prompts: Literal["keep", "drop"] = "keep"

    def __post_init__(self) -> None:
        if self.max_prompt_tokens is None and (self.tokenizer is not None or self.overlong != "drop"):
            given = "tokenizer" if self.tokenizer is not None else "overlong"
            message = "has no effect without max_prompt_tokens"
            raise ConfigError(Problem(f"prepare_data.{given}", self.tokenizer or self.overlong, message))


def write_tasks(*, section: str, environment: str, seed: int, folder: str) -> dict[str, Any]:
    """Write `train.jsonl`, `test.jsonl` and the card; gives the counts, the number of prompts that stand in both
    splits, and the hash of the content.

    Raises DataError naming every task with an empty prompt or an id that stands twice, for an empty split, and for a
    task that JSON cannot hold.
    """
    settings = from_json(PrepareConfig, section, where="prepare_data")
    world = from_json(EnvironmentConfig, environment, where="environment")
    source = environment_factory(world.use, world.options, isolation=world.isolation)()
    length = _prompt_length(settings, world)
    seen: set[str] = set()
    # The test tasks are chosen first: a prompt that stands in both splits is theirs.
    chosen = {split: _chosen(source, split, settings, world.use, length, seen) for split in reversed(SPLITS)}
    Path(folder).mkdir(parents=True, exist_ok=True)
    for split in SPLITS:
        lines = (_line(task, f"{world.use}, task {task.id} of split {split}") for task in chosen[split].tasks)
        Path(folder, f"{split}.jsonl").write_bytes(b"".join(lines))
    prompts = {task.prompt for task in chosen["train"].tasks}
    facts = {
        "train_tasks": len(chosen["train"].tasks),
        "test_tasks": len(chosen["test"].tasks),
        "prompts_in_both_splits": sum(task.prompt in prompts for task in chosen["test"].tasks),
        "dropped_tasks": sum(each.dropped.total() for each in chosen.values()),
        "sha256": content_hash(folder, SPLITS),
    }
    splits = {split: SplitFacts(each.tasks, each.dropped, each.tokens) for split, each in chosen.items()}
    write_card(folder, {"use": world.use, "options": dict(world.options), "seed": seed}, facts, splits)
    return facts


def read_tasks(folder: Path | str, split: str) -> list[Task]:
    """The tasks of a split that `write_tasks` wrote. Raises DataError where they are gone or a line is unreadable."""
    path = Path(folder, f"{split}.jsonl")
    if not path.is_file():
        raise DataError(Problem(str(path), split, "the output of prepare_data is gone; run that step again"))
    # Not splitlines: a prompt may hold U+2028, which ends no line of JSON.
    lines = path.read_text(encoding="utf-8").rstrip("\n").split("\n")
    return [_task(line, f"{path}:{number}") for number, line in enumerate(lines, start=1)]


def _line(task: Task, where: str) -> bytes:
    try:
        return json.dumps(asdict(task), ensure_ascii=False).encode() + b"\n"
    except (TypeError, ValueError) as error:
        message = f"JSON cannot hold this task: {error}; give it texts, numbers, lists and mappings"
        raise DataError(Problem(where, task.data, message)) from None


def _task(line: str, where: str) -> Task:
    try:
        return Task(**json.loads(line))
    except (json.JSONDecodeError, TypeError) as error:
        raise DataError(Problem(where, line, f"is no task: {error}")) from None


@dataclass(slots=True)
class _Chosen:
    """The tasks of a split that are kept, how many are not and why, and the lengths of prompts in tokens."""

    tasks: list[Task] = field(default_factory=list)
    dropped: Counter[str] = field(default_factory=Counter)
    tokens: list[int] = field(default_factory=list)


def _chosen(
    source: Environment,
    split: str,
    settings: PrepareConfig,
    use: str,
    length: Callable[[Task], int] | None,
    seen: set[str],
) -> _Chosen:
    """The tasks of a split up to its limit. `seen` are the prompts chosen before; those of this split are added."""
    chosen = _Chosen()
    limit = settings.train_tasks if split == "train" else settings.test_tasks
    tasks = _tasks_of(source, split, chosen.dropped)
    problems: list[Problem] = []
    ids: set[str] = set()
    in_a_row = 0
    for number, task in enumerate(tasks):
        where = f"{use}, task {number} of split {split}"
        problems += _problems(task, where, ids)
        ids.add(task.id)
        tokens = length(task) if length is not None and not problems else 0
        reason = _reason_against(task, tokens, settings, seen)
        if reason is None:
            seen.add(task.prompt)
            chosen.tasks.append(task)
            chosen.tokens.append(tokens)
        elif reason == _LONG and settings.overlong == "stop":
            problems.append(
                Problem(where, tokens, f"the prompt of {task.id} is over {settings.max_prompt_tokens} tokens")
            )
        else:
            chosen.dropped[reason] += 1
        in_a_row = 0 if reason is None else in_a_row + 1
        if len(chosen.tasks) == limit or in_a_row == _MAX_DROPPED:
            break
    if not chosen.tasks:
        told = "".join(f"; {count} dropped: {reason}" for reason, count in chosen.dropped.most_common())
        problems.append(
            Problem(f"{use}, split {split}", 0, f"there is no task; nothing could be trained or scored{told}")
        )
    if problems:
        raise DataError(problems)
    return chosen


def first_problems(
    source: Environment, split: str, use: str, *, tasks: int | None = None, seconds: float = 2.0
) -> list[Problem]:
    """What `write_tasks` would refuse of the first tasks of a split: of `tasks` and 10,000 the fewer, and no more than
    can be had in `seconds`. Of many problems the first are given. Raises DataError where the environment raises.
    """
    problems: list[Problem] = []
    ids: set[str] = set()
    deadline = time.monotonic() + seconds
    for number, task in enumerate(islice(tasks_of(source, split), min(tasks or _FIRST, _FIRST))):
        where = f"{use}, task {number} of split {split}"
        problems += _problems(task, where, ids)
        ids.add(task.id)
        try:
            _line(task, where)
        except DataError as error:
            problems += error.problems
        if time.monotonic() > deadline:
            break
    if len(problems) > _TOLD:
        last = problems[_TOLD - 1]
        more = f"{last.message} (and {len(problems) - _TOLD} more like these)"
        problems = [*problems[: _TOLD - 1], Problem(last.where, last.value, more)]
    return problems


def leaked(
    source: Environment, *, train: int | None = None, test: int | None = None, seconds: float = 2.0
) -> tuple[int, int]:
    """How many test tasks are train tasks, too, and how many test tasks were looked at: of the first 10,000 of each
    split, of `train` and `test`, and no more than can be had in `seconds` each.

    A task is another's double where prompt and answer are the same; without an answer, where prompt and data are.
    """
    known = set(_faces(source, "train", train, seconds))
    asked = list(_faces(source, "test", test, seconds))
    return sum(face in known for face in asked), len(asked)


def _faces(source: Environment, split: str, tasks: int | None, seconds: float) -> Iterator[tuple[str, str]]:
    deadline = time.monotonic() + seconds
    for task in islice(tasks_of(source, split), min(tasks or _FIRST, _FIRST)):
        yield task.prompt, repr(task.data) if task.answer is None else f"answer {task.answer}"
        if time.monotonic() > deadline:
            return


_LONG = "the prompt is longer than max_prompt_tokens"
_DOUBLE = "an earlier task has this prompt"


def _reason_against(task: Task, tokens: int, settings: PrepareConfig, seen: set[str]) -> str | None:
    if settings.max_prompt_tokens is not None and tokens > settings.max_prompt_tokens:
        return _LONG
    return _DOUBLE if settings.duplicate_prompts == "drop" and task.prompt in seen else None


def _tasks_of(source: Environment, split: str, dropped: Counter[str]) -> Iterable[Task]:
    """The tasks, and into `dropped` the rows that the environment itself has left out, by field and reason."""
    if not isinstance(source, ReadsTasks):
        return tasks_of(source, split)
    read = source.read(split)
    for problem in read.problems:
        _, named, name = problem.where.rpartition(": ")
        dropped[f"{name}: {problem.message}" if named else problem.message.partition(":")[0]] += 1
    return read.tasks


def _problems(task: Task, where: str, ids: set[str]) -> Iterable[Problem]:
    if not task.prompt.strip():
        yield Problem(where, task.id, "the prompt is empty")
    if task.id in ids:
        yield Problem(where, task.id, "the id stands twice; every task needs an id of its own")
    try:
        EpisodeLimits().lowered_by(task.limits)
    except ConfigError as error:
        yield from (Problem(f"{where}: {each.where}", each.value, each.message) for each in error.problems)


def _prompt_length(settings: PrepareConfig, world: EnvironmentConfig) -> Callable[[Task], int] | None:
    """Counts the tokens of a task's first prompt; None where nobody asks for them."""
    if settings.max_prompt_tokens is None:
        return None
    if settings.tokenizer is None:
        message = "needs a tokenizer: name one in prepare_data.tokenizer (a folder, or package:NAME)"
        raise ConfigError(Problem("prepare_data.max_prompt_tokens", settings.max_prompt_tokens, message))
    player = make_player(world, load_tokenizer(settings.tokenizer))

    async def opened(task: Task) -> int:
        environment = player.make_environment()
        opening = await environment.reset(task)
        length = len(player.renderer.start(opening.messages, environment.tools))
        await environment.close()
        return length

    return lambda task: asyncio.run(opened(task))

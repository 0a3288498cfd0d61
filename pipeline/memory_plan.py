"""A recipe -> where its memory goes while it trains, and whether the machine or the accelerator can have so much."""

from collections.abc import Iterator, Mapping
from typing import Any

from components.algorithms.objective import Objective
from components.engine.core import EngineConfig
from components.errors import ConfigError, Problem, WeightsError
from components.launcher.platform import PlatformConfig
from components.model.architecture import Architecture
from components.model.footprint import activation_bytes, base_bytes, bytes_of, cache_bytes, process_bytes
from components.model.placement import MeshConfig
from components.training.critic import CriticConfig, critic_shapes
from components.training.initialise import starting_shapes
from pipeline.machine import GIB, Memory
from pipeline.recipe import Recipe


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
    adapter = _adapter_bytes(recipe, architecture, mesh)
    packing = learning.packing
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
        # Without training there is an engine all the same: the evaluation's, in a process of its own.
        "cache_bytes": _cache_bytes(architecture, (recipe.train or recipe.evaluate).engine, mesh),
        "activation_bytes_estimate": step,
    }
    if critic:
        plan["critic_bytes"] = 5 * critic  # its adapter and head, two moments, and a sum of gradients with one added
    if mesh.devices == 1:
        plan["process_bytes_estimate"] = process_bytes(architecture)
    return {"devices": mesh.devices, **plan, "total_gib_estimate": round(sum(plan.values()) / GIB, 3)}


def accelerator_memory(platform: PlatformConfig) -> Memory | None:
    """What the recipe's own platform gives each device; None where it names no accelerator."""
    tpu = platform.tpu
    if tpu is None:
        return None
    return Memory(tpu.memory_gib * GIB // tpu.devices_per_chip, f"each device of {platform.accelerator}")


def memory_problems(
    recipe: Recipe, architecture: Architecture, memory: Memory, *, shared: bool
) -> tuple[list[Problem], list[Problem]]:
    """What cannot fit for certain, and what is likely not to fit. `shared` says that all devices share `memory`.

    Certain is what arrays that are always there take, and a quarter of what is estimated (activations, libraries): no
    estimate was found to be that wrong. A plan for two sides with devices of their own is not made, and not judged.
    """
    if recipe.train is not None and recipe.train.placement is not None:
        return [], []
    certain: dict[str, Problem] = {}
    likely: dict[str, Problem] = {}
    for parts, engine in _uses(recipe, architecture):
        devices = parts.pop("devices")
        times = devices if shared else 1
        sizes = {name: size * times for name, size in parts.items() if shared or name != "process_bytes_estimate"}
        sure = sum(size // 4 if name.endswith("_estimate") else size for name, size in sizes.items())
        if sure > memory.size:
            problem = _problem(recipe, sizes, engine, memory, "cannot fit")
            certain.setdefault(problem.where, problem)
        elif sum(sizes.values()) > memory.size:
            problem = _problem(recipe, sizes, engine, memory, "is likely not to fit")
            likely.setdefault(problem.where, problem)
    return list(certain.values()), list(likely.values())


def _uses(recipe: Recipe, architecture: Architecture) -> Iterator[tuple[dict[str, int], str]]:
    """What is held at once, with the section of the engine in it: while training, and in the evaluation's process."""
    plan = memory_plan(recipe, architecture)
    apart = {"total_gib_estimate"} if recipe.train else {"total_gib_estimate", "cache_bytes"}
    yield {name: size for name, size in plan.items() if name not in apart}, "train"
    settings, start = recipe.evaluate, recipe.init_model
    mesh = settings.mesh or MeshConfig()
    # An evaluation is a step of its own, which asks for no accelerator.
    if recipe.platform.tpu is None:
        yield (
            {
                "devices": mesh.devices,
                "base_bytes": base_bytes(architecture, dtype=start.dtype, quantise=start.quantise, mesh=mesh.shape),
                "adapter_bytes": _adapter_bytes(recipe, architecture, mesh),
                "cache_bytes": _cache_bytes(architecture, settings.engine, mesh),
            },
            "evaluate",
        )


def _problem(recipe: Recipe, sizes: Mapping[str, int], engine: str, memory: Memory, verdict: str) -> Problem:
    largest = max(sizes, key=lambda name: sizes[name])
    where, value, advice = _remedy(recipe, largest, engine)
    message = (
        f"{verdict}: {_gib(sum(sizes.values()))} are planned, and {memory.owner} has {_gib(memory.size)}; the largest "
        f"part is {largest} with {_gib(sizes[largest])}: {advice}"
    )
    return Problem(where, value, message)


def _remedy(recipe: Recipe, part: str, engine: str) -> tuple[str, Any, str]:
    """Which key makes a part smaller, its value, and what to do."""
    learning = "train" if recipe.train else "tune"
    settings: Any = recipe.train or recipe.tune
    assert settings is not None, "Recipe checks it"
    match part:
        case "cache_bytes":
            slots = settings.engine.slots if engine == "train" else recipe.evaluate.engine.slots
            advice = f"lower {engine}.engine.slots or capacity, or say {engine}.engine.cache_dtype: bfloat16"
            return f"{engine}.engine.slots", slots, advice
        case "activation_bytes_estimate":
            return f"{learning}.packing.rows", settings.packing.rows, f"lower {learning}.packing.rows or row_length"
        case "base_bytes" | "process_bytes_estimate":
            source = recipe.init_model.source or "tiny"
            return "init_model", source, "take a smaller model, dtype: bfloat16 or quantise: int8"
        case "critic_bytes":
            return "train.critic.lora.rank", None, "lower the critic's rank"
    return "init_model.lora.rank", recipe.init_model.lora.rank, "lower init_model.lora.rank, or name fewer targets"


def _gib(size: int) -> str:
    return f"{size / GIB:,.2f} GiB"


def _cache_bytes(architecture: Architecture, engine: EngineConfig, mesh: MeshConfig) -> int:
    return cache_bytes(
        architecture, slots=engine.slots, capacity=engine.capacity, dtype=engine.cache_dtype, mesh=mesh.shape
    )


def _adapter_bytes(recipe: Recipe, architecture: Architecture, mesh: MeshConfig) -> int:
    """What the policy's adapter takes on a device; 0 where it cannot be made, which is a problem of its own."""
    try:
        return bytes_of(starting_shapes(recipe.init_model, architecture), mesh.shape)
    except (ConfigError, WeightsError):
        return 0


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

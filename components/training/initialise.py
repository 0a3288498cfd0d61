"""A checkpoint, or nothing -> a frozen base and the adapter to start from, each a folder.

Nothing is copied of a checkpoint that lies elsewhere. A tiny model is made here from scratch: its tokenizer is an
alphabet, and supervised tuning on demonstrations teaches it the form of calls and answers before training starts.
"""

import asyncio
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import jax
import jax.numpy as jnp
from pydantic import Field

from components.config import config, from_json
from components.errors import ConfigError, Problem
from components.model import platform
from components.model.architecture import Architecture
from components.model.base import random_base
from components.model.base_artifact import HERE, BaseArtifact, read_base, write_base
from components.model.checkpoint_folder import write_checkpoint
from components.model.footprint import base_bytes, base_parameters, read_architecture
from components.model.lora import Adapter, LoraConfig, init_adapter, module_names, parameter_count, target_counts
from components.model.peft import open_adapter, save_adapter
from components.model.quantise import Kind
from components.rollout.player import EnvironmentConfig, Player, make_player
from components.rollout.prepare import read_tasks
from components.rollout.tokenizer import CharacterTokenizer
from components.telemetry.progress import say
from components.training.tuning.demonstrations import demonstrate_all
from components.training.tuning.examples import Example
from components.training.tuning.warm_start import SupervisedConfig, fit
from components.types import Sample, Task


@config
class TinyConfig:
    """A model of the Llama family, made in the run.

    `alphabet` holds every character that it can read or write. Of the demonstrations that it is tuned on, `tool_share`
    call the environment's tool; the others answer at once. With `warm_start: null` there is no tuning, and no need of
    demonstrations: the weights stay random.
    """

    alphabet: str
    d_model: Annotated[int, Field(ge=8)] = 64
    n_layers: Annotated[int, Field(ge=1, le=512)] = 3
    n_heads: Annotated[int, Field(ge=1)] = 4
    d_ff: Annotated[int, Field(ge=8)] = 256
    max_positions: Annotated[int, Field(ge=8)] = 64
    tool_share: Annotated[float, Field(ge=0, le=1)] = 0.35
    warm_start: SupervisedConfig | None = SupervisedConfig()

    def __post_init__(self) -> None:
        if self.d_model % (2 * self.n_heads):
            message = f"must be a multiple of twice n_heads ({self.n_heads}), as halves of a head rotate"
            raise ConfigError(Problem("tiny.d_model", self.d_model, message))
        tuning = self.warm_start
        if tuning is not None and tuning.optimizer.warmup_steps >= tuning.steps:
            where = "init_model.tiny.warm_start.optimizer.warmup_steps"
            message = f"must be below warm_start.steps ({tuning.steps}), or the learning rate is never reached"
            raise ConfigError(Problem(where, tuning.optimizer.warmup_steps, message))
        if len(set(self.alphabet)) != len(self.alphabet) or not self.alphabet:
            raise ConfigError(Problem("tiny.alphabet", self.alphabet, "must hold characters, each of them once"))


@config
class InitConfig:
    """Where the base comes from: `source` (a Hugging Face folder, a .gguf file, `package:NAME`) or `tiny`, one of both.

    `dtype` is that of the frozen weights in memory; the adapter is float32. With `quantise` the weights are kept in 8
    or 4 bits instead, by trainer and engine alike, and multiplied in `dtype` (see `components/model/quantise.py`). The
    adapter starts from what `lora` describes, or
    from the PEFT directory `adapter`, a local folder or a gs:// URI, which then says what `lora` would have said.
    """

    source: str | None = None
    tiny: TinyConfig | None = None
    dtype: Literal["float32", "bfloat16"] = "float32"
    quantise: Kind = "none"
    lora: LoraConfig = LoraConfig()
    adapter: str | None = None

    def __post_init__(self) -> None:
        if self.adapter is not None and self.lora != LoraConfig():
            message = "the PEFT directory has its own ranks, alphas and modules; leave out lora, or adapter"
            raise ConfigError(Problem("init_model.adapter", self.adapter, message))
        if (self.source is None) == (self.tiny is None):
            given = "neither" if self.source is None else "both"
            raise ConfigError(Problem("init_model", given, "give either source (weights that exist) or tiny"))


def initialise(*, section: str, environment: str, seed: int, tasks: str, base: str, adapter: str) -> dict[str, Any]:
    """Write the folders `base` and `adapter`; gives what is worth knowing of both.

    Raises ConfigError for a LoRA pattern that binds nothing and for demonstrations longer than a row, WeightsError for
    a source or an adapter that cannot be read.
    """
    settings = from_json(InitConfig, section, where="init_model")
    world = from_json(EnvironmentConfig, environment, where="environment")
    platform.use_compilation_cache()
    tiny_key, adapter_key = jax.random.split(jax.random.key(seed))
    if settings.tiny is not None:
        _make_tiny(settings.tiny, tiny_key, world, read_tasks(tasks, "train"), Path(base), settings.dtype, seed)
    source = HERE if settings.tiny is not None else str(settings.source)
    write_base(Path(base), source, dtype=settings.dtype, quantise=settings.quantise)
    artifact = read_base(Path(base))
    architecture = read_architecture(artifact.source)
    start, lora = _starting_adapter(settings, adapter_key, architecture)
    save_adapter(Path(adapter), start, lora, base_name=artifact.source)
    facts = _facts(artifact, architecture) | {
        "adapter_modules": len(module_names(start)),
        "adapter_parameters": parameter_count(start),
    }
    say(
        f"{facts['family']} base of {facts['parameters']:,} parameters in {facts['base_bytes'] / 1e6:,.1f} MB; "
        f"the adapter binds {facts['adapter_modules']} modules and trains {facts['adapter_parameters']:,} parameters"
    )
    return facts


def starting_shapes(settings: InitConfig, architecture: Architecture) -> Adapter:
    """The adapter to start from, or its shapes. Raises ConfigError or WeightsError as `initialise` does."""
    if settings.adapter is not None:
        return open_adapter(settings.adapter, architecture)[0]
    return jax.eval_shape(lambda: init_adapter(jax.random.key(0), architecture, settings.lora))


def _starting_adapter(settings: InitConfig, key: jax.Array, architecture: Architecture) -> tuple[Adapter, LoraConfig]:
    if settings.adapter is not None:
        say(f"the adapter goes on from {settings.adapter}")
        return open_adapter(settings.adapter, architecture)
    for target, count in target_counts(architecture, settings.lora).items():
        say(f"the LoRA target {target} binds {count} modules")
    return init_adapter(key, architecture, settings.lora), settings.lora


def _make_tiny(
    settings: TinyConfig,
    key: jax.Array,
    world: EnvironmentConfig,
    tasks: Sequence[Task],
    folder: Path,
    dtype: str,
    seed: int,
) -> None:
    tokenizer = CharacterTokenizer(settings.alphabet)
    architecture = tiny_architecture(settings)
    made = random_base(key, architecture, jnp.float32)
    if settings.warm_start is not None:
        say(f"warm start: demonstrations of {len(tasks)} tasks are played")
        shown = asyncio.run(demonstrations(make_player(world, tokenizer), tasks))
        if problems := row_problems(shown, settings):
            raise ConfigError(problems)
        samples = _endless(shown, settings.tool_share, random.Random(seed))
        made = fit(architecture, made, samples, settings.warm_start, progress=_say_loss)
    tokenizer.save(folder)
    write_checkpoint(folder, architecture, made, dtype=dtype)


def tiny_architecture(settings: TinyConfig) -> Architecture:
    """The architecture of a tiny model; token 0 ends a text."""
    return Architecture.from_huggingface(
        {
            "model_type": "llama",
            "vocab_size": CharacterTokenizer(settings.alphabet).vocab_size,
            "hidden_size": settings.d_model,
            "num_hidden_layers": settings.n_layers,
            "num_attention_heads": settings.n_heads,
            "num_key_value_heads": settings.n_heads,
            "intermediate_size": settings.d_ff,
            "max_position_embeddings": settings.max_positions,
            "rms_norm_eps": 1e-5,
            "tie_word_embeddings": True,
            "eos_token_id": 0,
        }
    )


async def demonstrations(player: Player, tasks: Sequence[Task]) -> list[tuple[Example, Example]]:
    """Per task, the demonstration that calls the tool, and the one that answers at once."""
    played = await demonstrate_all(player, ((task, calls) for task in tasks for calls in (True, False)))
    return list(zip(played[0::2], played[1::2], strict=True))


def row_problems(shown: Sequence[tuple[Example, Example]], settings: TinyConfig) -> list[Problem]:
    """That a row of the warm start cannot hold the longest demonstration; none where it can, or there is no start."""
    if settings.warm_start is None:
        return []
    # Of a kind that has no share none is drawn.
    drawn = [with_call for with_call, _ in shown if settings.tool_share > 0]
    drawn += [at_once for _, at_once in shown if settings.tool_share < 1]
    room = settings.warm_start.row_length
    longest = max(drawn, key=lambda example: example.longest, default=None)
    if longest is None or longest.longest <= room:
        return []
    count = sum(example.longest > room for example in drawn)
    message = (
        f"is less than the {longest.longest} tokens of the demonstration of {longest.where}, the longest; {count} of "
        f"the {len(drawn)} played do not fit a row; raise it to {longest.longest} or more"
    )
    return [Problem("init_model.tiny.warm_start.row_length", room, message)]


def _endless(
    demonstrations: Sequence[tuple[Example, Example]], tool_share: float, rng: random.Random
) -> Iterator[Sample]:
    while True:
        with_call, at_once = rng.choice(demonstrations)
        yield from (with_call if rng.random() < tool_share else at_once).row()


def _facts(artifact: BaseArtifact, architecture: Architecture) -> dict[str, Any]:
    return {
        "source": artifact.source,
        "fingerprint": artifact.fingerprint,
        "dtype": artifact.dtype,
        "quantise": artifact.quantise,
        "base_bytes": base_bytes(architecture, dtype=artifact.dtype, quantise=artifact.quantise),
        "family": architecture.family,
        "parameters": base_parameters(architecture),
    }


def _say_loss(step: int, loss: float) -> None:
    say(f"warm start, step {step}: loss {loss:.3f}")

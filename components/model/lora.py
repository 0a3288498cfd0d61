"""A pattern over module names -> the trainable part of a policy: low-rank pairs beside the linear layers.

LoRA is arXiv:2106.09685; rsLoRA's scale is arXiv:2312.03732. The adapter is a pytree of its own, always float32.
"""

import dataclasses
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, TypeVar, no_type_check

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Float
from pydantic import Field

from components.config import config
from components.errors import ConfigError, Problem
from components.model.architecture import Architecture
from components.model.base import LINEAR_MODULES, module_name
from components.model.layout import layer_places
from components.model.patterns import alternatives, inner_alternatives

Number = TypeVar("Number", int, float)


@config
class LoraConfig:
    """`targets` are regular expressions; a module is bound when one of them matches its whole name.

    Names are those of Hugging Face: `model.layers.0.self_attn.q_proj`, `model.layers.0.mlp.gate_proj`. Each alternative
    in a pattern must bind a module, and none may name an expert or the router of a mixture, which take no adapter.
    The scale is `alpha / rank`, with `rslora` `alpha / sqrt(rank)`. `rank_pattern` and `alpha_pattern` give some
    modules another rank or alpha, as in PEFT: a key is a regular expression for the end of a name, from a dot or the
    name's start on (`q_proj`, `layers.0.self_attn.q_proj`, `^model.layers.0.*q_proj`); the first that matches counts.
    """

    rank: Annotated[int, Field(ge=1)] = 16
    alpha: Annotated[float, Field(gt=0)] = 32.0
    rslora: bool = False
    targets: tuple[str, ...] = (".*",)
    rank_pattern: Mapping[str, Annotated[int, Field(ge=1)]] = dataclasses.field(default_factory=dict)
    alpha_pattern: Mapping[str, Annotated[float, Field(gt=0)]] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        for where, patterns in (("rank_pattern", self.rank_pattern), ("alpha_pattern", self.alpha_pattern)):
            for key in patterns:
                _compiled(key, where)

    def rank_of(self, module: str) -> int:
        """The rank of the module with this whole name."""
        return _first_match(self.rank_pattern, module, self.rank)

    def scale_of(self, module: str) -> float:
        """What `A @ B` of the module with this whole name is multiplied by."""
        alpha, rank = _first_match(self.alpha_pattern, module, self.alpha), self.rank_of(module)
        return alpha / (rank**0.5 if self.rslora else rank)

    @property
    def scale(self) -> float:
        """What `A @ B` is multiplied by where no pattern matches."""
        return self.alpha / (self.rank**0.5 if self.rslora else self.rank)


@no_type_check  # its leaves may stand for arrays: shapes, shardings, nothing
@struct.dataclass
class LoraPair:
    """The change of one linear layer: `scale * a @ b`, to be added to its `[in, out]` weight."""

    a: Float[Array, "inputs rank"]
    b: Float[Array, "rank outputs"]
    scale: float = struct.field(pytree_node=False)


@no_type_check  # its leaves may stand for arrays: shapes, shardings, nothing
@struct.dataclass
class Adapter:
    """Per layer, the pairs of the modules that are bound, by short name (`q_proj`)."""

    layers: tuple[Mapping[str, LoraPair], ...]


def init_adapter(key: jax.Array, architecture: Architecture, config: LoraConfig) -> Adapter:
    """A uniform in +-1/sqrt(inputs), B zero: at the start the policy is the base.

    Raises ConfigError for a target, one of its alternatives, or a rank or alpha pattern that binds no module, and for a
    target that names experts.
    """
    bound = bound_modules(architecture, config)
    layers: list[dict[str, LoraPair]] = [{} for _ in range(architecture.n_layers)]
    for index in range(architecture.n_layers):
        for module, (inputs, outputs) in architecture.linear_shapes(index).items():
            name = module_name(index, module)
            if name not in bound:
                continue
            limit = inputs**-0.5
            pair_key = jax.random.fold_in(jax.random.fold_in(key, index), LINEAR_MODULES.index(module))
            rank = config.rank_of(name)
            a = jax.random.uniform(pair_key, (inputs, rank), minval=-limit, maxval=limit)
            layers[index][module] = LoraPair(a=a, b=jnp.zeros((rank, outputs)), scale=config.scale_of(name))
    return Adapter(layers=tuple(layers))


def bound_modules(architecture: Architecture, config: LoraConfig) -> dict[str, tuple[str, ...]]:
    """Every module that is bound -> the targets that bind it (an alternative of a target counts as its own).

    Raises ConfigError as `init_adapter` does.
    """
    names = list(module_shapes(architecture))
    patterns = [pattern for target in config.targets for pattern in alternatives(_compiled(target).pattern)]
    if not patterns:
        raise ConfigError(Problem("targets", config.targets, "gives no pattern, so nothing would train"))
    matches = {pattern: [name for name in names if _compiled(pattern).fullmatch(name)] for pattern in patterns}
    if problems := [*_target_problems(architecture, patterns, names)]:
        raise ConfigError(problems)
    bound = {name: tuple(pattern for pattern in patterns if name in matches[pattern]) for name in names}
    bound = {name: by for name, by in bound.items() if by}
    idle = [*_idle("rank_pattern", config.rank_pattern, bound), *_idle("alpha_pattern", config.alpha_pattern, bound)]
    if idle:
        raise ConfigError(idle)
    return bound


def module_shapes(architecture: Architecture) -> dict[str, tuple[int, int]]:
    """(inputs, outputs) of every module that an adapter may change, by its whole name, in order of layers."""
    return {
        module_name(layer, module): shape
        for layer in range(architecture.n_layers)
        for module, shape in architecture.linear_shapes(layer).items()
    }


def target_counts(architecture: Architecture, config: LoraConfig) -> dict[str, int]:
    """How many modules each target, or alternative of one, binds. Raises ConfigError as `init_adapter` does."""
    return dict(Counter(target for targets in bound_modules(architecture, config).values() for target in targets))


def module_names(adapter: Adapter) -> tuple[str, ...]:
    """The Hugging Face names of the modules that the adapter changes, in order of layers."""
    return tuple(module_name(index, module) for index, pairs in enumerate(adapter.layers) for module in pairs)


def named_pairs(adapter: Adapter) -> dict[str, LoraPair]:
    """The pairs of `adapter` by the Hugging Face names of their modules, in order of layers."""
    pairs = (pair for layer in adapter.layers for pair in layer.values())
    return dict(zip(module_names(adapter), pairs, strict=True))


def delta_norm(pair: LoraPair) -> float:
    """Frobenius norm of scale * A @ B, from the small Gram matrices: no [in, out] array is made. On the host."""
    a, b = np.asarray(pair.a, np.float64), np.asarray(pair.b, np.float64)
    return float(abs(pair.scale) * np.sqrt(max(np.sum((a.T @ a) * (b @ b.T)), 0.0)))


def parameter_count(adapter: Adapter) -> int:
    """How many numbers are trained."""
    return sum(leaf.size for leaf in jax.tree.leaves(adapter))


def delta(pair: LoraPair) -> Float[np.ndarray, "inputs outputs"]:
    """What the pair adds to its layer's weight, `scale * A @ B`, in float32. On the host."""
    a, b = np.asarray(pair.a, np.float32), np.asarray(pair.b, np.float32)
    return np.float32(pair.scale) * (a @ b)


def expert_names(architecture: Architecture) -> Iterator[str]:
    """The names of the modules of every mixture: its router, and its experts as the checkpoint keeps them."""
    for layer in range(architecture.n_layers):
        for place in layer_places(architecture, layer):
            if place.field.startswith("experts.") and place.kind in ("experts", "matrix"):
                yield from (name.removesuffix(".weight") for name in place.names)


def _target_problems(architecture: Architecture, patterns: Iterable[str], names: Sequence[str]) -> Iterator[Problem]:
    """Patterns that name experts, whose rest alone would be trained, and patterns or alternatives that bind nothing."""
    experts, model = list(expert_names(architecture)), f"this {architecture.family} model"
    for pattern in patterns:
        named = [name for name in experts if _compiled(pattern).fullmatch(name)]
        idle = next(_without_match(pattern, names), None)
        if named:
            more = f" and {len(named) - 1} more" if len(named) > 1 else ""
            message = f"names experts or routers, which take no adapter ({named[0]}{more}); name what shall be trained"
            yield Problem("targets", pattern, rf"{message}, such as .*\.self_attn\..*")
        elif idle == pattern:
            message = f"binds no module of {model}; it must match a whole name, such as {names[0]}"
            yield Problem("targets", pattern, message)
        elif idle is not None:
            message = f"has an alternative that binds no module of {model}: {idle}; whole names are such as {names[0]}"
            yield Problem("targets", pattern, message)


def _idle(where: str, keys: Iterable[str], bound: Iterable[str]) -> Iterator[Problem]:
    """The keys of a rank or alpha pattern that have an alternative with which no bound module's name ends."""
    names = list(bound)
    for key in keys:
        idle = next((each for part in alternatives(key) for each in _without_match(_ending(part), names)), None)
        if idle is not None:
            part = "" if idle == _ending(key) else f" ({idle})"
            yield Problem(where, key, f"matches the end of no module that the targets bind, such as q_proj would{part}")


def _without_match(pattern: str, names: Iterable[str]) -> Iterator[str]:
    """The pattern itself, or the alternatives inside its brackets, where they are the whole name of nothing."""
    if not any(_compiled(pattern).fullmatch(name) for name in names):
        yield pattern
        return
    for alternative, narrowed in inner_alternatives(pattern):
        if not any(_compiled(narrowed).fullmatch(name) for name in names):
            yield alternative


def _first_match(patterns: Mapping[str, Number], module: str, default: Number) -> Number:
    return next((value for key, value in patterns.items() if _ends_with(key, module)), default)


def _ends_with(key: str, module: str) -> bool:
    return re.fullmatch(_ending(key), module) is not None


def _ending(key: str) -> str:
    """The pattern of the names that end with `key`, from a dot or the name's start on."""
    return rf"(.*\.)?({key})"


def _compiled(pattern: str, where: str = "targets") -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except re.error as error:
        raise ConfigError(Problem(where, pattern, f"is no regular expression: {error}")) from None

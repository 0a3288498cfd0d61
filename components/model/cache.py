"""Slots of keys and values: what earlier tokens of a sequence left for later ones. A pytree, in and out.

A slot's contents are addressed by position; whatever lies behind the position that is being written is never read.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from components.model.architecture import Architecture


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Cache:
    """Per layer, keys (already rotated) and values."""

    keys: tuple[Float[Array, "slots capacity kv_heads head_dim"], ...]
    values: tuple[Float[Array, "slots capacity kv_heads head_dim"], ...]

    @property
    def slots(self) -> int:
        """How many sequences it holds."""
        return self.keys[0].shape[0]

    @property
    def capacity(self) -> int:
        """How many positions a slot holds."""
        return self.keys[0].shape[1]


def init_cache(architecture: Architecture, slots: int, capacity: int, dtype: DTypeLike = jnp.float32) -> Cache:
    """An empty cache."""
    shape = (slots, capacity, architecture.n_kv_heads, architecture.head_dim)
    # One buffer per layer: buffers that are donated must not be shared.
    keys = tuple(jnp.zeros(shape, dtype) for _ in range(architecture.n_layers))
    values = tuple(jnp.zeros(shape, dtype) for _ in range(architecture.n_layers))
    return Cache(keys=keys, values=values)


def copy_slot(cache: Cache, source: Int[Array, ""] | int, target: Int[Array, ""] | int) -> Cache:
    """The cache with the contents of slot `source` also in slot `target`."""
    return jax.tree.map(lambda buffer: buffer.at[target].set(buffer[source]), cache)


def write(
    buffer: Float[Array, "slots capacity kv_heads head_dim"],
    new: Float[Array, "rows time kv_heads head_dim"],
    slots: Int[Array, " rows"],
    positions: Int[Array, "rows time"],
) -> Float[Array, "slots capacity kv_heads head_dim"]:
    """Put `new` where it belongs. A slot or a position outside the buffer is dropped."""
    return buffer.at[slots[:, None], positions].set(new.astype(buffer.dtype), mode="drop")

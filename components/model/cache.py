"""Slots of keys and values: what earlier tokens of a sequence left for later ones. A pytree, in and out.

A slot's contents are addressed by position; whatever lies behind the position that is being written is never read.
"""

from typing import no_type_check

import jax
import jax.numpy as jnp
from flax import struct
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from components.model.architecture import Architecture


@no_type_check  # its leaves may stand for arrays: shapes, shardings, nothing
@struct.dataclass
class Cache:
    """Per layer, keys (already rotated) and values.

    Keys lie with the positions last and values with the numbers of a head last, because that is how the two products of
    attention read them: in two thirds of the time of keys that lie like values.
    """

    keys: tuple[Float[Array, "slots kv_heads head_dim capacity"], ...]
    values: tuple[Float[Array, "slots kv_heads capacity head_dim"], ...]

    @property
    def slots(self) -> int:
        """How many sequences it holds."""
        return self.keys[0].shape[0]

    @property
    def capacity(self) -> int:
        """How many positions a slot holds."""
        return self.keys[0].shape[3]


def init_cache(architecture: Architecture, slots: int, capacity: int, dtype: DTypeLike = jnp.float32) -> Cache:
    """An empty cache."""
    outer, head_dim = (slots, architecture.n_kv_heads), architecture.head_dim
    # One buffer per layer: buffers that are donated must not be shared.
    keys = tuple(jnp.zeros((*outer, head_dim, capacity), dtype) for _ in range(architecture.n_layers))
    values = tuple(jnp.zeros((*outer, capacity, head_dim), dtype) for _ in range(architecture.n_layers))
    return Cache(keys=keys, values=values)


def copy_slot(cache: Cache, source: Int[Array, ""] | int, target: Int[Array, ""] | int) -> Cache:
    """The cache with the contents of slot `source` also in slot `target`."""
    return jax.tree.map(lambda buffer: buffer.at[target].set(buffer[source]), cache)


def write(
    cache: Cache,
    layer: int,
    keys: Float[Array, "rows time kv_heads head_dim"],
    values: Float[Array, "rows time kv_heads head_dim"],
    slots: Int[Array, " rows"],
    positions: Int[Array, "rows time"],
) -> tuple[Float[Array, "slots kv_heads head_dim capacity"], Float[Array, "slots kv_heads capacity head_dim"]]:
    """One layer's buffers with new keys and values put in. A slot or a position outside the buffers is dropped."""
    old_keys, old_values, rows = cache.keys[layer], cache.values[layer], slots[:, None]
    new_keys = old_keys.at[rows, :, :, positions].set(keys.astype(old_keys.dtype), mode="drop")
    new_values = old_values.at[rows, :, positions].set(values.astype(old_values.dtype), mode="drop")
    return new_keys, new_values

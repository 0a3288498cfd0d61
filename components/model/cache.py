"""Slots of keys and values: what earlier tokens of a sequence left for later ones. A pytree, in and out.

A slot's contents are addressed by position; whatever lies behind the position that is being written is never read.
"""

from typing import no_type_check

import jax
import jax.numpy as jnp
from flax import struct
from jax import lax
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from components.model.architecture import Architecture
from components.model.lockstep import program
from components.model.placement import HERE, Placement
from components.model.sharding import ROWS


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


@program
def init_cache(
    architecture: Architecture,
    slots: int,
    capacity: int,
    dtype: DTypeLike = jnp.float32,
    *,
    placement: Placement = HERE,
) -> Cache:
    """An empty cache, its slots and key heads split over the devices of `placement`."""

    def buffer(*shape: int) -> Array:
        return jnp.zeros(shape, dtype, device=placement.sharding((ROWS, "heads", None, None), shape))

    shapes = [_held(architecture, layer) for layer in range(architecture.n_layers)]
    # One buffer per layer: buffers that are donated must not be shared.
    keys = tuple(buffer(slots, kv_heads, head_dim, capacity) for kv_heads, head_dim in shapes)
    values = tuple(buffer(slots, kv_heads, capacity, head_dim) for kv_heads, head_dim in shapes)
    return Cache(keys=keys, values=values)


def _held(architecture: Architecture, layer: int) -> tuple[int, int]:
    """(key heads, size of a head) in a layer's buffers; a layer that borrows its keys holds none."""
    kv_heads, head_dim = architecture.kv_shape(layer)
    return (kv_heads if architecture.kv_owner(layer) == layer else 0), head_dim


def copy_slot(cache: Cache, source: Int[Array, ""] | int, target: Int[Array, ""] | int) -> Cache:
    """The cache with the contents of slot `source` also in slot `target`."""
    return jax.tree.map(lambda buffer: buffer.at[target].set(buffer[source]), cache)


def take_rows(cache: Cache, slots: Int[Array, " rows"]) -> Cache:
    """A cache whose slots are copies of these, in this order."""
    return jax.tree.map(lambda buffer: buffer[slots], cache)


def put_back(
    cache: Cache,
    rows: Cache,
    slots: Int[Array, " rows"],
    starts: Int[Array, " rows"],
    count: Int[Array, ""],
    *,
    length: int,
) -> Cache:
    """The cache with `length` positions of the first `count` rows, from `starts` on, put into `slots`.

    Only what is new is moved: whole rows would take seven times as long for 8 positions of 192.
    """
    length = min(length, cache.capacity)

    def move(buffer: Array, source: Array, row: Array, axis: int) -> Array:
        # A start too close to the end is moved back, here and there alike: it takes along what is equal anyway.
        place = [jnp.zeros((), jnp.int32)] * 4
        place[axis] = starts[row]
        shape = (1, *(length if each == axis else source.shape[each] for each in (1, 2, 3)))
        piece = lax.dynamic_slice(source, [row, *place[1:]], shape)
        return lax.dynamic_update_slice(buffer, piece, [slots[row], *place[1:]])

    def put(row: Array, into: Cache) -> Cache:
        keys = (move(buffer, source, row, 3) for buffer, source in zip(into.keys, rows.keys, strict=True))
        values = (move(buffer, source, row, 2) for buffer, source in zip(into.values, rows.values, strict=True))
        return Cache(keys=tuple(keys), values=tuple(values))

    return lax.fori_loop(0, count, put, cache)


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

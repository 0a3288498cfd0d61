"""Queries, keys, values and a mask -> mixed values. Heads may share keys (arXiv:2305.13245)."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from components.model.architecture import Architecture
from components.model.switches import LinearScaling, Llama3Scaling, PartialRotation, Rope

# Finite, so that a row in which everything is masked is uniform instead of NaN.
_MASKED = -1e30


@functools.cache
def inverse_frequencies(rope: Rope, head_dim: int) -> np.ndarray:
    """Radians per position for each of the head_dim / 2 planes, scaling included."""
    frequencies = rope.theta ** -(np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)
    match rope.scaling:
        case LinearScaling(factor):
            frequencies = frequencies / factor
        case Llama3Scaling(factor, low, high, original):
            turns = original * frequencies / (2 * np.pi)
            kept = np.clip((turns - low) / (high - low), 0.0, 1.0)
            frequencies = kept * frequencies + (1 - kept) * frequencies / factor
        case PartialRotation(fraction, factor):
            planes = np.arange(head_dim // 2)
            frequencies = np.where(planes < int(fraction * head_dim // 2), frequencies / factor, 0.0)
    return frequencies.astype(np.float32)


def rope_table(
    rope: Rope, head_dim: int, positions: Int[Array, "rows time"]
) -> tuple[Float[Array, "rows time 1 half"], Float[Array, "rows time 1 half"]]:
    """Cosines and sines of the angle of each position, with an axis for the heads."""
    angles = positions[..., None, None].astype(jnp.float32) * inverse_frequencies(rope, head_dim)
    return jnp.cos(angles), jnp.sin(angles)


def rotate(
    x: Float[Array, "rows time heads head_dim"],
    table: tuple[Float[Array, "rows time 1 half"], Float[Array, "rows time 1 half"]],
) -> Float[Array, "rows time heads head_dim"]:
    """Turn the first half of a head's numbers against the second."""
    cos, sin = table
    first, second = jnp.split(x, 2, axis=-1)
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


def attend(
    architecture: Architecture,
    queries: Float[Array, "rows time heads head_dim"],
    keys: Float[Array, "rows kv_heads head_dim source"],
    values: Float[Array, "rows kv_heads source head_dim"],
    mask: Bool[Array, "rows time source"],
) -> Float[Array, "rows time heads head_dim"]:
    """Attention of every query to the sources that its mask lets it see; keys and values lie as in a `Cache`."""
    rows, time, _, head_dim = queries.shape
    kv_heads = keys.shape[1]
    grouped = queries.reshape(rows, time, kv_heads, -1, head_dim).swapaxes(1, 2) * architecture.query_scale
    # Products of plain matrices per row and key head: an einsum would put the keys first, which is slower.
    scores = _product(grouped.reshape(rows, kv_heads, -1, head_dim), keys)
    scores = scores.reshape(rows, kv_heads, time, -1, scores.shape[-1])
    if architecture.attention_softcap is not None:
        scores = architecture.attention_softcap * jnp.tanh(scores / architecture.attention_softcap)
    weights = jax.nn.softmax(jnp.where(mask[:, None, :, None], scores, _MASKED), axis=-1)
    mixed = _product(weights.reshape(rows, kv_heads, -1, scores.shape[-1]), values)
    return mixed.reshape(rows, kv_heads, time, -1, head_dim).swapaxes(1, 2).reshape(queries.shape)


def _product(left: Float[Array, "rows kv m k"], right: Float[Array, "rows kv k n"]) -> Float[Array, "rows kv m n"]:
    return jnp.matmul(left, right, preferred_element_type=jnp.float32)

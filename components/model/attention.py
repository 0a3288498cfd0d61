"""Queries, keys, values and a mask -> mixed values. Heads may share keys (arXiv:2305.13245)."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from components.model import platform
from components.model.architecture import Architecture, LinearScaling, Llama3Scaling, Rope

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
    keys: Float[Array, "rows source kv_heads head_dim"],
    values: Float[Array, "rows source kv_heads head_dim"],
    mask: Bool[Array, "rows time source"],
) -> Float[Array, "rows time heads head_dim"]:
    """Attention of every query to the sources that its mask lets it see."""
    rows, time, heads, head_dim = queries.shape
    kv_heads = keys.shape[2]
    grouped = queries.reshape(rows, time, kv_heads, heads // kv_heads, head_dim) * architecture.query_scale
    by_sum = time == 1 and platform.current().decode_by_sum
    mixed = (_by_sum if by_sum else _by_product)(grouped, keys, values, mask, architecture.attention_softcap)
    return mixed.reshape(rows, time, heads, head_dim)


def _by_product(
    queries: Float[Array, "rows time kv_heads group head_dim"],
    keys: Float[Array, "rows source kv_heads head_dim"],
    values: Float[Array, "rows source kv_heads head_dim"],
    mask: Bool[Array, "rows time source"],
    softcap: float | None,
) -> Float[Array, "rows time kv_heads group head_dim"]:
    scores = jnp.einsum("rtkgh,rskh->rkgts", queries, keys, preferred_element_type=jnp.float32)
    weights = _weights(scores, mask[:, None, None], softcap, axis=-1)
    return jnp.einsum("rkgts,rskh->rtkgh", weights, values, preferred_element_type=jnp.float32)


def _by_sum(
    queries: Float[Array, "rows 1 kv_heads group head_dim"],
    keys: Float[Array, "rows source kv_heads head_dim"],
    values: Float[Array, "rows source kv_heads head_dim"],
    mask: Bool[Array, "rows 1 source"],
    softcap: float | None,
) -> Float[Array, "rows 1 kv_heads group head_dim"]:
    scores = jnp.sum(queries * keys[:, :, :, None].astype(jnp.float32), axis=-1)
    weights = _weights(scores, mask[:, 0, :, None, None], softcap, axis=1)
    return jnp.sum(weights[..., None] * values[:, :, :, None].astype(jnp.float32), axis=1, keepdims=True)


def _weights(
    scores: Float[Array, "..."], mask: Bool[Array, "..."], softcap: float | None, *, axis: int
) -> Float[Array, "..."]:
    if softcap is not None:
        scores = softcap * jnp.tanh(scores / softcap)
    return jax.nn.softmax(jnp.where(mask, scores, _MASKED), axis=axis)

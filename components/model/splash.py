"""Attention over packed rows by JAX's splash kernel for TPUs: no [time, time] scores in memory, in either direction.

What `attention.attend` computes, for rows as the trainer packs them: segments lie one behind the other and positions
count up in each, so "at my position or before, in my segment" is "at my place or before, in my segment".
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as kernels
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks
from jaxtyping import Array, Float, Int

from components.model.architecture import Architecture
from components.model.sharding import ROWS, partition

LANES = 128
"""Rows and heads are padded to multiples of this, the width of a TPU's vector registers."""
BLOCK = 512
"""Places that the kernel takes at once, at most."""


def attend(
    architecture: Architecture,
    queries: Float[Array, "rows time heads head_dim"],
    keys: Float[Array, "rows time kv_heads head_dim"],
    values: Float[Array, "rows time kv_heads head_dim"],
    segments: Int[Array, "rows time"],
    *,
    window: int | None,
    interpret: bool = False,
) -> Float[Array, "rows time heads head_dim"]:
    """Attention in every row, head and segment; of tokens less than `window` behind, where there is one.

    On a mesh each device computes the rows and heads that it holds. `interpret` runs the kernel anywhere, slowly.
    """
    rows, time, _, head_dim = queries.shape
    kv_heads = keys.shape[2]
    grouped = queries.reshape(rows, time, kv_heads, -1, head_dim).transpose(0, 2, 3, 1, 4) * architecture.query_scale
    keys, values = (_padded(each.transpose(0, 2, 1, 3)) for each in (keys, values))
    grouped = _padded(grouped)
    segments = jnp.pad(segments, ((0, 0), (0, grouped.shape[3] - time)))
    kernel = _kernel(grouped.shape[2], grouped.shape[3], window, architecture.attention_softcap, interpret)
    mixed = _over_mesh(kernel, grouped, keys, values, segments)
    return mixed[:, :, :, :time, :head_dim].transpose(0, 3, 1, 2, 4).reshape(queries.shape)


def _padded(x: Float[Array, "... time head_dim"]) -> Float[Array, "... padded_time padded_dim"]:
    short = [(0, -size % LANES) for size in x.shape[-2:]]
    return jnp.pad(x, [(0, 0)] * (x.ndim - 2) + short)


def _kernel(
    heads: int, time: int, window: int | None, softcap: float | None, interpret: bool
) -> kernels.SplashAttentionKernel:
    """One key head and the `heads` query heads that share it, over a row."""
    shape = (time, time)
    mask = masks.CausalMask(shape) if window is None else masks.LocalMask(shape, (window - 1, 0), 0)
    size = next(size for size in (BLOCK, 256, LANES) if time % size == 0)
    return kernels.make_splash_mqa_single_device(
        masks.MultiHeadMask([mask] * heads),
        block_sizes=kernels.BlockSizes(
            block_q=size,
            block_kv=size,
            block_kv_compute=size,
            block_q_dkv=size,
            block_kv_dkv=size,
            block_kv_dkv_compute=size,
            block_q_dq=size,
            block_kv_dq=size,
        ),
        attn_logits_soft_cap=softcap,
        interpret=interpret,
    )


def _over_mesh(
    kernel: kernels.SplashAttentionKernel,
    queries: Float[Array, "rows kv_heads group time head_dim"],
    keys: Float[Array, "rows kv_heads time head_dim"],
    values: Float[Array, "rows kv_heads time head_dim"],
    segments: Int[Array, "rows time"],
) -> Float[Array, "rows kv_heads group time head_dim"]:
    """The kernel for all rows and key heads; the compiler cannot split a kernel, so this does."""

    def local(queries: Array, keys: Array, values: Array, segments: Array) -> Array:
        def row(queries: Array, keys: Array, values: Array, segments: Array) -> Any:
            ids = kernels.SegmentIds(segments, segments)
            return jax.vmap(functools.partial(kernel, segment_ids=ids))(queries, keys, values)

        return jax.vmap(row)(queries, keys, values, segments)

    mesh = jax.typeof(queries).sharding.mesh
    if mesh.empty or mesh.size == 1:
        return local(queries, keys, values, segments)
    by_head = partition(mesh, (ROWS, "heads", None, None, None), queries.shape)
    of_keys = partition(mesh, (ROWS, "heads", None, None), keys.shape)
    of_rows = partition(mesh, (ROWS, None), segments.shape)
    specs = (by_head, of_keys, of_keys, of_rows)
    return jax.shard_map(local, mesh=mesh, in_specs=specs, out_specs=by_head, check_vma=False)(
        queries, keys, values, segments
    )

"""(base, adapter, tokens) -> hidden states and logits. One decoder with the switches that checkpoints need.

The policy is a function of two pytrees. Nothing here copies the base: with `adapter=None` the same arrays are the
reference policy. Activations are float32 whatever the dtype of the base.
"""

import functools
from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from components.model import attention, platform, splash
from components.model.architecture import Architecture
from components.model.base import Base, Experts, Layer, Linear
from components.model.cache import Cache, write
from components.model.experts import mix
from components.model.lora import Adapter, LoraPair
from components.model.quantise import Matrix, dense_beside, is_quantised, take_rows
from components.model.remat import Remat, kept
from components.model.sharding import ROWS, constrain
from components.model.vocabulary import Blocks

Table = tuple[Float[Array, "rows time 1 half"], Float[Array, "rows time 1 half"]]
LocalTable = tuple[Float[Array, "rows time 1 local_half"], Float[Array, "rows time 1 local_half"]]
Pairs = Mapping[str, LoraPair]


def forward(
    architecture: Architecture,
    base: Base,
    adapter: Adapter | None,
    tokens: Int[Array, "rows time"],
    positions: Int[Array, "rows time"],
    segments: Int[Array, "rows time"],
    *,
    remat: Remat | bool = "full",
) -> Float[Array, "rows time d_model"]:
    """Hidden states after the final norm, for rows into which sequences are packed.

    A token sees the tokens of its own segment at its own position or before; segment 0 is padding. Positions count
    from 0 in each segment. `remat` says what a gradient keeps: with `full` one hidden state per layer, and it computes
    the rest again, a fifth of the memory of `none` for a sixth more time; True is `full`, False is `none`. Without a
    gradient it makes no difference.
    """
    masks = _packed_masks(architecture, positions, segments)
    kind: Remat = remat if isinstance(remat, str) else "full" if remat else "none"
    blocks = {window: _make_block(architecture, window, kind) for window in masks}
    tables = _tables(architecture, positions)
    x = _embed(architecture, base, tokens)
    second, entered = _second_embeddings(architecture, base, tokens, x), []
    for index, layer in enumerate(base.layers):
        window, owner = architecture.windows[index], architecture.kv_owner(index)
        entered.append(x)
        lender = (base.layers[owner], _pairs(adapter, owner), entered[owner]) if owner != index else None
        table, mask = tables[window is not None], masks[window]
        x = blocks[window](layer, _pairs(adapter, index), x, lender, second[index], table, mask, segments)
    return _norm(x, base.final_norm, architecture.norm_eps)


def forward_cached(
    architecture: Architecture,
    base: Base,
    adapter: Adapter | None,
    tokens: Int[Array, "rows time"],
    cache: Cache,
    *,
    slots: Int[Array, " rows"] | None,
    starts: Int[Array, " rows"],
) -> tuple[Float[Array, "rows time d_model"], Cache]:
    """Continue sequences: row i goes on in slot `slots[i]` at position `starts[i]` (`slots=None`: row i is slot i).

    Keys and values of `tokens` are written at positions starts .. starts + time; each token sees everything before it
    in its slot. A row whose slot is the number of slots, and positions beyond the capacity, are not written: that is
    how a batch is padded. Tokens that pad the end of a row write behind it, where the next call overwrites them.
    """
    rows, time = tokens.shape
    places = jnp.arange(rows) if slots is None else slots
    positions = starts[:, None] + jnp.arange(time)
    masks = _cached_masks(architecture, positions, cache.capacity)
    tables = _tables(architecture, positions)
    x = _embed(architecture, base, tokens)
    second = _second_embeddings(architecture, base, tokens, x)
    all_keys, all_values = list(cache.keys), list(cache.values)
    for index, layer in enumerate(base.layers):
        window, pairs, owner = architecture.windows[index], _pairs(adapter, index), architecture.kv_owner(index)
        table = tables[window is not None]
        normed = _norm(x, layer.attention_norm, architecture.norm_eps)
        if owner == index:
            keys, values = _keys_values(architecture, layer, pairs, normed, table)
            all_keys[index], all_values[index] = write(cache, index, keys, values, places, positions)
        layer_keys, layer_values = all_keys[owner], all_values[owner]
        if slots is not None:
            layer_keys, layer_values = layer_keys[slots], layer_values[slots]
        queries = _queries(architecture, layer, pairs, normed, table)
        mixed = attention.attend(architecture, queries, layer_keys, layer_values, masks[window])
        x = _finish(architecture, layer, pairs, x, second[index], mixed)
    return _norm(x, base.final_norm, architecture.norm_eps), Cache(keys=tuple(all_keys), values=tuple(all_values))


def logits(
    architecture: Architecture, base: Base, hidden: Float[Array, "*rows d_model"]
) -> Float[Array, "*rows vocab"]:
    """Scores over the vocabulary, float32, the final soft cap included."""
    folded = hidden.reshape(-1, hidden.shape[-1])
    head = base.embedding if base.head is None else base.head
    products = _products_by_block(folded, head) if is_quantised(head) else matmul(folded, head, True)
    return soft_cap(products, architecture.final_softcap).reshape(*hidden.shape[:-1], -1)


def soft_cap(scores: Float[Array, "..."], cap: float | None) -> Float[Array, "..."]:
    """Scores squeezed to less than `cap` either way, where there is one."""
    return scores if cap is None else cap * jnp.tanh(scores / cap)


def _products_by_block(x: Float[Array, "rows d_model"], head: Matrix) -> Float[Array, "rows vocab"]:
    """`x @ head.T`, with one block of the head as numbers at a time."""
    blocks = Blocks.of(head)

    def step(products: Float[Array, "rows vocab"], block: Int[Array, ""]) -> Float[Array, "rows vocab"]:
        return blocks.put(products, matmul(x, blocks.take(head, block), True), block)

    return blocks.over(step, jnp.zeros((len(x), blocks.rows)))


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def matmul(x: Float[Array, "rows inputs"], weight: Matrix, transposed: bool = False) -> Float[Array, "rows outputs"]:
    """`x @ weight` (or `x @ weight.T`): multiplied in the weight's dtype, summed in float32.

    Its own derivative, because the one that JAX derives would multiply a float32 cotangent by a bfloat16 weight,
    which first writes out the weight again in float32. A quantised weight is kept quantised for the backward pass, and
    has no gradient of its own.
    """
    rows, weight = len(x), dense_beside(weight, x)
    short = max(0, platform.current().least_rows(weight.dtype) - rows)
    return contract(jnp.pad(x.astype(weight.dtype), ((0, short), (0, 0))), weight, 1, int(transposed))[:rows]


def _matmul_forward(x: Array, weight: Matrix, transposed: bool) -> tuple[Array, tuple[Array, Matrix]]:
    return matmul(x, weight, transposed), (x, weight)


def _matmul_backward(transposed: bool, saved: tuple[Array, Matrix], cotangent: Array) -> tuple[Array, Array | None]:
    x, weight = saved
    to_x = contract(cotangent.astype(weight.dtype), dense_beside(weight, cotangent), 1, 1 - int(transposed))
    if is_quantised(weight):
        return to_x, None
    left, right = (cotangent, x) if transposed else (x, cotangent)
    return to_x, contract(left, right, 0, 0).astype(weight.dtype)


matmul.defvjp(_matmul_forward, _matmul_backward)


def contract(left: Array, right: Array, left_axis: int, right_axis: int) -> Array:
    """The product of two matrices along one axis of each, summed in float32."""
    dimensions = (((left_axis,), (right_axis,)), ((), ()))
    return lax.dot_general(left, right, dimensions, preferred_element_type=jnp.float32)


def _pairs(adapter: Adapter | None, index: int) -> Pairs:
    return {} if adapter is None else adapter.layers[index]


def _embed(
    architecture: Architecture, base: Base, tokens: Int[Array, "rows time"]
) -> Float[Array, "rows time d_model"]:
    # The scale is rounded to the base's dtype because that is what the checkpoints were trained with.
    scale = jnp.asarray(architecture.embed_scale, base.embedding.dtype).astype(jnp.float32)
    return constrain(take_rows(base.embedding, tokens).astype(jnp.float32) * scale, ROWS, None, None)


def _second_embeddings(
    architecture: Architecture, base: Base, tokens: Int[Array, "rows time"], x: Float[Array, "rows time d_model"]
) -> list[Float[Array, "rows time width"] | None]:
    """What each layer gets of the second embedding: a part looked up, and a part made of the first."""
    second, switch = base.second_embedding, architecture.layer_embedding
    if second is None or switch is None:
        return [None] * architecture.n_layers
    shape = (*tokens.shape, architecture.n_layers, switch.width)
    scale = jnp.asarray(switch.width**0.5, second.table.dtype).astype(jnp.float32)
    looked_up = take_rows(second.table, tokens).astype(jnp.float32).reshape(shape) * scale
    made = _linear(second.projection, None, x).reshape(shape) * architecture.d_model**-0.5
    both = (looked_up + _norm(made, second.norm, architecture.norm_eps)) * 2**-0.5
    return [both[:, :, index] for index in range(architecture.n_layers)]


def _make_block(architecture: Architecture, window: int | None, remat: Remat) -> Callable[..., Array]:
    return platform.current().rematerialise(functools.partial(_block, architecture, window), remat)


def _block(
    architecture: Architecture,
    window: int | None,
    layer: Layer,
    pairs: Pairs,
    x: Float[Array, "rows time d_model"],
    lender: tuple[Layer, Pairs, Float[Array, "rows time d_model"]] | None,
    second: Float[Array, "rows time width"] | None,
    table: Table,
    mask: Bool[Array, "rows time time"] | None,
    segments: Int[Array, "rows time"],
) -> Float[Array, "rows time d_model"]:
    """One layer over whole rows. A layer that borrows keys and values makes them again, from what their owner saw."""
    normed = _norm(x, layer.attention_norm, architecture.norm_eps)
    queries = _queries(architecture, layer, pairs, normed, table)
    if lender is None:
        keys, values = _keys_values(architecture, layer, pairs, normed, table)
    else:
        owner, owner_pairs, entered = lender
        entered = _norm(entered, owner.attention_norm, architecture.norm_eps)
        keys, values = _keys_values(architecture, owner, owner_pairs, entered, table)
    if mask is None:
        interpret = platform.current().packed_attention == "interpreted"
        mixed = splash.attend(architecture, queries, keys, values, segments, window=window, interpret=interpret)
    else:
        mixed = attention.attend(architecture, queries, keys.transpose(0, 2, 3, 1), values.transpose(0, 2, 1, 3), mask)
    return _finish(architecture, layer, pairs, x, second, mixed)


def _queries(
    architecture: Architecture, layer: Layer, pairs: Pairs, normed: Float[Array, "rows time d_model"], table: Table
) -> Float[Array, "rows time heads head_dim"]:
    """Queries of one layer, rotated."""
    queries = _by_head(_linear(layer.q_proj, pairs.get("q_proj"), normed), table)
    if layer.q_norm is not None:
        queries = _norm(queries, layer.q_norm, architecture.norm_eps)
    return attention.rotate(queries, table)


def _keys_values(
    architecture: Architecture, layer: Layer, pairs: Pairs, normed: Float[Array, "rows time d_model"], table: Table
) -> tuple[Float[Array, "rows time kv hd"], Float[Array, "rows time kv hd"]]:
    """Keys (rotated) and values of one layer; where it has no projection for values, they are the bare keys."""
    assert layer.k_proj is not None
    keys = _by_head(_linear(layer.k_proj, pairs.get("k_proj"), normed), table)
    values = keys
    if layer.v_proj is not None:
        values = _by_head(_linear(layer.v_proj, pairs.get("v_proj"), normed), table)
    if layer.k_norm is not None:
        keys = _norm(keys, layer.k_norm, architecture.norm_eps)
    if architecture.value_norm:
        values = _norm(values, jnp.ones(values.shape[-1]), architecture.norm_eps)
    return attention.rotate(keys, table), values


def _by_head(x: Float[Array, "rows time width"], table: Table) -> Float[Array, "rows time heads head_dim"]:
    return constrain(x.reshape(*x.shape[:2], -1, 2 * table[0].shape[-1]), ROWS, None, "heads", None)


def _finish(
    architecture: Architecture,
    layer: Layer,
    pairs: Pairs,
    x: Float[Array, "rows time d_model"],
    second: Float[Array, "rows time width"] | None,
    mixed: Float[Array, "rows time heads head_dim"],
) -> Float[Array, "rows time d_model"]:
    """What follows the attention in one layer: its output, the MLP or experts, the layer's part of the embedding."""
    eps = architecture.norm_eps
    attended = _linear(layer.o_proj, pairs.get("o_proj"), mixed.reshape(*x.shape[:2], -1))
    x = x + (attended if layer.post_attention_norm is None else _norm(attended, layer.post_attention_norm, eps))
    fed = _feed(architecture, layer, pairs, x)
    x = x + (fed if layer.post_mlp_norm is None else _norm(fed, layer.post_mlp_norm, eps))
    if layer.layer_input is not None and second is not None:
        gate = _activate(architecture, _linear(layer.layer_input.gate, None, x))
        x = x + _norm(_linear(layer.layer_input.projection, None, gate * second), layer.layer_input.post_norm, eps)
    return constrain(x if layer.scale is None else x * layer.scale, ROWS, None, None)


def _feed(
    architecture: Architecture, layer: Layer, pairs: Pairs, x: Float[Array, "rows time d_model"]
) -> Float[Array, "rows time d_model"]:
    """The gated MLP (arXiv:2002.05202), a mixture of experts, or the sum of both, normed each for itself."""
    eps, experts = architecture.norm_eps, layer.experts
    normed = _norm(x, layer.mlp_norm, eps)
    if experts is None:
        return _mlp(architecture, layer, pairs, normed)
    if experts.beside is None:
        return _mix(architecture, experts, normed, normed)
    beside = experts.beside
    routed = _norm(x, beside.router_scale * architecture.d_model**-0.5, eps)
    mixed = _norm(_mix(architecture, experts, routed, _norm(x, beside.norm, eps)), beside.post_norm, eps)
    return _norm(_mlp(architecture, layer, pairs, normed), beside.mlp_post_norm, eps) + mixed


def _mlp(
    architecture: Architecture, layer: Layer, pairs: Pairs, x: Float[Array, "rows time d_model"]
) -> Float[Array, "rows time d_model"]:
    assert layer.gate_proj is not None
    assert layer.up_proj is not None
    assert layer.down_proj is not None
    gate = _activate(architecture, _linear(layer.gate_proj, pairs.get("gate_proj"), x))
    up = _linear(layer.up_proj, pairs.get("up_proj"), x)
    return _linear(layer.down_proj, pairs.get("down_proj"), constrain(gate * up, ROWS, None, "hidden"))


def _mix(
    architecture: Architecture,
    experts: Experts,
    routed: Float[Array, "rows time d_model"],
    x: Float[Array, "rows time d_model"],
) -> Float[Array, "rows time d_model"]:
    assert architecture.mixture is not None
    routed, rows = (each.reshape(-1, x.shape[-1]) for each in (routed, x))
    activate = functools.partial(_activate, architecture)
    return mix(architecture.mixture, experts, routed, rows, product=matmul, activate=activate).reshape(x.shape)


def _activate(architecture: Architecture, x: Float[Array, "..."]) -> Float[Array, "..."]:
    return jax.nn.silu(x) if architecture.activation == "silu" else jax.nn.gelu(x, approximate=True)


def _linear(
    linear: Linear, pair: LoraPair | None, x: Float[Array, "rows time inputs"]
) -> Float[Array, "rows time outputs"]:
    # Folded to two dimensions: a CPU multiplies these up to twice as fast, weight gradients above all.
    folded = x.reshape(-1, x.shape[-1])
    out = matmul(folded, linear.weight)
    if linear.bias is not None:
        out = out + linear.bias
    if pair is not None:
        out = out + pair.scale * matmul(matmul(folded, pair.a), pair.b)
    return kept(out).reshape(*x.shape[:-1], -1)


def _norm(x: Float[Array, "*axes width"], weight: Float[Array, " width"], eps: float) -> Float[Array, "*axes width"]:
    """Root mean square layer norm (arXiv:1910.07467)."""
    return x * lax.rsqrt(jnp.mean(jnp.square(x), axis=-1, keepdims=True) + eps) * weight


def _tables(architecture: Architecture, positions: Int[Array, "rows time"]) -> tuple[Table, LocalTable]:
    """The rotation of layers that see everything, and of layers with a window."""
    wide = architecture.head_dim if architecture.global_heads is None else architecture.global_heads.head_dim
    whole = attention.rope_table(architecture.rope, wide, positions)
    if architecture.local_rope is None:
        return whole, whole
    return whole, attention.rope_table(architecture.local_rope, architecture.head_dim, positions)


def _packed_masks(
    architecture: Architecture, positions: Int[Array, "rows time"], segments: Int[Array, "rows time"]
) -> Mapping[int | None, Bool[Array, "rows time time"] | None]:
    """One mask per kind of layer, by its window; None where a kernel makes its own."""
    if platform.current().packed_attention != "plain":
        return dict.fromkeys(architecture.windows)
    distance = positions[:, :, None] - positions[:, None, :]
    seen = (distance >= 0) & (segments[:, :, None] == segments[:, None, :])
    return {window: _within(seen, distance, window) for window in set(architecture.windows)}


def _cached_masks(
    architecture: Architecture, positions: Int[Array, "rows time"], capacity: int
) -> dict[int | None, Bool[Array, "rows time capacity"]]:
    distance = positions[:, :, None] - jnp.arange(capacity)
    return {window: _within(distance >= 0, distance, window) for window in set(architecture.windows)}


def _within(seen: Bool[Array, "..."], distance: Int[Array, "..."], window: int | None) -> Bool[Array, "..."]:
    return seen if window is None else seen & (distance < window)

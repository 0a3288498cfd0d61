"""The frozen weights as a pytree: one record per layer, because unrolled layers are faster than a scan on a CPU.

Linear weights are `[in, out]`. Norm weights are float32 whatever the dtype of the rest, and are whole: where a
checkpoint stores them with 1 subtracted, loading has added it.
"""

from typing import no_type_check

import jax
import jax.numpy as jnp
from flax import struct
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from components.model.architecture import Architecture
from components.model.quantise import Matrix

ATTENTION_MODULES = ("q_proj", "k_proj", "v_proj", "o_proj")
MLP_MODULES = ("gate_proj", "up_proj", "down_proj")
LINEAR_MODULES = ATTENTION_MODULES + MLP_MODULES


@no_type_check  # its leaves may stand for arrays: shapes, shardings, nothing
@struct.dataclass
class Linear:
    """`y = x @ weight + bias`, the weight `[inputs, outputs]`, as numbers or quantised."""

    weight: Matrix
    bias: Float[Array, " outputs"] | None = None


@no_type_check  # its leaves may stand for arrays: shapes, shardings, nothing
@struct.dataclass
class Beside:
    """What a mixture needs that stands beside an MLP.

    `router_scale` multiplies what the router reads, `output_scale` what an expert is weighted with; the norms are of
    what the experts read, of their sum, and of what the MLP gives.
    """

    router_scale: Float[Array, " d_model"]
    output_scale: Float[Array, " experts"]
    norm: Float[Array, " d_model"]
    post_norm: Float[Array, " d_model"]
    mlp_post_norm: Float[Array, " d_model"]


@no_type_check  # its leaves may stand for arrays: shapes, shardings, nothing
@struct.dataclass
class Experts:
    """A mixture in one layer, the weights of its experts `[experts, inputs, outputs]`.

    `gate_up` holds each expert's gate and, behind it, its up projection.
    """

    router: Float[Array, "d_model experts"]
    gate_up: Matrix
    down: Matrix
    beside: Beside | None = None


@no_type_check  # its leaves may stand for arrays: shapes, shardings, nothing
@struct.dataclass
class LayerInput:
    """How a layer takes in its part of the second embedding: gated by the residual stream, projected, normed, added."""

    gate: Linear
    projection: Linear
    post_norm: Float[Array, " d_model"]


@no_type_check  # its leaves may stand for arrays: shapes, shardings, nothing
@struct.dataclass
class SecondEmbedding:
    """Numbers for every layer from a token (a table) and from its embedding (a projection, normed per layer)."""

    table: Matrix
    projection: Linear
    norm: Float[Array, " width"]


@no_type_check  # its leaves may stand for arrays: shapes, shardings, nothing
@struct.dataclass
class Layer:
    """One block; what its architecture, or its place in it, does without is None."""

    attention_norm: Float[Array, " d_model"]
    q_proj: Linear
    o_proj: Linear
    mlp_norm: Float[Array, " d_model"]
    k_proj: Linear | None = None
    v_proj: Linear | None = None
    gate_proj: Linear | None = None
    up_proj: Linear | None = None
    down_proj: Linear | None = None
    q_norm: Float[Array, " head_dim"] | None = None
    k_norm: Float[Array, " head_dim"] | None = None
    post_attention_norm: Float[Array, " d_model"] | None = None
    post_mlp_norm: Float[Array, " d_model"] | None = None
    experts: Experts | None = None
    layer_input: LayerInput | None = None
    scale: Float[Array, "1"] | None = None


@no_type_check  # its leaves may stand for arrays: shapes, shardings, nothing
@struct.dataclass
class Base:
    """All weights of a model. `head` is None where the embedding is the head; both are `[vocab, d_model]`."""

    embedding: Matrix
    layers: tuple[Layer, ...]
    final_norm: Float[Array, " d_model"]
    head: Matrix | None = None
    second_embedding: SecondEmbedding | None = None


def module_name(layer: int, module: str) -> str:
    """The name of a linear module as Hugging Face spells it, such as `model.layers.0.self_attn.q_proj`."""
    return f"model.layers.{layer}.{'mlp' if module in MLP_MODULES else 'self_attn'}.{module}"


def random_base(key: jax.Array, architecture: Architecture, dtype: DTypeLike = jnp.float32) -> Base:
    """Fresh weights to train from: normal, deviation 1 / sqrt(inputs), smaller into the residual stream."""
    keys = jax.random.split(key, architecture.n_layers + 2)
    shape = (architecture.vocab_size, architecture.d_model)
    embedding = (0.02 * jax.random.normal(keys[-1], shape)).astype(dtype)
    head = None if architecture.tie_embeddings else (0.02 * jax.random.normal(keys[-2], shape)).astype(dtype)
    return Base(
        embedding=embedding,
        layers=tuple(_random_layer(keys[index], architecture, index, dtype) for index in range(architecture.n_layers)),
        final_norm=jnp.ones(architecture.d_model),
        head=head,
        second_embedding=_random_second_embedding(jax.random.fold_in(key, 1), architecture, dtype),
    )


def _random_layer(key: jax.Array, architecture: Architecture, index: int, dtype: DTypeLike) -> Layer:
    norm = jnp.ones(architecture.d_model)
    head_norm = jnp.ones(architecture.kv_shape(index)[1]) if architecture.qk_norm else None
    post_norm = norm if architecture.sandwich_norms else None
    keys = dict(zip(LINEAR_MODULES, jax.random.split(key, len(LINEAR_MODULES)), strict=True))
    linears = {
        module: _random_linear(keys[module], architecture, module, shape, dtype)
        for module, shape in architecture.linear_shapes(index).items()
    }
    return Layer(
        attention_norm=norm,
        mlp_norm=norm,
        q_norm=head_norm,
        k_norm=head_norm if "k_proj" in linears else None,
        post_attention_norm=post_norm,
        post_mlp_norm=post_norm,
        experts=_random_experts(jax.random.fold_in(key, 1), architecture, index, dtype),
        layer_input=_random_layer_input(jax.random.fold_in(key, 2), architecture, dtype),
        scale=jnp.ones(1) if architecture.layer_scale else None,
        **linears,
    )


def _random_linear(
    key: jax.Array, architecture: Architecture, module: str, shape: tuple[int, int], dtype: DTypeLike
) -> Linear:
    deviation = shape[0] ** -0.5
    if module in ("o_proj", "down_proj"):
        deviation /= (2 * architecture.n_layers) ** 0.5
    weight = deviation * jax.random.normal(key, shape)
    return Linear(weight=weight.astype(dtype), bias=jnp.zeros(shape[1]) if architecture.biased(module) else None)


def _random_experts(key: jax.Array, architecture: Architecture, index: int, dtype: DTypeLike) -> Experts | None:
    mixture, width = architecture.mixture, architecture.d_model
    if mixture is None or not architecture.has_experts(index):
        return None
    router, gate_up, down = jax.random.split(key, 3)
    inner = (2 * architecture.n_layers * mixture.d_ff) ** -0.5
    ones, each = jnp.ones(width), jnp.ones(mixture.count)
    return Experts(
        router=(width**-0.5 * jax.random.normal(router, (width, mixture.count))).astype(dtype),
        gate_up=(width**-0.5 * jax.random.normal(gate_up, (mixture.count, width, 2 * mixture.d_ff))).astype(dtype),
        down=(inner * jax.random.normal(down, (mixture.count, mixture.d_ff, width))).astype(dtype),
        beside=Beside(ones, each, ones, ones, ones) if mixture.beside_mlp else None,
    )


def _random_layer_input(key: jax.Array, architecture: Architecture, dtype: DTypeLike) -> LayerInput | None:
    if architecture.layer_embedding is None:
        return None
    gate, projection = jax.random.split(key)
    inside = (architecture.d_model, architecture.layer_embedding.width)
    return LayerInput(
        gate=_random_linear(gate, architecture, "gate", inside, dtype),
        projection=_random_linear(projection, architecture, "projection", inside[::-1], dtype),
        post_norm=jnp.ones(architecture.d_model),
    )


def _random_second_embedding(key: jax.Array, architecture: Architecture, dtype: DTypeLike) -> SecondEmbedding | None:
    if architecture.layer_embedding is None:
        return None
    table, projection = jax.random.split(key)
    vocab, width = architecture.layer_embedding.vocab_size, architecture.layer_embedding.width
    across = architecture.n_layers * width
    return SecondEmbedding(
        table=(0.02 * jax.random.normal(table, (vocab, across))).astype(dtype),
        projection=_random_linear(projection, architecture, "projection", (architecture.d_model, across), dtype),
        norm=jnp.ones(width),
    )

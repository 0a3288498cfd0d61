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

ATTENTION_MODULES = ("q_proj", "k_proj", "v_proj", "o_proj")
MLP_MODULES = ("gate_proj", "up_proj", "down_proj")
LINEAR_MODULES = ATTENTION_MODULES + MLP_MODULES


@no_type_check  # its leaves may stand for arrays: shapes, shardings, nothing
@struct.dataclass
class Linear:
    """`y = x @ weight + bias`."""

    weight: Float[Array, "inputs outputs"]
    bias: Float[Array, " outputs"] | None = None


@no_type_check  # its leaves may stand for arrays: shapes, shardings, nothing
@struct.dataclass
class Layer:
    """One block. The post norms exist in sandwich architectures only, the query and key norms with `qk_norm` only."""

    attention_norm: Float[Array, " d_model"]
    q_proj: Linear
    k_proj: Linear
    v_proj: Linear
    o_proj: Linear
    mlp_norm: Float[Array, " d_model"]
    gate_proj: Linear
    up_proj: Linear
    down_proj: Linear
    q_norm: Float[Array, " head_dim"] | None = None
    k_norm: Float[Array, " head_dim"] | None = None
    post_attention_norm: Float[Array, " d_model"] | None = None
    post_mlp_norm: Float[Array, " d_model"] | None = None


@no_type_check  # its leaves may stand for arrays: shapes, shardings, nothing
@struct.dataclass
class Base:
    """All weights of a model. `head` is None where the embedding is the head."""

    embedding: Float[Array, "vocab d_model"]
    layers: tuple[Layer, ...]
    final_norm: Float[Array, " d_model"]
    head: Float[Array, "vocab d_model"] | None = None


def module_name(layer: int, module: str) -> str:
    """The name of a linear module as Hugging Face spells it, such as `model.layers.0.self_attn.q_proj`."""
    return f"model.layers.{layer}.{'mlp' if module in MLP_MODULES else 'self_attn'}.{module}"


def random_base(key: jax.Array, architecture: Architecture, dtype: DTypeLike = jnp.float32) -> Base:
    """Fresh weights to train from: normal, deviation 1 / sqrt(inputs), smaller into the residual stream."""
    keys = jax.random.split(key, architecture.n_layers + 2)
    shape = (architecture.vocab_size, architecture.d_model)
    embedding = (0.02 * jax.random.normal(keys[-1], shape)).astype(dtype)
    head = None if architecture.tie_embeddings else (0.02 * jax.random.normal(keys[-2], shape)).astype(dtype)
    layers = tuple(_random_layer(layer_key, architecture, dtype) for layer_key in keys[:-2])
    return Base(embedding=embedding, layers=layers, final_norm=jnp.ones(architecture.d_model), head=head)


def _random_layer(key: jax.Array, architecture: Architecture, dtype: DTypeLike) -> Layer:
    norm = jnp.ones(architecture.d_model)
    head_norm = jnp.ones(architecture.head_dim) if architecture.qk_norm else None
    post_norm = norm if architecture.sandwich_norms else None
    linears = {
        module: _random_linear(module_key, architecture, module, dtype)
        for module_key, module in zip(jax.random.split(key, len(LINEAR_MODULES)), LINEAR_MODULES, strict=True)
    }
    return Layer(
        attention_norm=norm,
        mlp_norm=norm,
        q_norm=head_norm,
        k_norm=head_norm,
        post_attention_norm=post_norm,
        post_mlp_norm=post_norm,
        **linears,
    )


def _random_linear(key: jax.Array, architecture: Architecture, module: str, dtype: DTypeLike) -> Linear:
    inputs, outputs = architecture.linear_shape(module)
    deviation = inputs**-0.5
    if module in ("o_proj", "down_proj"):
        deviation /= (2 * architecture.n_layers) ** 0.5
    weight = deviation * jax.random.normal(key, (inputs, outputs))
    return Linear(weight=weight.astype(dtype), bias=jnp.zeros(outputs) if architecture.biased(module) else None)

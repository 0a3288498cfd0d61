"""(base, critic, tokens) -> what a critic expects in each state: one number per token.

A critic is an adapter of its own on the frozen base that the policy stands on, and a head of one output behind the
final norm. The base is an argument and never copied, so a critic costs as much memory as an adapter.
"""

import dataclasses
from typing import no_type_check

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float, Int

from components.model.architecture import Architecture
from components.model.base import Base
from components.model.decoder import forward
from components.model.lora import Adapter, LoraPair


@no_type_check  # its leaves may stand for arrays: shapes, shardings, nothing
@struct.dataclass
class ValueHead:
    """`value = hidden @ weight + bias`, in float32."""

    weight: Float[Array, " d_model"]
    bias: Float[Array, ""]


@no_type_check  # its leaves may stand for arrays: shapes, shardings, nothing
@struct.dataclass
class Critic:
    """The trainable part of a critic."""

    adapter: Adapter
    head: ValueHead


def init_critic(adapter: Adapter, d_model: int) -> Critic:
    """A critic on a fresh `adapter`. Its head is zero: it expects nothing until it has seen something."""
    return Critic(adapter, ValueHead(jnp.zeros(d_model), jnp.float32(0.0)))


def fresh_like(key: jax.Array, adapter: Adapter) -> Adapter:
    """An adapter that binds the modules of another with its ranks and scales, and changes nothing yet: its B are 0."""

    def fresh(pair: LoraPair, number: int) -> LoraPair:
        inputs, rank = pair.a.shape
        limit = inputs**-0.5
        a = jax.random.uniform(jax.random.fold_in(key, number), (inputs, rank), minval=-limit, maxval=limit)
        return dataclasses.replace(pair, a=a, b=jnp.zeros((rank, pair.b.shape[1])))

    pairs, tree = jax.tree.flatten(adapter, is_leaf=lambda node: isinstance(node, LoraPair))
    return jax.tree.unflatten(tree, [fresh(pair, number) for number, pair in enumerate(pairs)])


def state_values(
    architecture: Architecture,
    base: Base,
    critic: Critic,
    tokens: Int[Array, "rows time"],
    positions: Int[Array, "rows time"],
    segments: Int[Array, "rows time"],
) -> Float[Array, "rows time"]:
    """The value of the state after each token, for packed rows as `decoder.forward` takes them; nonsense at padding."""
    hidden = forward(architecture, base, critic.adapter, tokens, positions, segments)
    return jnp.sum(hidden * critic.head.weight, axis=-1) + critic.head.bias

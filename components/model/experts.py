"""Tokens and a mixture of experts -> what the experts that each token is sent to make of it (arXiv:1701.06538).

No expert has a capacity: every token reaches all of its experts, whatever else is in the batch, so that a sequence is
computed alike when it is sampled and when it is trained on.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from components.model import platform
from components.model.base import Experts
from components.model.quantise import Matrix, dense_beside
from components.model.switches import Mixture

Product = Callable[[Array, Any], Array]
Activation = Callable[[Array], Array]

BLOCK = 16
"""Rows that are multiplied with one expert at a time where there is no ragged product."""


def mix(
    mixture: Mixture,
    experts: Experts,
    routed: Float[Array, "tokens d_model"],
    x: Float[Array, "tokens d_model"],
    *,
    product: Product,
    activate: Activation,
) -> Float[Array, "tokens d_model"]:
    """The weighted sum of the outputs of each token's experts, which the router chooses by `routed` and which read `x`.

    `product` multiplies rows with a matrix as the rest of the decoder does.
    """
    weights, chosen = route(mixture, experts, product(routed, experts.router))
    outputs = _ragged if platform.current().ragged_products else _blocked
    made = outputs(experts, x, chosen, product, activate)
    return jnp.sum(made.reshape(*chosen.shape, -1) * weights[..., None], axis=1)


def route(
    mixture: Mixture, experts: Experts, scores: Float[Array, "tokens experts"]
) -> tuple[Float[Array, "tokens per_token"], Int[Array, "tokens per_token"]]:
    """Weights and numbers of each token's experts, the likeliest first."""
    weights, chosen = lax.top_k(jax.nn.softmax(scores), mixture.per_token)
    if mixture.normalised:
        weights = weights / jnp.sum(weights, axis=-1, keepdims=True)
    return (weights if experts.beside is None else weights * experts.beside.output_scale[chosen]), chosen


def _blocked(
    experts: Experts,
    x: Float[Array, "tokens d_model"],
    chosen: Int[Array, "tokens per_token"],
    product: Product,
    activate: Activation,
) -> Float[Array, "visits d_model"]:
    """Visits of tokens to experts, sorted by expert and cut into blocks that have one expert each."""
    visits, per_token = chosen.size, chosen.shape[1]
    owners, members = _blocks(chosen.reshape(-1), experts.router.shape[1])
    padded = jnp.pad(x, ((0, 1), (0, 0)))

    def visit(block: tuple[Array, Array]) -> Array:
        owner, rows = block
        gate_up, down = jax.tree.map(lambda leaf: leaf[owner], (experts.gate_up, experts.down))
        return _mlp(padded[rows // per_token], gate_up, down, product, activate)

    made = lax.map(visit, (owners, members))
    return jnp.zeros((visits + 1, x.shape[1])).at[members].set(made)[:visits]


def _blocks(chosen: Int[Array, " visits"], count: int) -> tuple[Int[Array, " blocks"], Int[Array, "blocks block"]]:
    """The expert of each block, and which visits it holds; the number of visits stands for an empty place."""
    order = jnp.argsort(chosen, stable=True)
    sizes = jnp.bincount(chosen, length=count)
    blocks = -(-sizes // BLOCK)
    ends = jnp.cumsum(blocks)
    numbers = jnp.arange(len(chosen) // BLOCK + min(count, len(chosen)))
    owners = jnp.minimum(jnp.searchsorted(ends, numbers, side="right"), count - 1)
    within = (numbers - (ends - blocks)[owners])[:, None] * BLOCK + jnp.arange(BLOCK)
    places = (jnp.cumsum(sizes) - sizes)[owners][:, None] + within
    members = order[jnp.minimum(places, len(chosen) - 1)]
    return owners, jnp.where(within < sizes[owners][:, None], members, len(chosen))


def _ragged(
    experts: Experts,
    x: Float[Array, "tokens d_model"],
    chosen: Int[Array, "tokens per_token"],
    product: Product,
    activate: Activation,
) -> Float[Array, "visits d_model"]:
    order = jnp.argsort(chosen.reshape(-1), stable=True)
    sizes = jnp.bincount(chosen.reshape(-1), length=experts.router.shape[1]).astype(jnp.int32)

    def ragged(rows: Array, weight: Matrix) -> Array:
        weight = dense_beside(weight, rows)
        return lax.ragged_dot(rows.astype(weight.dtype), weight, sizes, preferred_element_type=jnp.float32)

    made = _mlp(x[order // chosen.shape[1]], experts.gate_up, experts.down, ragged, activate)
    return jnp.zeros_like(made).at[order].set(made)


def _mlp(rows: Array, gate_up: Any, down: Any, product: Product, activate: Activation) -> Array:
    gate, up = jnp.split(product(rows, gate_up), 2, axis=-1)
    return product(activate(gate) * up, down)

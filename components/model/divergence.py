"""Hidden states of a policy and of its teacher -> how far their next-token distributions are apart, token by token.

Both read one vocabulary. As in `head.py` the softmaxes are read some tokens and a block of the vocabulary at a time,
and the backward pass computes both blocks of logits again, so no array of tokens x vocabulary is ever made.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from components.model.architecture import Architecture
from components.model.base import Base
from components.model.decoder import contract, matmul
from components.model.head import CHUNK, LEAST, Reading, fold, head_of
from components.model.quantise import Matrix
from components.model.vocabulary import BLOCK_ROWS, Blocks


class Side(NamedTuple):
    """One of the two: what it is, its weights, and its hidden states where tokens are predicted."""

    architecture: Architecture
    base: Base
    hidden: Float[Array, "tokens width"]


class _Mass(NamedTuple):
    """Of one side's logits z beside the other's u: max z, sum exp(z - max), sum exp(z - max) (z - u)."""

    top: Float[Array, " tokens"]
    mass: Float[Array, " tokens"]
    ahead: Float[Array, " tokens"]


class _Both(NamedTuple):
    policy: _Mass
    teacher: _Mass


def token_divergences(
    policy: Side,
    teacher: Side,
    *,
    temperature: float = 1.0,
    chunk: int = CHUNK,
    block_rows: int = BLOCK_ROWS,
) -> tuple[Float[Array, " tokens"], Float[Array, " tokens"]]:
    """Per token KL(teacher || policy) and KL(policy || teacher) in nats, of softmax(logits / temperature).

    Gradients go to the hidden states of the policy alone: neither head is trained by this. Raises ValueError where the
    two vocabularies differ in size.
    """
    tokens = len(policy.hidden)
    sides = [fold(side.hidden, chunk) for side in (policy, teacher)]
    heads = [lax.stop_gradient(head_of(side.base)) for side in (policy, teacher)]
    readings = tuple(Reading(side.architecture.final_softcap, temperature, block_rows) for side in (policy, teacher))
    forward, reverse = _diverge(readings, sides[0], heads[0], lax.stop_gradient(sides[1]), heads[1])
    return forward.reshape(-1)[:tokens], reverse.reshape(-1)[:tokens]


Readings = tuple[Reading, Reading]


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _diverge(
    readings: Readings,
    hidden: Float[Array, "chunks tokens width"],
    head: Matrix,
    teacher_hidden: Float[Array, "chunks tokens teacher_width"],
    teacher_head: Matrix,
) -> tuple[Float[Array, "chunks tokens"], Float[Array, "chunks tokens"]]:
    return _divergences(_read(readings, hidden, head, teacher_hidden, teacher_head))


def _divergences(sums: _Both) -> tuple[Array, Array]:
    apart = _total(sums.policy) - _total(sums.teacher)
    return sums.teacher.ahead / sums.teacher.mass + apart, sums.policy.ahead / sums.policy.mass - apart


def _total(mass: _Mass) -> Float[Array, "*tokens"]:
    return mass.top + jnp.log(mass.mass)


def _blocks(readings: Readings, head: Matrix, teacher_head: Matrix) -> Blocks:
    blocks, others = (Blocks.of(each, readings[0].block_rows) for each in (head, teacher_head))
    if blocks != others:
        raise ValueError(f"the policy's head is read as {blocks}, and its teacher's as {others}; they must be alike")
    return blocks


def _read(
    readings: Readings,
    hidden: Float[Array, "chunks tokens width"],
    head: Matrix,
    teacher_hidden: Float[Array, "chunks tokens teacher_width"],
    teacher_head: Matrix,
) -> _Both:
    """The sums over the whole vocabulary, chunk by chunk."""
    blocks = _blocks(readings, head, teacher_head)

    def chunk(part: tuple[Array, Array]) -> _Both:
        def step(sums: _Both, block: Int[Array, ""]) -> _Both:
            sides = zip(readings, part, (head, teacher_head), strict=True)
            logits = (reading.logits(matmul(rows, blocks.take(table, block), True)) for reading, rows, table in sides)
            z, u = (blocks.once(each, block, LEAST) for each in logits)
            return _Both(_add(sums.policy, z, u), _add(sums.teacher, u, z))

        nothing = jnp.zeros(len(part[0]))
        empty = _Mass(nothing + LEAST, nothing, nothing)
        return blocks.over(step, _Both(empty, empty))

    return lax.map(chunk, (hidden, teacher_hidden))


def _add(sums: _Mass, z: Float[Array, "tokens places"], u: Float[Array, "tokens places"]) -> _Mass:
    top = jnp.maximum(sums.top, jnp.max(z, axis=-1))
    kept = jnp.exp(sums.top - top)
    each = jnp.exp(z - top[:, None])
    return _Mass(top, kept * sums.mass + jnp.sum(each, axis=-1), kept * sums.ahead + jnp.sum(each * (z - u), axis=-1))


def _forward(
    readings: Readings, hidden: Array, head: Matrix, teacher_hidden: Array, teacher_head: Matrix
) -> tuple[Any, Any]:
    sums = _read(readings, hidden, head, teacher_hidden, teacher_head)
    divergences = _divergences(sums)
    totals = _total(sums.policy), _total(sums.teacher)
    return divergences, (hidden, head, teacher_hidden, teacher_head, totals, divergences[1])


def _backward(readings: Readings, saved: Any, pulls: tuple[Array, Array]) -> tuple[Array, None, None, None]:
    """d KL(t || p) / dz = p - t, and d KL(p || t) / dz = p (log p - log t - KL(p || t))."""
    hidden, head, teacher_hidden, teacher_head, totals, reverse = saved
    blocks = _blocks(readings, head, teacher_head)

    def chunk(part: tuple[Array, ...]) -> Array:
        rows, teacher_rows, total, teacher_total, reverse, to_forward, to_reverse = part

        def step(to_rows: Array, block: Int[Array, ""]) -> Array:
            weights, others = blocks.take(head, block), blocks.take(teacher_head, block)
            z, pull_back = jax.vjp(readings[0].logits, matmul(rows, weights, True))
            log_p = z - total[:, None]
            log_t = readings[1].logits(matmul(teacher_rows, others, True)) - teacher_total[:, None]
            p = jnp.exp(log_p)
            to_z = to_forward[:, None] * (p - jnp.exp(log_t))
            to_z = to_z + to_reverse[:, None] * p * (log_p - log_t - reverse[:, None])
            (to_products,) = pull_back(blocks.once(to_z, block, 0.0))
            return to_rows + contract(to_products.astype(weights.dtype), weights, 1, 0)

        return blocks.over(step, jnp.zeros_like(rows))

    return lax.map(chunk, (hidden, teacher_hidden, *totals, reverse, *pulls)), None, None, None


_diverge.defvjp(_forward, _backward)

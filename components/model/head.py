"""Hidden states and targets -> log-probs and entropies, without ever holding tokens x vocabulary numbers.

The softmax is read some tokens and a block of the vocabulary at a time, its sums brought up to date block by block
(arXiv:1805.02867), and the backward pass computes the logits of each block again. Memory holds the logits of one block
of one chunk, forward and backward, and of a quantised head one block as numbers.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.custom_derivatives import SymbolicZero
from jaxtyping import Array, Float, Int

from components.model.architecture import Architecture
from components.model.base import Base
from components.model.decoder import contract, matmul, soft_cap
from components.model.quantise import Matrix
from components.model.sharding import ROWS, constrain, shares
from components.model.vocabulary import BLOCK_ROWS, Blocks

CHUNK = 1024
LEAST = -1e30
"""Below every logit, and finite: an infinity times 0 would not be 0."""


class Reading(NamedTuple):
    """How logits are made of products with the head, and of how many of its rows at once."""

    soft_cap: float | None
    temperature: float
    block_rows: int

    def logits(self, products: Float[Array, "tokens places"]) -> Float[Array, "tokens places"]:
        """Of the head's products with hidden states."""
        return soft_cap(products, self.soft_cap) / self.temperature


class _Sums(NamedTuple):
    """What is known of each token's logits z: max z, sum exp(z - max), sum (z - max) exp(z - max), the target's z."""

    top: Float[Array, " tokens"]
    mass: Float[Array, " tokens"]
    moment: Float[Array, " tokens"]
    chosen: Float[Array, " tokens"]


class TokenScores(NamedTuple):
    """What the head says of each token, in nats: the log-prob of its target, the entropy, the highest log-prob."""

    logprobs: Float[Array, " tokens"]
    entropies: Float[Array, " tokens"]
    highest: Float[Array, " tokens"]


def token_logprobs(
    architecture: Architecture,
    base: Base,
    hidden: Float[Array, "tokens d_model"],
    targets: Int[Array, " tokens"],
    *,
    temperature: float = 1.0,
    chunk: int = CHUNK,
    block_rows: int = BLOCK_ROWS,
) -> tuple[Float[Array, " tokens"], Float[Array, " tokens"]]:
    """Per token, the log-prob (nats) of its target under softmax(logits / temperature), and that softmax's entropy.

    `chunk` tokens and `block_rows` rows of the head are multiplied at a time, on each device of a mesh. Both results
    have gradients to `hidden` and, where it is an array, to the head. The temperature must be above 0.
    """
    scores = token_scores(
        architecture, base, hidden, targets, temperature=temperature, chunk=chunk, block_rows=block_rows
    )
    return scores.logprobs, scores.entropies


def token_scores(
    architecture: Architecture,
    base: Base,
    hidden: Float[Array, "tokens d_model"],
    targets: Int[Array, " tokens"],
    *,
    temperature: float = 1.0,
    chunk: int = CHUNK,
    block_rows: int = BLOCK_ROWS,
) -> TokenScores:
    """`token_logprobs`, and the log-prob of the likeliest token, through which no gradient goes."""
    folded = fold(hidden, chunk)
    chunks, size, _ = folded.shape
    folded_targets = jnp.pad(targets, (0, chunks * size - len(targets))).reshape(chunks, size)
    reading = Reading(architecture.final_softcap, temperature, block_rows)
    found = _score(reading, folded, head_of(base), folded_targets)
    logprobs, entropies, highest = (each.reshape(-1)[: len(targets)] for each in found)
    return TokenScores(logprobs, entropies, lax.stop_gradient(highest))


def head_of(base: Base) -> Matrix:
    """The head, `[vocab, d_model]`; the embedding where they are one."""
    return base.embedding if base.head is None else base.head


def fold(hidden: Float[Array, "tokens d_model"], chunk: int) -> Float[Array, "chunks some d_model"]:
    """The tokens in equal parts of at most `chunk` on each device of a mesh, the last one filled up with zeros."""
    tokens, width = hidden.shape
    chunks = max(1, -(-tokens // (chunk * shares(hidden, ROWS))))
    size = -(-tokens // chunks)
    folded = jnp.pad(hidden, ((0, chunks * size - tokens), (0, 0))).reshape(chunks, size, width)
    return constrain(folded, None, ROWS, None)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _score(
    reading: Reading,
    hidden: Float[Array, "chunks tokens d_model"],
    head: Matrix,
    targets: Int[Array, "chunks tokens"],
) -> tuple[Float[Array, "chunks tokens"], Float[Array, "chunks tokens"], Float[Array, "chunks tokens"]]:
    return _scores(_read(reading, hidden, head, targets))


def _scores(sums: _Sums) -> tuple[Array, Array, Array]:
    total = _total(sums)
    return sums.chosen - total, jnp.log(sums.mass) - sums.moment / sums.mass, sums.top - total


def _total(sums: _Sums) -> Float[Array, "*tokens"]:
    """The log of the sum of all exp(z)."""
    return sums.top + jnp.log(sums.mass)


def _read(
    reading: Reading,
    hidden: Float[Array, "chunks tokens d_model"],
    head: Matrix,
    targets: Int[Array, "chunks tokens"],
) -> _Sums:
    """The sums over the whole vocabulary, chunk by chunk."""
    blocks = Blocks.of(head, reading.block_rows)

    def chunk(part: tuple[Array, Array]) -> _Sums:
        rows, wanted = part

        def step(sums: _Sums, block: Int[Array, ""]) -> _Sums:
            z = reading.logits(matmul(rows, blocks.take(head, block), True))
            chosen = jnp.where(blocks.places(block) == wanted[:, None], z, 0.0)
            return _add(sums, blocks.once(z, block, LEAST), blocks.once(chosen, block, 0.0))

        nothing = jnp.zeros(len(rows))
        return blocks.over(step, _Sums(nothing + LEAST, nothing, nothing, nothing))

    return lax.map(chunk, (hidden, targets))


def _add(sums: _Sums, z: Float[Array, "tokens places"], chosen: Float[Array, "tokens places"]) -> _Sums:
    """The sums with the logits of one more block, and with those of them that are targets."""
    top = jnp.maximum(sums.top, jnp.max(z, axis=-1))
    rise = sums.top - top
    below = z - top[:, None]
    each = jnp.exp(below)
    return _Sums(
        top=top,
        mass=jnp.exp(rise) * sums.mass + jnp.sum(each, axis=-1),
        moment=jnp.exp(rise) * (sums.moment + rise * sums.mass) + jnp.sum(each * below, axis=-1),
        chosen=sums.chosen + jnp.sum(chosen, axis=-1),
    )


def _forward(reading: Reading, hidden: Any, head: Any, targets: Any) -> tuple[Any, Any]:
    leaves, tree = jax.tree.flatten((hidden, head, targets), is_leaf=lambda leaf: isinstance(leaf, _PRIMAL))
    hidden, head, targets = jax.tree.unflatten(tree, [leaf.value for leaf in leaves])
    sums = _read(reading, hidden, head, targets)
    scores = _scores(sums)
    # Only a whole array is ever trained.
    wanted = len(leaves) == 3 and leaves[1].perturbed
    start = jnp.zeros(head.shape, jnp.float32) if wanted else None
    return scores, (hidden, head, targets, _total(sums), scores[1], start)


def _backward(reading: Reading, saved: Any, cotangents: Any) -> tuple[Array, Array | None, None]:
    """d logprob / dz = [target] - p, and d entropy / dz = -p (log p + entropy), from logits that are computed again."""
    hidden, head, targets, totals, entropies, start = saved
    blocks = Blocks.of(head, reading.block_rows)
    sloped = not isinstance(cotangents[1], SymbolicZero)
    pulls = [jnp.zeros_like(totals) if isinstance(each, SymbolicZero) else each for each in cotangents[:2]]

    def chunk(to_head: Array | None, part: tuple[Array, ...]) -> tuple[Array | None, Array]:
        rows, wanted, total, entropy, to_logprob, to_entropy = part

        def step(sums: tuple[Array, Array | None], block: Int[Array, ""]) -> tuple[Array, Array | None]:
            to_rows, to_head = sums
            weights = blocks.take(head, block)
            z, pull_back = jax.vjp(reading.logits, matmul(rows, weights, True))
            logprobs = z - total[:, None]
            pull = to_logprob[:, None]
            if sloped:
                pull = pull + to_entropy[:, None] * (logprobs + entropy[:, None])
            at_targets = jnp.where(blocks.places(block) == wanted[:, None], to_logprob[:, None], 0.0)
            to_z = at_targets - jnp.exp(logprobs) * pull
            (to_products,) = pull_back(blocks.once(to_z, block, 0.0))
            to_rows = to_rows + contract(to_products.astype(weights.dtype), weights, 1, 0)
            if to_head is not None:
                to_head = blocks.add(to_head, contract(to_products, rows, 0, 0), block)
            return to_rows, to_head

        to_rows, to_head = blocks.over(step, (jnp.zeros_like(rows), to_head))
        return to_head, to_rows

    to_head, to_hidden = lax.scan(chunk, start, (hidden, targets, totals, entropies, *pulls))
    return to_hidden, None if to_head is None else to_head.astype(head.dtype), None


_PRIMAL = jax.custom_derivatives.CustomVJPPrimal
_score.defvjp(_forward, _backward, symbolic_zeros=True)

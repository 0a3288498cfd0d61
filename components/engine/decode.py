"""(policy, cache, what each row waits for) -> (cache, the next tokens): the jitted programs of the engine.

Three programs, each of few shapes: `prefill` per bucket of tokens, `copy` once, `decode` per number of rows (and once
more when a row narrows its vocabulary). A prompt's last token is fed by `decode`, so `prefill` needs no LM head and a
first token is sampled by the same program as any other. The cache is donated to each of them.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int

from components.engine.sampling import SamplingRows, sample
from components.model.architecture import Architecture
from components.model.base import Base
from components.model.cache import Cache, copy_slot, put_back, take_rows
from components.model.decoder import forward_cached, logits
from components.model.lockstep import Program, program
from components.model.lora import Adapter
from components.model.sharding import whole_beside


class DecodeRows(NamedTuple):
    """What each row waits for: `tokens` at `positions` are fed next; a row with `remaining` 0 is at rest.

    Rows lie in the cache at `slots`, those at rest behind all others; where that is None, row i is slot i.
    """

    tokens: Int[Array | np.ndarray, " rows"]
    positions: Int[Array | np.ndarray, " rows"]
    remaining: Int[Array | np.ndarray, " rows"]
    sampling: SamplingRows
    slots: Int[Array | np.ndarray, " rows"] | None

    @classmethod
    def at_rest(cls, rows: int, *, placed: bool = False) -> "DecodeRows":
        """Rows in host memory, to be set one by one."""
        tokens, positions, remaining, slots = (np.zeros(rows, np.int32) for _ in range(4))
        return cls(tokens, positions, remaining, SamplingRows.empty(rows), slots if placed else None)


class _Loop(NamedTuple):
    step: Int[Array, ""]
    cache: Cache
    tokens: Int[Array, " rows"]
    positions: Int[Array, " rows"]
    remaining: Int[Array, " rows"]
    sampled: Int[Array, "steps rows"]
    logprobs: Float[Array, "steps rows"]
    counts: Int[Array, " rows"]


@program
@functools.partial(
    jax.jit, static_argnames=("architecture", "steps", "stop_ids", "truncated"), donate_argnames=("cache",)
)
def decode(
    architecture: Architecture,
    base: Base,
    adapter: Adapter | None,
    cache: Cache,
    rows: DecodeRows,
    *,
    steps: int,
    stop_ids: tuple[int, ...],
    truncated: bool,
) -> tuple[Cache, Int[Array, "steps rows"], Float[Array, "steps rows"], Int[Array, " rows"]]:
    """Up to `steps` tokens for every row, their log-probs, and how many of them count.

    A row ends after a stop id or its last remaining token and is frozen from there on; when all have ended, so does
    the loop. Rows with slots are taken out of the cache once, and what is new in them goes back at the end.
    """
    capacity = cache.capacity

    def body(loop: _Loop) -> _Loop:
        active = loop.remaining > 0
        # Rows at rest are sent behind the capacity, where nothing is written: their slots may hold an earlier turn.
        starts = jnp.where(active, loop.positions, capacity)
        hidden, cache = forward_cached(
            architecture, base, adapter, loop.tokens[:, None], loop.cache, slots=None, starts=starts
        )
        scores = logits(architecture, base, hidden[:, 0])
        tokens, logprobs = sample(scores, loop.positions + 1, rows.sampling, truncated=truncated)
        ended = jnp.isin(tokens, jnp.asarray(stop_ids, jnp.int32))
        return _Loop(
            step=loop.step + 1,
            cache=cache,
            tokens=jnp.where(active, tokens, loop.tokens),
            positions=loop.positions + active,
            remaining=jnp.where(active & ~ended, loop.remaining - 1, 0),
            sampled=loop.sampled.at[loop.step].set(tokens),
            logprobs=loop.logprobs.at[loop.step].set(logprobs),
            counts=loop.counts + active,
        )

    slots = None if rows.slots is None else jnp.asarray(rows.slots)
    start = _first(rows, cache if slots is None else take_rows(cache, slots), steps)
    end = lax.while_loop(lambda loop: (loop.step < steps) & jnp.any(loop.remaining > 0), body, start)
    filled = end.cache
    if slots is not None:
        live = jnp.sum(start.remaining > 0)
        filled = put_back(cache, end.cache, slots, start.positions, live, length=steps)
    return filled, *whole_beside(base, (end.sampled, end.logprobs, end.counts))


def _first(rows: DecodeRows, cache: Cache, steps: int) -> _Loop:
    count = len(rows.tokens)
    return _Loop(
        step=jnp.zeros((), jnp.int32),
        cache=cache,
        tokens=jnp.asarray(rows.tokens),
        positions=jnp.asarray(rows.positions),
        remaining=jnp.asarray(rows.remaining),
        sampled=jnp.zeros((steps, count), jnp.int32),
        logprobs=jnp.zeros((steps, count), jnp.float32),
        counts=jnp.zeros(count, jnp.int32),
    )


@program
@functools.partial(jax.jit, static_argnames=("architecture",), donate_argnames=("cache",))
def prefill(
    architecture: Architecture,
    base: Base,
    adapter: Adapter | None,
    cache: Cache,
    tokens: Int[Array, "rows bucket"],
    slots: Int[Array, " rows"],
    starts: Int[Array, " rows"],
) -> Cache:
    """Write keys and values of `tokens` into `slots` from `starts` on."""
    _, cache = forward_cached(architecture, base, adapter, tokens, cache, slots=slots, starts=starts)
    return cache


@program
@functools.partial(jax.jit, donate_argnames=("cache",))
def copy(cache: Cache, source: Int[Array, ""], target: Int[Array, ""]) -> Cache:
    """Give slot `target` the contents of slot `source`."""
    return copy_slot(cache, source, target)


@program
@functools.partial(jax.jit, static_argnames=("architecture",), donate_argnames=("cache",))
def score(
    architecture: Architecture,
    base: Base,
    adapter: Adapter | None,
    cache: Cache,
    tokens: Int[Array, " bucket"],
    targets: Int[Array, " bucket"],
    start: Int[Array, ""],
) -> tuple[Cache, Float[Array, " bucket"]]:
    """Log-probs at temperature 1 of `targets`, each the successor of the token beside it, in a cache of one slot."""
    hidden, cache = forward_cached(
        architecture, base, adapter, tokens[None], cache, slots=jnp.zeros(1, jnp.int32), starts=start[None]
    )
    scores = jax.nn.log_softmax(logits(architecture, base, hidden[0]), axis=-1)
    return cache, whole_beside(base, jnp.take_along_axis(scores, targets[:, None], axis=1)[:, 0])


def bucket(length: int, smallest: int = 16) -> int:
    """The power of two that a piece of `length` tokens is padded to."""
    return max(smallest, 1 << (length - 1).bit_length())


def compilations() -> int:
    """How many programs of the engine this process has compiled."""
    programs: tuple[Program, ...] = (decode, prefill, copy, score)  # type: ignore[assignment]
    return sum(each.function._cache_size() for each in programs)  # type: ignore[attr-defined]

"""Micro-batches -> gradients, summed as they arrive -> one better adapter.

The update knows no algorithm: an `Objective` gives a weighted sum of losses and the denominator of the whole optimizer
step divides the sum of all gradients once. The base is an argument of every jitted function and never part of a
compiled program; the gradient is taken of the adapter alone.

The adapter of a `TrainState` is never donated, as the engine may be serving it; gradients and optimizer state are.
"""

from collections.abc import Callable, Mapping
from typing import Protocol, no_type_check, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import struct
from jaxtyping import Array, Float, Int

from components.algorithms.objective import Objective, Statistics
from components.model.architecture import Architecture
from components.model.base import Base
from components.model.decoder import forward
from components.model.head import CHUNK, token_logprobs
from components.model.lockstep import made, program
from components.model.lora import Adapter
from components.model.remat import Remat
from components.model.sharding import whole_beside
from components.training.critic import CriticState
from components.training.optimizer import Metrics, Optimizer, Weights, descend
from components.training.packing import Microbatch

Trained = Adapter | Base
"""What an optimizer step changes: an adapter, or a base that is small enough to be trained whole."""


@no_type_check  # its leaves may stand for arrays: shapes, shardings, nothing
@struct.dataclass
class TrainState:
    """What an optimizer step changes.

    `adapter` is a base where that is trained whole (see `tuning/warm_start.py`).
    `step` counts optimizer steps, the skipped ones included: it is the policy version. `skipped` counts the steps that
    left the adapter as it was, because a gradient was not finite or there was no token. A step may make several updates
    of the adapter: then `step` is counted once, and `skipped` for each. `critic` is there where an objective needs one.
    """

    adapter: Adapter
    optimizer: optax.OptState
    step: Int[Array, ""]
    skipped: Int[Array, ""]
    critic: CriticState | None = None


LOGPROBS = "logprobs"
"""Beside the statistics of a micro-batch: the log-probs of its sampled tokens; 0 at padding. They are no sum."""

Score = Callable[[Base, Adapter | None, Microbatch], Float[Array, "tokens"]]


@runtime_checkable
class Apply(Protocol):
    """The end of an update; see `make_apply`."""

    def __call__(
        self, state: TrainState, gradients: Trained, denominator: int | float, steps: int = 1
    ) -> tuple[TrainState, Metrics]:
        """Move the adapter, and count `steps` optimizer steps."""
        ...


@runtime_checkable
class Accumulate(Protocol):
    """One micro-batch more; see `make_accumulate`."""

    def __call__(
        self,
        base: Base,
        adapter: Adapter,
        gradients: Adapter,
        microbatch: Microbatch,
        version: Int[Array, ""] | None = None,
    ) -> tuple[Adapter, Statistics]:
        """Add the gradient of `microbatch` to `gradients`, which is donated."""
        ...


@program
def init_state(adapter: Trained, optimizer: Optimizer) -> TrainState:
    """Step 0. The adapter is shared with the caller, not copied."""
    return TrainState(adapter, optimizer.direction.init(adapter), jnp.int32(0), jnp.int32(0))  # type: ignore[arg-type]  # a base, too


@program
def zero_gradients(weights: Weights) -> Weights:
    """Fresh float32 sums, of an adapter's or a critic's structure, to be donated to what adds to them.

    They are bound to devices only where the weights are: what is computed from a bound array is bound, too, and a step
    whose adapter is bound while the first one's was not would compile every program again.
    """
    return jax.tree.map(
        lambda leaf: jnp.zeros_like(leaf, jnp.float32, device=leaf.sharding if leaf.committed else None), weights
    )


@program
def next_step(step: Int[Array, ""]) -> Int[Array, ""]:
    """The optimizer step after `step`, where several updates were made in it."""
    return step + 1


@program
def make_score(architecture: Architecture, *, temperature: float, chunk: int = CHUNK) -> Score:
    """A jitted (base, adapter, microbatch) -> log-probs of the sampled tokens; 0 at padding.

    Log-probs are of the temperature-scaled distribution over the whole vocabulary, as the engine's are. `adapter=None`
    is the reference policy.
    """

    @made
    @jax.jit
    def score(base: Base, adapter: Adapter | None, microbatch: Microbatch) -> Float[Array, "tokens"]:
        logprobs, _ = _forward_logprobs(architecture, base, adapter, microbatch, temperature, chunk)
        return whole_beside(base, jnp.where(microbatch.sampled.mask, logprobs, 0.0))

    return score


@program
def make_accumulate(
    architecture: Architecture,
    objective: Objective,
    *,
    temperature: float,
    chunk: int = CHUNK,
    remat: Remat = "full",
) -> Accumulate:
    """A jitted (base, adapter, gradients, microbatch, version) -> (gradients, statistics); see `Accumulate`.

    `gradients` is a sum over the micro-batches so far, of the adapter's structure; it is donated. `version` is that of
    the adapter (`TrainState.step`) and needed for `mismatch_kl`. Statistics are sums of this micro-batch: the
    objective's, and `entropy`; add them up over an optimizer step (`add_statistics`). Beside them are LOGPROBS. `remat`
    is `forward`'s.
    """

    def loss(
        adapter: Adapter,
        base: Base,
        microbatch: Microbatch,
        version: Int[Array, ""] | None,
    ) -> tuple[Float[Array, ""], Statistics]:
        logprobs, entropy = _forward_logprobs(architecture, base, adapter, microbatch, temperature, chunk, remat)
        total, statistics = objective.loss(logprobs, microbatch.sampled, version, entropy)
        entropy = jnp.sum(jnp.where(microbatch.sampled.mask, entropy, 0.0))
        spoken = whole_beside(base, jax.lax.stop_gradient(jnp.where(microbatch.sampled.mask, logprobs, 0.0)))
        return total, {**statistics, "entropy": jax.lax.stop_gradient(entropy), LOGPROBS: spoken}

    def accumulate(
        base: Base,
        adapter: Adapter,
        gradients: Adapter,
        microbatch: Microbatch,
        version: Int[Array, ""] | None = None,
    ) -> tuple[Adapter, Statistics]:
        added, statistics = jax.grad(loss, has_aux=True)(adapter, base, microbatch, version)
        return jax.tree.map(jnp.add, gradients, added), statistics

    return made(jax.jit(accumulate, donate_argnums=(2,)))


@program
def make_apply(optimizer: Optimizer) -> Apply:
    """A (state, gradients, denominator, steps=1) -> (state, metrics) that ends an update, and so many optimizer steps.

    Gradients and the state's optimizer part are donated, its adapter is not. When the denominator is 0 or a gradient is
    not finite, adapter and optimizer state stay as they are and the update counts as skipped. Metrics: `gradient_norm`
    (before clipping), `update_norm`, `learning_rate`, `skipped` (0 or 1). A critic is no part of it: the state comes
    back without one.
    """

    def update(
        adapter: Trained,
        state: optax.OptState,
        counts: tuple[Array, Array],
        gradients: Trained,
        denominator: Array,
        steps: Array,
    ) -> tuple[TrainState, Metrics]:
        number, skipped = counts
        moved, kept, metrics = descend(optimizer, adapter, state, gradients, denominator, number)
        state_now = TrainState(moved, kept, number + steps, skipped + metrics["skipped"])  # type: ignore[arg-type]
        return state_now, metrics

    jitted = jax.jit(update, donate_argnums=(1, 3))

    def apply(
        state: TrainState, gradients: Trained, denominator: int | float, steps: int = 1
    ) -> tuple[TrainState, Metrics]:
        counts = state.step, state.skipped
        divisor = np.float32(denominator)
        return jitted(state.adapter, state.optimizer, counts, gradients, divisor, np.int32(steps))

    return made(apply)


@program
def add_statistics(sums: Mapping[str, Array], added: Mapping[str, Array]) -> Statistics:
    """Sums (and maxima, see `Statistics`) of an optimizer step so far; start from `{}`."""
    return {
        key: jnp.maximum(value, sums.get(key, 0.0)) if key.endswith("_max") else value + sums.get(key, 0.0)
        for key, value in added.items()
        if key != LOGPROBS
    }


def _forward_logprobs(
    architecture: Architecture,
    base: Base,
    adapter: Adapter | None,
    microbatch: Microbatch,
    temperature: float,
    chunk: int,
    remat: Remat = "full",
) -> tuple[Float[Array, "tokens"], Float[Array, "tokens"]]:
    """Log-probs and entropies of the flat tokens; the head sees the places that predict a sampled token only."""
    tokens, positions, segments = microbatch.tokens, microbatch.positions, microbatch.segments
    hidden = forward(architecture, base, adapter, tokens, positions, segments, remat=remat)
    predicting = hidden.reshape(-1, hidden.shape[-1])[microbatch.index]
    return token_logprobs(architecture, base, predicting, microbatch.targets, temperature=temperature, chunk=chunk)

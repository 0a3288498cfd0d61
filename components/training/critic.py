"""Micro-batches -> what a critic expects, and a critic that expects better: its state, its loss, its update.

A critic is trained beside the policy on the same tokens, with an optimizer of its own. Its gradient is of its adapter
and head alone, and the policy's is of the policy's adapter alone: the base that both stand on is one, and frozen.
"""

from collections.abc import Callable
from typing import NamedTuple, no_type_check

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import struct
from jaxtyping import Array, Float, Int

from components.algorithms.objective import Statistics
from components.algorithms.values import clipped_value_loss
from components.config import config
from components.model.architecture import Architecture
from components.model.base import Base
from components.model.lockstep import made, program
from components.model.lora import Adapter, LoraConfig, init_adapter
from components.model.placement import placement_of
from components.model.sharding import whole_beside
from components.model.value_head import Critic, fresh_like, init_critic, state_values
from components.training.optimizer import Metrics, Optimizer, OptimizerConfig, descend, make_optimizer
from components.training.packing import Microbatch

_CRITIC_KEY = 1
"""What the run's key is folded with to make a critic's."""


@config
class CriticConfig:
    """The critic of an objective that needs one. Left out, its adapter binds the modules that the policy's does, with
    its ranks and scales, and its optimizer is the policy's.
    """

    lora: LoraConfig | None = None
    optimizer: OptimizerConfig | None = None


@no_type_check  # its leaves may stand for arrays: shapes, shardings, nothing
@struct.dataclass
class CriticState:
    """What training a critic changes."""

    weights: Critic
    optimizer: optax.OptState


Judge = Callable[[Base, Critic, Microbatch], tuple[Float[Array, "tokens"], Float[Array, "tokens"]]]
"""Per sampled token: the value of the state in which it was sampled, and of the state after it; 0 at padding."""

Fit = Callable[[Base, Critic, Critic, Microbatch], tuple[Critic, Statistics]]
"""(base, critic, gradients, micro-batch) -> gradients, which are donated, with one more added, and statistics."""

ApplyCritic = Callable[[CriticState, Critic, int | float, Int[Array, ""]], tuple[CriticState, Metrics]]
"""(state, gradients, denominator, optimizer step) -> the state after an update; all but its weights is donated."""


class CriticPrograms(NamedTuple):
    """All that a learner does with a critic. More than `max_skipped` updates in a row without effect stop a run."""

    judge: Judge
    fit: Fit
    apply: ApplyCritic
    max_skipped: int


def critic_adapter(config: CriticConfig, architecture: Architecture, policy: Adapter, *, seed: int) -> Adapter:
    """The adapter that a critic starts with. Raises ConfigError for a pattern that binds nothing."""
    key = jax.random.fold_in(jax.random.key(seed), _CRITIC_KEY)
    if config.lora is None:
        return fresh_like(key, policy)
    return init_adapter(key, architecture, config.lora)


def critic_shapes(config: CriticConfig, architecture: Architecture, policy: Adapter) -> Critic:
    """The shapes of a critic's weights. Raises ConfigError as `critic_adapter` does."""
    return jax.eval_shape(
        lambda: init_critic(critic_adapter(config, architecture, policy, seed=0), architecture.d_model)
    )


def make_critic(
    config: CriticConfig,
    architecture: Architecture,
    policy: Adapter,
    *,
    optimizer: OptimizerConfig,
    steps: int,
    value_clip: float,
    seed: int,
) -> tuple[CriticState, CriticPrograms]:
    """A critic beside `policy`, where that lives, and what trains it over `steps` optimizer steps.

    `optimizer` is the policy's, for a config without one. Raises ConfigError as `make_optimizer` does.
    """
    settings = config.optimizer or optimizer
    chain = make_optimizer(settings, steps)
    weights = init_critic(critic_adapter(config, architecture, policy, seed=seed), architecture.d_model)
    placement = placement_of(policy)
    state = placement.weights(init_critic_state(placement.weights(weights), chain))
    programs = CriticPrograms(
        judge=make_judge(architecture),
        fit=make_fit(architecture, value_clip=value_clip),
        apply=make_apply_critic(chain),
        max_skipped=settings.max_skipped,
    )
    return state, programs


@program
def init_critic_state(weights: Critic, optimizer: Optimizer) -> CriticState:
    """The weights, shared with the caller, beside an optimizer that has seen nothing."""
    return CriticState(weights, optimizer.direction.init(weights))


@program
def make_judge(architecture: Architecture) -> Judge:
    """A jitted `Judge`."""

    @made
    @jax.jit
    def judge(
        base: Base, critic: Critic, microbatch: Microbatch
    ) -> tuple[Float[Array, "tokens"], Float[Array, "tokens"]]:
        values = _values(architecture, base, critic, microbatch)
        places = microbatch.index, microbatch.index + 1
        before, after = (jnp.where(microbatch.sampled.mask, values[place], 0.0) for place in places)
        return whole_beside(base, (before, after))

    return judge


@program
def make_fit(architecture: Architecture, *, value_clip: float) -> Fit:
    """A jitted `Fit`. Its loss is a sum over tokens, so that the update divides by the tokens of all micro-batches.

    Statistics are sums: `value_loss`, `value_mean`, and `value_clipped`, a count.
    """

    def loss(critic: Critic, base: Base, microbatch: Microbatch) -> tuple[Float[Array, ""], Statistics]:
        tokens = microbatch.sampled
        if tokens.values is None or tokens.returns is None:
            raise ValueError("a critic is trained towards returns, from the values at the step's start: give both")
        values = _values(architecture, base, critic, microbatch)[microbatch.index]
        losses, held = clipped_value_loss(values, tokens.values, tokens.returns, tokens.mask, clip=value_clip)
        total = jnp.sum(losses)
        return total, {
            "value_loss": total,
            "value_mean": jnp.sum(jnp.where(tokens.mask, values, 0.0)),
            "value_clipped": jnp.sum(held, dtype=jnp.float32),
        }

    def fit(base: Base, critic: Critic, gradients: Critic, microbatch: Microbatch) -> tuple[Critic, Statistics]:
        added, statistics = jax.grad(loss, has_aux=True)(critic, base, microbatch)
        return jax.tree.map(jnp.add, gradients, added), statistics

    return made(jax.jit(fit, donate_argnums=(2,)))


@program
def make_apply_critic(optimizer: Optimizer) -> ApplyCritic:
    """An `ApplyCritic`; metrics as those of the policy's update, each with `critic_` before it."""

    def update(
        weights: Critic, state: optax.OptState, gradients: Critic, denominator: Array, step: Array
    ) -> tuple[CriticState, Metrics]:
        moved, kept, metrics = descend(optimizer, weights, state, gradients, denominator, step)
        return CriticState(moved, kept), {f"critic_{key}": value for key, value in metrics.items()}

    jitted = jax.jit(update, donate_argnums=(1, 2))

    def apply(
        state: CriticState, gradients: Critic, denominator: int | float, step: Int[Array, ""]
    ) -> tuple[CriticState, Metrics]:
        return jitted(state.weights, state.optimizer, gradients, np.float32(denominator), step)

    return made(apply)


def _values(architecture: Architecture, base: Base, critic: Critic, microbatch: Microbatch) -> Float[Array, "places"]:
    """The value after each place of the rows, laid end to end."""
    rows = microbatch.tokens, microbatch.positions, microbatch.segments
    return state_values(architecture, base, critic, *rows).reshape(-1)

"""(prompt ids, completion ids) pairs -> a base that completes them: full-parameter tuning of small models.

The loss is the mean negative log-likelihood of the completions' tokens (SFT), over the micro-batches that the other
losses use. All weights are trained, with one optimizer step per micro-batch and everything of a step in one jitted
call, so this is for models that fit several times; tuning a large model goes through an adapter.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Annotated

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int
from pydantic import Field

from components.config import config
from components.errors import ConfigError, DataError, Problem
from components.model.architecture import Architecture
from components.model.base import Base
from components.model.decoder import forward
from components.model.head import token_logprobs
from components.training.optimizer import Optimizer, OptimizerConfig, Schedule, make_optimizer
from components.training.packing import Microbatch, Packer, PackingConfig
from components.types import Sample

Pair = tuple[Sequence[int], Sequence[int]]
Progress = Callable[[int, float], None]

REPORTED_STEPS = 50
"""How often `fit` reports: reading a loss waits for the device."""


@config
class SupervisedConfig:
    """`steps` optimizer steps over `rows` rows of `row_length` tokens; several pairs share a row while they fit."""

    steps: Annotated[int, Field(ge=1)] = 400
    rows: Annotated[int, Field(ge=1)] = 32
    row_length: Annotated[int, Field(ge=2)] = 64
    optimizer: OptimizerConfig = OptimizerConfig(learning_rate=3e-3, schedule=Schedule.COSINE, warmup_steps=20, b2=0.98)


def fit(
    architecture: Architecture,
    base: Base,
    pairs: Iterable[Pair],
    config: SupervisedConfig,
    *,
    progress: Progress = lambda step, loss: None,
) -> Base:
    """Train every weight of `base` on as many of `pairs` as the steps take. The given base is left as it is.

    `progress(step, loss)` is called every 50 steps and after the last, with the loss in nats per token.
    Raises ConfigError when the pairs end before the steps do, DataError for an empty prompt or completion.
    """
    optimizer = make_optimizer(config.optimizer, config.steps)
    step = _make_step(architecture, optimizer)
    weights = jax.tree.map(jnp.copy, base)
    state = optimizer.direction.init(weights)
    microbatches = _microbatches(pairs, config)
    for number in range(config.steps):
        microbatch = next(microbatches, None)
        if microbatch is None:
            message = f"the pairs were used up after {number} steps; give more of them, or repeat them"
            raise ConfigError(Problem("supervised.steps", config.steps, message))
        weights, state, loss = step(weights, state, jnp.int32(number), microbatch)
        if (number + 1) % REPORTED_STEPS == 0 or number + 1 == config.steps:
            progress(number + 1, float(loss))
    return weights


def negative_log_likelihood(architecture: Architecture, base: Base, microbatch: Microbatch) -> Float[Array, ""]:
    """Mean over the completions' tokens of -log p(token), in nats; 0 for a micro-batch without any."""
    # Models that are tuned whole are small: the memory that rematerialisation saves is not worth its time.
    hidden = forward(
        architecture, base, None, microbatch.tokens, microbatch.positions, microbatch.segments, remat="none"
    )
    predicting = hidden.reshape(-1, hidden.shape[-1])[microbatch.index]
    logprobs, _ = token_logprobs(
        architecture, base, predicting, microbatch.targets, temperature=1.0, chunk=len(microbatch.targets)
    )
    mask = microbatch.sampled.mask
    return -jnp.sum(jnp.where(mask, logprobs, 0.0)) / jnp.maximum(jnp.sum(mask), 1)


Step = Callable[[Base, optax.OptState, Int[Array, ""], Microbatch], tuple[Base, optax.OptState, Float[Array, ""]]]


def _make_step(architecture: Architecture, optimizer: Optimizer) -> Step:
    def step(
        base: Base, state: optax.OptState, number: Int[Array, ""], microbatch: Microbatch
    ) -> tuple[Base, optax.OptState, Float[Array, ""]]:
        def loss(weights: Base) -> Float[Array, ""]:
            return negative_log_likelihood(architecture, weights, microbatch)

        value, gradients = jax.value_and_grad(loss)(base)
        directions, state = optimizer.direction.update(gradients, state, base)
        rate = optimizer.learning_rate(number)
        return jax.tree.map(lambda leaf, move: leaf - rate * move, base, directions), state, value

    return jax.jit(step, donate_argnums=(0, 1))


def _microbatches(pairs: Iterable[Pair], config: SupervisedConfig) -> Iterator[Microbatch]:
    # One capacity, so that there is one program to compile.
    places = config.rows * config.row_length
    packing = PackingConfig(rows=config.rows, row_length=config.row_length, capacities=(places,))
    return Packer(packing, weight=lambda length: 1.0).pack(_to_sample(*pair) for pair in pairs)


def _to_sample(prompt_ids: Sequence[int], completion_ids: Sequence[int]) -> Sample:
    if not prompt_ids or not completion_ids:
        raise DataError(f"a pair has {len(prompt_ids)} prompt and {len(completion_ids)} completion ids; give both")
    length = len(prompt_ids) + len(completion_ids)
    return Sample(
        token_ids=(*prompt_ids, *completion_ids),
        completion_mask=(False,) * len(prompt_ids) + (True,) * len(completion_ids),
        logprobs=(0.0,) * length,
        versions=(-1,) * length,
        advantage=0.0,
    )

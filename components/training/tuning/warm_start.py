"""(prompt ids, completion ids) -> a base that completes them: full-parameter tuning of small models.

One optimizer step per micro-batch and as many examples in it as fit, so this is for models that fit several times;
tuning a large model goes through an adapter. Loss, batches and update are those of the tune step.
"""

from collections.abc import Callable, Iterable
from typing import Annotated

import jax
import jax.numpy as jnp
import numpy as np
from pydantic import Field

from components.config import config
from components.errors import ConfigError, Problem
from components.model.architecture import Architecture
from components.model.base import Base
from components.training.optimizer import OptimizerConfig, Schedule, make_optimizer
from components.training.packing import Packer, PackingConfig
from components.training.tuning.methods import SUPERVISED
from components.training.tuning.tuner import Tuner, make_programs
from components.training.update import init_state
from components.types import Sample

Progress = Callable[[int, float], None]

REPORTED_STEPS = 50
"""How often `fit` reports: reading a loss waits for the device."""


@config
class SupervisedConfig:
    """`steps` optimizer steps over `rows` rows of `row_length` tokens; several examples share a row while they fit."""

    steps: Annotated[int, Field(ge=1)] = 400
    rows: Annotated[int, Field(ge=1)] = 32
    row_length: Annotated[int, Field(ge=2)] = 64
    optimizer: OptimizerConfig = OptimizerConfig(learning_rate=3e-3, schedule=Schedule.COSINE, warmup_steps=20, b2=0.98)

    @property
    def packing(self) -> PackingConfig:
        """One capacity, so that there is one program to compile."""
        return PackingConfig(rows=self.rows, row_length=self.row_length, capacities=(self.rows * self.row_length,))


def fit(
    architecture: Architecture,
    base: Base,
    samples: Iterable[Sample],
    config: SupervisedConfig,
    *,
    progress: Progress = lambda step, loss: None,
) -> Base:
    """Train every weight of `base` on as many of `samples` as the steps take. The given base is left as it is.

    `progress(step, loss)` is called every 50 steps and after the last, with the loss in nats per token.
    Raises ConfigError when the samples end before the steps do.
    """
    optimizer = make_optimizer(config.optimizer, config.steps)
    # Models that are tuned whole are small: the memory that rematerialisation saves is not worth its time.
    programs = make_programs(architecture, SUPERVISED, optimizer, chunk=config.rows * config.row_length, remat="none")
    weights = jax.tree.map(jnp.copy, base)
    tuner = Tuner(None, init_state(weights, optimizer), SUPERVISED, config.packing, programs)
    microbatches = Packer(config.packing, lambda length: 1.0).pack(samples)
    for number in range(1, config.steps + 1):
        microbatch = next(microbatches, None)
        if microbatch is None:
            message = f"the examples were used up after {number - 1} steps; give more of them, or repeat them"
            raise ConfigError(Problem("warm_start.steps", config.steps, message))
        tuner.take(microbatch)
        numbers = tuner.finish(int(np.sum(np.asarray(microbatch.sampled.mask))))
        if number % REPORTED_STEPS == 0 or number == config.steps:
            progress(number, float(numbers["loss"]))
    trained = tuner.state.adapter
    assert isinstance(trained, Base), "what is trained here is a base"
    return trained

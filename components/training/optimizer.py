"""Settings -> an optax chain and its learning rate over a run whose number of steps is known.

The learning rate is a function of the optimizer step and is applied by `training/update.py`, so that a step that was
skipped does not shift the schedule.
"""

import dataclasses
from collections.abc import Callable
from enum import StrEnum
from typing import Annotated, Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int
from pydantic import Field

from components.config import config
from components.errors import ConfigError, Problem, RunStoppedError
from components.model.lockstep import program
from components.model.lora import LoraPair

Weights = TypeVar("Weights")
Metrics = dict[str, Array]


class Schedule(StrEnum):
    """The learning rate after the warm-up: held, or down to 0 at the run's last step."""

    CONSTANT = "constant"
    LINEAR = "linear"
    COSINE = "cosine"


@config
class OptimizerConfig:
    """AdamW (arXiv:1711.05101). `warmup_steps` are optimizer steps; `clip_norm` bounds the global gradient norm.

    `lora_plus_ratio` is how much faster the B of each LoRA pair learns than its A (LoRA+, arXiv:2402.12354). A step
    whose gradient is not finite changes nothing; more than `max_skipped` of them in a row stop the run.
    """

    learning_rate: Annotated[float, Field(gt=0)] = 3e-4
    schedule: Schedule = Schedule.CONSTANT
    warmup_steps: Annotated[int, Field(ge=0)] = 0
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    b1: Annotated[float, Field(ge=0, lt=1)] = 0.9
    b2: Annotated[float, Field(ge=0, lt=1)] = 0.99
    epsilon: Annotated[float, Field(gt=0)] = 1e-8
    clip_norm: Annotated[float, Field(gt=0)] | None = 1.0
    lora_plus_ratio: Annotated[float, Field(ge=1)] = 1.0
    max_skipped: Annotated[int, Field(ge=0)] = 3

    def __post_init__(self) -> None:
        if self.learning_rate > 1:
            # Adam moves each weight by about this much in a step, and hardly any weight of a model is as large as 1.
            message = "is more than 1, which leaves nothing of a model in one step; usual for LoRA is 1e-5 to 1e-3"
            raise ConfigError(Problem("learning_rate", self.learning_rate, message))


class Optimizer(NamedTuple):
    """`direction` maps gradients to what `learning_rate(step)` is multiplied by and subtracted from the weights."""

    direction: optax.GradientTransformation
    learning_rate: Callable[[Int[Array, ""]], Array]
    total_steps: int


@program
def make_optimizer(config: OptimizerConfig, total_steps: int) -> Optimizer:
    """The chain clip -> Adam -> weight decay, and the schedule over `total_steps`.

    Raises ConfigError when there is no step to make, or the warm-up is not shorter than the run.
    """
    if total_steps < 1:
        raise ConfigError(
            Problem("optimizer", total_steps, "the run has no optimizer step; give it more tasks or steps")
        )
    if config.warmup_steps and config.warmup_steps >= total_steps:
        message = f"the run has only {total_steps} optimizer steps, so the learning rate would never be reached"
        raise ConfigError(Problem("optimizer.warmup_steps", config.warmup_steps, message))
    stages = [] if config.clip_norm is None else [optax.clip_by_global_norm(config.clip_norm)]
    stages.append(optax.scale_by_adam(b1=config.b1, b2=config.b2, eps=config.epsilon))
    if config.weight_decay:
        stages.append(optax.add_decayed_weights(config.weight_decay))
    direction = _on_leaves(optax.chain(*stages))
    if config.lora_plus_ratio != 1:
        direction = optax.chain(direction, _faster_b(config.lora_plus_ratio))
    return Optimizer(direction, _schedule(config, total_steps), total_steps)


def descend(
    optimizer: Optimizer,
    weights: Weights,
    state: optax.OptState,
    gradients: Weights,
    denominator: Float[Array, ""],
    step: Int[Array, ""],
) -> tuple[Weights, optax.OptState, Metrics]:
    """One update by a sum of gradients, at the learning rate of a step: weights, optimizer state, what happened.

    When the denominator is 0 or a gradient is not finite, both stay as they are, and `skipped` is 1.
    """
    gradients = jax.tree.map(lambda leaf: leaf / jnp.maximum(denominator, 1e-30), gradients)
    norm = optax.tree.norm(jax.tree.leaves(gradients))
    usable = jnp.isfinite(norm) & (denominator > 0)
    rate = optimizer.learning_rate(step)
    directions, moved = optimizer.direction.update(gradients, state, weights)
    changes = jax.tree.map(lambda leaf: jnp.where(usable, -rate * leaf, 0.0), directions)
    kept = jax.tree.map(lambda new, old: jnp.where(usable, new, old), moved, state)
    metrics = {
        "gradient_norm": jnp.where(usable, norm, 0.0),
        "update_norm": optax.tree.norm(jax.tree.leaves(changes)),
        "learning_rate": rate,
        "skipped": (~usable).astype(jnp.int32),
    }
    return optax.apply_updates(weights, changes), kept, metrics


def _faster_b(ratio: float) -> optax.GradientTransformation:
    """Multiplies what B of each pair moves by: decay included, as a learning rate of its own would."""

    def update(pair: Any) -> Any:
        return dataclasses.replace(pair, b=ratio * pair.b) if isinstance(pair, LoraPair) else pair

    return optax.stateless(
        lambda directions, weights: jax.tree.map(update, directions, is_leaf=lambda node: isinstance(node, LoraPair))
    )


def _on_leaves(inner: optax.GradientTransformation) -> optax.GradientTransformation:
    """The same transformation over a list of leaves: a norm makes a tree of scalars, and ours hold matrices only."""

    def init(weights: optax.Params) -> optax.OptState:
        return inner.init(jax.tree.leaves(weights))

    def update(
        gradients: optax.Updates, state: optax.OptState, weights: optax.Params | None = None
    ) -> tuple[optax.Updates, optax.OptState]:
        leaves, tree = jax.tree.flatten(gradients)
        directions, state = inner.update(leaves, state, jax.tree.leaves(weights))
        return jax.tree.unflatten(tree, directions), state

    return optax.GradientTransformation(init, update)


def _schedule(config: OptimizerConfig, total_steps: int) -> Callable[[Int[Array, ""]], Array]:
    """Step 0 is the first. Warm-up reaches the full rate at step `warmup_steps`; the last step makes a small move."""
    peak, warmup = config.learning_rate, config.warmup_steps
    remaining = max(total_steps - warmup, 1)

    def learning_rate(step: Int[Array, ""]) -> Array:
        # The first step of a warm-up moves too: counting from 1 wastes no rollout on a rate of 0.
        rise = jnp.minimum((step + 1) / (warmup + 1), 1.0)
        progress = jnp.clip((step - warmup) / remaining, 0.0, 1.0)
        match config.schedule:
            case Schedule.CONSTANT:
                fall = jnp.ones_like(progress)
            case Schedule.LINEAR:
                fall = 1 - progress
            case Schedule.COSINE:
                fall = 0.5 * (1 + jnp.cos(jnp.pi * progress))
        return peak * rise * fall

    return learning_rate


def optimizer_steps(rows: int, tasks_per_step: int, epochs: int, max_steps: int | None, drop_last: bool) -> int:
    """How many optimizer steps a run makes of `rows` tasks, seen `epochs` times, `tasks_per_step` groups a step.

    The size of a group does not count, and a step may span two epochs: only the last step of the run can be short, and
    `drop_last` leaves it out. 7473 rows, 8 tasks a step, 1 epoch -> 934, or 935 with the short one.
    """
    groups = rows * epochs
    steps = groups // tasks_per_step if drop_last else -(-groups // tasks_per_step)
    return steps if max_steps is None else min(steps, max_steps)


@dataclasses.dataclass
class SkippedInARow:
    """Counts updates of `what` that changed nothing, one after another; `limit` is the value of the setting `where`."""

    limit: int
    where: str
    what: str
    in_a_row: int = 0

    def count(self, skipped: bool) -> None:
        """One more update. Raises RunStoppedError when more in a row were skipped than the limit."""
        self.in_a_row = self.in_a_row + 1 if skipped else 0
        if self.in_a_row > self.limit:
            raise RunStoppedError(
                f"the gradients of {self.in_a_row} {self.what} in a row were not finite, more than "
                f"{self.where} ({self.limit}); nothing was changed by them. Lower the learning rate, "
                "or look for a weight that is not finite"
            )

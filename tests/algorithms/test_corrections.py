import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from components.algorithms.corrections import (
    decoupled_surrogate,
    importance_ratio,
    masked_importance_weight,
    truncated_importance_weight,
)


def test_ratios_are_finite_constants_and_zero_where_masked():
    behavior = jnp.array([-2.0, -1.0, -500.0, -1.0, -400.0])
    mask = jnp.array([True, True, True, True, False])
    logprobs = jnp.array([-1.5, -3.0, -1.0, -500.0, 300.0])
    wanted = [math.exp(0.5), math.exp(-2.0), math.exp(20.0), math.exp(-20.0), 0.0]
    np.testing.assert_allclose(importance_ratio(logprobs, behavior, mask), wanted, rtol=1e-5)
    gradient = jax.grad(lambda logprobs: importance_ratio(logprobs, behavior, mask).sum())(logprobs)
    np.testing.assert_array_equal(gradient, np.zeros(5))


def test_a_truncated_weight_is_cut_and_a_masked_one_is_dropped():
    ratio = jnp.array([0.0, 0.4, 0.5, 1.0, 2.0, 5.0, 5.5, math.exp(20)])
    np.testing.assert_allclose(truncated_importance_weight(ratio, cap=2.0), [0.0, 0.4, 0.5, 1.0, 2.0, 2.0, 2.0, 2.0])
    masked = masked_importance_weight(ratio, floor=0.5, cap=5.0)
    np.testing.assert_allclose(masked, [0.0, 0.0, 0.5, 1.0, 2.0, 5.0, 0.0, 0.0])


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "slope"),
    [
        (1.0, 2.0, -2.0, -2.0),
        (1.1, 2.0, -2.2, -2.2),
        (1.5, 2.0, -2.4, 0.0),  # clipped at 1.2
        (0.5, 2.0, -1.0, -1.0),
        (0.5, -2.0, 1.6, 0.0),  # clipped at 0.8
    ],
)
def test_a_decoupled_step_is_clipped_around_the_proximal_policy_and_weighed_by_the_behavior(
    ratio, advantage, loss, slope
):
    """Weight 3 and u = `ratio`: three times what PPO says of u, whatever the behavior policy was."""
    proximal, importance = jnp.array([-1.0]), jnp.array([3.0])

    def total(logprobs: jax.Array, proximal: jax.Array, importance: jax.Array) -> jax.Array:
        on = jnp.array([True])
        advantages = jnp.array([advantage])
        return decoupled_surrogate(logprobs, proximal, importance, advantages, on, clip_low=0.2, clip_high=0.2).sum()

    arguments = (proximal + math.log(ratio), proximal, importance)
    value, gradients = jax.value_and_grad(total, argnums=(0, 1, 2))(*arguments)
    assert float(value) == pytest.approx(3 * loss, rel=1e-5)
    np.testing.assert_allclose(np.concatenate(gradients), [3 * slope, 0.0, 0.0], rtol=1e-5)


def test_nonsense_at_masked_places_reaches_neither_loss_nor_gradient():
    mask = jnp.array([True, False, False])
    advantages = jnp.array([1.0, 5.0, -5.0])

    def total(logprobs: jax.Array) -> jax.Array:
        ratio = importance_ratio(logprobs, jnp.array([-1.0, -200.0, 300.0]), mask)
        importance = truncated_importance_weight(ratio, cap=2.0)
        return decoupled_surrogate(logprobs, logprobs, importance, advantages, mask, clip_low=0.2, clip_high=0.2).sum()

    loss, gradient = jax.value_and_grad(total)(jnp.array([-1.0, 0.0, -jnp.inf]))
    assert loss == pytest.approx(-1.0)
    np.testing.assert_allclose(gradient, [-1.0, 0.0, 0.0])

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from components.algorithms.losses import (
    KlEstimator,
    clip_sides,
    clipped_surrogate,
    kl_divergence,
)

ON = jnp.array([True])


def one(value: float) -> jax.Array:
    return jnp.array([value], jnp.float32)


def surrogate(ratio: float, advantage: float, **keys: float) -> float:
    keys = {"clip_low": 0.2, "clip_high": 0.2, **keys}
    return float(clipped_surrogate(one(math.log(ratio)), one(0.0), one(advantage), ON, **keys)[0])


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss"),
    [
        (1.0, 2.0, -2.0),
        (1.5, 2.0, -2.4),  # clipped at 1.2
        (0.5, 2.0, -1.0),  # the pessimistic side is not clipped
        (0.5, -2.0, 1.6),  # clipped at 0.8
        (1.5, -2.0, 3.0),
    ],
)
def test_the_surrogate_is_the_pessimistic_bound(ratio, advantage, loss):
    assert surrogate(ratio, advantage) == pytest.approx(loss, rel=1e-6)


def test_the_two_clips_are_independent():
    assert surrogate(1.5, 1.0, clip_high=0.28) == pytest.approx(-1.28, rel=1e-6)
    assert surrogate(0.5, -1.0, clip_low=0.4) == pytest.approx(0.6, rel=1e-6)


def test_dual_clip_bounds_the_loss_of_negative_advantages_only():
    assert surrogate(10.0, -2.0) == pytest.approx(20.0, rel=1e-6)
    assert surrogate(10.0, -2.0, dual_clip=3.0) == pytest.approx(6.0, rel=1e-6)
    assert surrogate(2.0, -2.0, dual_clip=3.0) == pytest.approx(4.0, rel=1e-6)
    assert surrogate(0.5, 2.0, dual_clip=3.0) == pytest.approx(-1.0, rel=1e-6)


def test_the_gradient_on_policy_is_minus_the_advantage():
    def total(logprobs: jax.Array) -> jax.Array:
        return clipped_surrogate(logprobs, one(-1.0), one(2.0), ON, clip_low=0.2, clip_high=0.2).sum()

    assert jax.grad(total)(one(-1.0))[0] == pytest.approx(-2.0)


def test_nonsense_at_masked_places_reaches_neither_loss_nor_gradient():
    old, mask = jnp.array([-1.0, -200.0]), jnp.array([True, False])

    def total(logprobs: jax.Array) -> jax.Array:
        return clipped_surrogate(logprobs, old, jnp.ones(2), mask, clip_low=0.2, clip_high=0.2).sum()

    loss, gradient = jax.value_and_grad(total)(jnp.array([-1.0, 0.0]))
    assert loss == pytest.approx(-1.0)
    np.testing.assert_allclose(gradient, [-1.0, 0.0])


@pytest.mark.parametrize("estimator", list(KlEstimator))
def test_kl_of_masked_places_is_zero_with_zero_gradient(estimator):
    reference, mask = jnp.array([-1.0, 0.0]), jnp.array([True, False])

    def total(logprobs: jax.Array) -> jax.Array:
        return kl_divergence(logprobs, reference, mask, estimator=estimator).sum()

    value, gradient = jax.value_and_grad(total)(jnp.array([-1.0, -200.0]))
    assert value == 0.0
    assert gradient[1] == 0.0
    assert bool(jnp.isfinite(gradient).all())


@pytest.mark.parametrize(
    ("estimator", "value", "slope"),
    [
        (KlEstimator.K1, 0.5, 1.0),
        (KlEstimator.K2, 0.125, 0.5),
        (KlEstimator.K3, math.exp(-0.5) + 0.5 - 1, 1 - math.exp(-0.5)),
    ],
)
def test_kl_estimators_by_hand(estimator, value, slope):
    def total(logprobs: jax.Array) -> jax.Array:
        return kl_divergence(logprobs, one(-1.5), ON, estimator=estimator).sum()

    found, gradient = jax.value_and_grad(total)(one(-1.0))
    assert found == pytest.approx(value, rel=1e-5)
    assert gradient[0] == pytest.approx(slope, rel=1e-5)


@pytest.mark.parametrize("drift", [100.0, -100.0])
@pytest.mark.parametrize("estimator", [KlEstimator.K2, KlEstimator.K3])
def test_kl_of_a_policy_that_drifted_far_is_finite_and_pulls_back(estimator, drift):
    def total(logprobs: jax.Array) -> jax.Array:
        return kl_divergence(logprobs, one(0.0), ON, estimator=estimator).sum()

    value, gradient = jax.value_and_grad(total)(one(drift))
    assert math.isfinite(value)
    assert math.isfinite(gradient[0])
    assert gradient[0] * drift > 0


def test_a_surrogate_that_drifted_far_is_finite_and_pulls_back():
    def total(logprobs: jax.Array) -> jax.Array:
        return clipped_surrogate(logprobs, one(-100.0), one(-1.0), ON, clip_low=0.2, clip_high=0.2).sum()

    value, gradient = jax.value_and_grad(total)(one(0.0))
    assert value == pytest.approx(math.exp(20), rel=1e-5)
    assert math.isfinite(gradient[0])
    assert gradient[0] > 0


def test_clipped_tokens_are_those_without_gradient():
    ratio = jnp.array([1.5, 0.5, 1.5, 0.5, 1.0, 4.0])
    advantages, mask = jnp.array([1.0, 1.0, -1.0, -1.0, 1.0, -1.0]), jnp.ones(6, bool)
    clip = {"clip_low": 0.2, "clip_high": 0.2, "dual_clip": 3.0}

    def total(logprobs: jax.Array) -> jax.Array:
        return clipped_surrogate(logprobs, jnp.zeros(6), advantages, mask, **clip).sum()

    low, high = clip_sides(ratio, advantages, mask, **clip)
    np.testing.assert_array_equal(low, [False, False, False, True, False, False])
    np.testing.assert_array_equal(high, [True, False, False, False, False, True])
    np.testing.assert_array_equal(low | high, jax.grad(total)(jnp.log(ratio)) == 0)

"""The critic's loss by hand, by the formula that PPO's implementations share, and where nothing can be said."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from components.algorithms.values import clipped_value_loss, explained_variance

NO_ONE = jnp.zeros(3, bool)


def test_a_value_that_has_moved_beyond_the_clip_pulls_no_more():
    # V0 0 and G 1: V 0.1 is free, V 0.5 is held at 0.2 (0.8 off, more than 0.5), V -0.5 (1.5 off) is held and freer.
    values, old, returns = jnp.array([0.1, 0.5, -0.5]), jnp.zeros(3), jnp.ones(3)

    def total(values):
        return clipped_value_loss(values, old, returns, ~NO_ONE, clip=0.2)[0].sum()

    losses, held = clipped_value_loss(values, old, returns, ~NO_ONE, clip=0.2)
    np.testing.assert_allclose(losses, [0.9**2 / 2, 0.8**2 / 2, 1.5**2 / 2], rtol=1e-6)
    assert held.tolist() == [False, True, False]
    np.testing.assert_allclose(jax.grad(total)(values), [-0.9, 0.0, -1.5], rtol=1e-6)


def test_without_a_clip_it_is_half_the_square():
    losses, held = clipped_value_loss(jnp.array([3.0]), jnp.array([0.0]), jnp.array([1.0]), ~NO_ONE[:1], clip=0.0)
    assert float(losses[0]) == 2.0
    assert not held.any()


def test_padding_has_loss_and_gradient_zero_whatever_stands_in_it():
    nonsense = jnp.array([1e30, -1e30, 7.0])

    def total(values):
        return clipped_value_loss(values, jnp.zeros(3), -nonsense, NO_ONE, clip=0.2)[0].sum()

    loss, gradient = jax.value_and_grad(total)(nonsense)
    assert float(loss) == 0.0
    np.testing.assert_array_equal(gradient, np.zeros(3))


def test_it_is_the_loss_of_published_implementations():
    """0.5 masked_mean(max((v - R)^2, (clip(v, v0 - c, v0 + c) - R)^2)); the clipped share: mean(second > first)."""
    random = np.random.default_rng(0)
    values, old, returns = random.normal(size=(3, 40)).astype(np.float32)
    mask = random.random(40) < 0.7
    first = (values - returns) ** 2
    second = (np.clip(values, old - 0.3, old + 0.3) - returns) ** 2
    losses, held = clipped_value_loss(*map(jnp.asarray, (values, old, returns, mask)), clip=0.3)
    assert float(losses.sum()) / mask.sum() == pytest.approx(0.5 * np.maximum(first, second)[mask].mean(), rel=1e-5)
    assert float(held.sum()) / mask.sum() == pytest.approx((second > first)[mask].mean())


@pytest.mark.parametrize(
    ("values", "share"),
    [
        ([0.0, 1.0, 2.0, 5.0], 1.0),
        ([3.0, 4.0, 5.0, 8.0], 1.0),
        ([2.0, 2.0, 2.0, 2.0], 0.0),
        # Errors 2 0 0 -2 have variance 2, the returns 0 1 2 5 have 3.5.
        ([-2.0, 1.0, 2.0, 7.0], 1 - 2 / 3.5),
        ([0.0, -1.0, -2.0, -5.0], 1 - 4),
    ],
)
def test_explained_variance_by_hand(values, share):
    assert explained_variance(np.array(values), np.array([0.0, 1.0, 2.0, 5.0])) == pytest.approx(share)


@pytest.mark.parametrize("returns", [[], [0.3], [float(np.float32(0.7))] * 8])
def test_returns_that_are_all_equal_leave_nothing_to_explain(returns):
    assert explained_variance(np.zeros(len(returns)), np.array(returns)) == 0.0

"""DPO, IPO and ORPO by hand, in a few lines of numpy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from components.algorithms.preference import (
    PreferenceLoss,
    dpo_losses,
    log_odds,
    odds_ratio_losses,
    pair_means,
    pair_sums,
    right_share,
)

# Two pairs and padding: tokens of chosen 0, rejected 1, chosen 2, rejected 3.
SEQUENCE = jnp.array([0, 0, 1, 1, 1, 2, 3, 3, -1, -1])
LOGPROBS = jnp.array([-0.5, -0.25, -1.0, -1.5, -0.5, -2.0, -0.125, -0.25, -7.0, jnp.nan])
CHOSEN, REJECTED = np.array([-0.75, -2.0]), np.array([-3.0, -0.375])


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def test_answers_are_summed_and_averaged_apart_and_padding_is_no_answer():
    sums, means = pair_sums(LOGPROBS, SEQUENCE), pair_means(LOGPROBS, SEQUENCE)
    assert sums.there.tolist() == [True, True, False, False, False]
    np.testing.assert_allclose(sums.chosen[:2], CHOSEN)
    np.testing.assert_allclose(sums.rejected[:2], REJECTED)
    np.testing.assert_allclose(means.chosen[:2], [-0.375, -2.0])
    np.testing.assert_allclose(means.rejected[:2], [-1.0, -0.1875])
    for numbers in (*sums[:2], *means[:2]):
        assert numbers[2:].tolist() == [0.0, 0.0, 0.0]


def test_half_a_pair_is_none():
    assert pair_sums(jnp.array([-1.0, -1.0, -1.0]), jnp.array([0, 1, 2])).there.tolist() == [True, False]


def test_dpo_is_equation_7():
    # Log-ratios: -0.75 + 1.0 against -3.0 + 2.5 in the first pair, -2.0 + 1.5 against -0.375 + 1.0 in the second.
    margins = (CHOSEN - [-1.0, -1.5]) - (REJECTED - [-2.5, -1.0])
    np.testing.assert_allclose(margins, [0.75, -1.125])
    found = dpo_losses(jnp.asarray(margins), beta=0.5)
    np.testing.assert_allclose(found, -np.log(sigmoid(0.5 * margins)), rtol=1e-6)
    np.testing.assert_allclose(found, [np.log1p(np.exp(-0.375)), np.log1p(np.exp(0.5625))], rtol=1e-5)


def test_a_smoothed_label_is_wrong_for_its_share():
    margins = np.array([0.75, -1.125])
    expected = -0.9 * np.log(sigmoid(0.5 * margins)) - 0.1 * np.log(sigmoid(-0.5 * margins))
    np.testing.assert_allclose(dpo_losses(jnp.asarray(margins), beta=0.5, label_smoothing=0.1), expected, rtol=1e-6)


def test_ipo_pulls_every_margin_to_half_over_beta():
    margins = jnp.array([0.75, -1.125, 1.0])
    found = dpo_losses(margins, beta=0.5, loss=PreferenceLoss.IPO)
    np.testing.assert_allclose(found, [0.0625, 4.515625, 0.0])


def test_orpo_is_equation_7_over_odds_of_mean_probabilities():
    means = pair_means(LOGPROBS, SEQUENCE)
    chosen, rejected = np.exp([-0.375, -2.0]), np.exp([-1.0, -0.1875])
    odds = chosen / (1 - chosen), rejected / (1 - rejected)
    np.testing.assert_allclose(log_odds(means.chosen)[:2], np.log(odds[0]), rtol=1e-5)
    expected = -np.log(sigmoid(np.log(odds[0] / odds[1])))
    np.testing.assert_allclose(odds_ratio_losses(means)[:2], expected, rtol=1e-5)
    np.testing.assert_allclose(odds_ratio_losses(means)[:2], [0.234910, 3.465117], rtol=1e-5)


def test_certainty_has_finite_odds_and_a_finite_gradient():
    value, slope = jax.value_and_grad(lambda x: log_odds(x).sum())(jnp.array([0.0, -1e-9, -200.0]))
    assert np.isfinite(value)
    assert np.isfinite(slope).all()


@pytest.mark.parametrize("beta", [0.1, 10.0])
def test_far_margins_stay_finite(beta):
    margins = jnp.array([-1e4, 1e4])
    value, slope = jax.value_and_grad(lambda x: dpo_losses(x, beta=beta).sum())(margins)
    assert np.isfinite(value)
    np.testing.assert_allclose(slope, [-beta, 0.0], atol=1e-6)


def test_a_tie_is_half_right():
    assert right_share(jnp.array([2.0, -0.1, 0.0])).tolist() == [1.0, 0.0, 0.5]

import math

import numpy as np
import pytest

from components.errors import DataError
from components.evaluation.statistics import (
    bootstrap_interval,
    mean_interval,
    paired_difference,
    pass_at_k,
    sign_flip_p_value,
    wilson_interval,
)


def test_wilson_interval_equals_the_hand_computed_one():
    # 8 of 10 with z = 1.959964: middle (0.8 + 0.192073) / 1.384146, half width 1.959964 / 1.384146 * 0.159963
    low, high = wilson_interval(8, 10)
    assert low == pytest.approx(0.4901625, abs=1e-6)
    assert high == pytest.approx(0.9433178, abs=1e-6)


def test_all_right_is_not_certainty():
    estimate = mean_interval([1.0] * 20)
    assert estimate.value == 1.0
    assert estimate.high == 1.0
    assert estimate.low == pytest.approx(20 / (20 + 1.959964**2), abs=1e-6)
    assert estimate.method == "wilson"


def test_none_right_mirrors_all_right():
    low, high = wilson_interval(0, 20)
    assert low == 0.0
    assert high == pytest.approx(1 - wilson_interval(20, 20)[0], abs=1e-12)


def test_a_short_last_batch_counts_row_by_row():
    assert mean_interval([1, 1, 1, 1, 5]).value == pytest.approx(1.8)


def test_every_row_of_a_set_smaller_than_the_batch_is_scored():
    assert mean_interval([0.5] * 200).count == 200


@pytest.mark.parametrize("scores", [[], np.array([])])
def test_no_rows_is_an_error_and_not_a_metric(scores):
    with pytest.raises(DataError, match="no evaluation rows"):
        mean_interval(scores)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_score_that_is_not_finite_is_refused(bad):
    with pytest.raises(DataError, match="finite"):
        mean_interval([1.0, bad])


def test_bootstrap_of_two_values_has_the_binomial_quantiles():
    # The mean of 4 draws from {0, 2} is Binomial(4, 1/2) / 2: its 10 % and 90 % quantiles are 1/2 and 3/2,
    # as P(0) = 1/16 < 0.1 < 5/16.
    low, high = bootstrap_interval(np.array([0.0, 2.0, 0.0, 2.0]), confidence=0.8)
    assert (low, high) == (0.5, 1.5)


def test_bootstrap_agrees_with_the_normal_interval_for_many_scores():
    scores = np.random.default_rng(1).normal(3.0, 2.0, 2000)
    low, high = bootstrap_interval(scores)
    half = 1.959964 * scores.std() / math.sqrt(2000)
    assert low == pytest.approx(scores.mean() - half, abs=0.01)
    assert high == pytest.approx(scores.mean() + half, abs=0.01)


def test_bootstrap_is_a_function_of_its_seed():
    scores = np.random.default_rng(1).normal(size=50)
    assert bootstrap_interval(scores, seed=3) == bootstrap_interval(scores, seed=3)
    assert bootstrap_interval(scores, seed=3) != bootstrap_interval(scores, seed=4)


def test_bootstrap_in_chunks_draws_every_resample():
    scores = np.arange(600_000, dtype=np.float64)
    low, high = bootstrap_interval(scores, resamples=20)
    assert low < high
    assert low == pytest.approx(299_999.5, rel=0.01)


def test_paired_difference_of_right_and_wrong_answers_is_newcombes():
    # 36 right both times, 12 only after, 2 only before, 0 never: the first example of Newcombe's table II.
    before = [1] * 36 + [0] * 12 + [1] * 2
    after = [1] * 36 + [1] * 12 + [0] * 2
    result = paired_difference(before, after)
    assert result.difference.value == pytest.approx(0.2)
    assert result.difference.low == pytest.approx(0.0569, abs=5e-5)
    assert result.difference.high == pytest.approx(0.3404, abs=5e-5)
    assert (result.better, result.worse, result.equal) == (12, 2, 36)
    # McNemar, exact: 2 * (C(14,12) + C(14,13) + C(14,14)) / 2^14 = 2 * 106 / 16384
    assert result.p_value == pytest.approx(212 / 16384)


def test_a_policy_that_is_always_better_has_an_interval_above_zero_and_below_certainty():
    result = paired_difference([0] * 20, [1] * 20)
    assert result.difference.value == 1.0
    assert 0.5 < result.difference.low < 1.0
    assert result.p_value == pytest.approx(2 / 2**20)


def test_paired_difference_of_graded_scores_is_bootstrapped_over_pairs():
    result = paired_difference([0.0, 0.5, 0.25], [0.5, 1.0, 0.75])
    assert result.difference.method == "bootstrap"
    assert (result.difference.low, result.difference.value, result.difference.high) == (0.5, 0.5, 0.5)
    assert result.p_value == pytest.approx(0.25)  # 2 of 8 assignments of signs are as extreme


def test_equal_policies_have_p_value_one():
    result = paired_difference([1, 0, 1], [1, 0, 1])
    assert result.p_value == 1.0
    assert result.equal == 3


def test_pairs_must_match():
    with pytest.raises(DataError, match="same tasks"):
        paired_difference([1, 0], [1])


def test_sign_flip_is_exact_for_few_differences():
    # Sums of +-1 +-2 +-3: 6, 4, 2, 0, 0, -2, -4, -6. At least 4 away from zero: 4 of 8.
    assert sign_flip_p_value(np.array([-1.0, 2.0, 3.0])) == pytest.approx(4 / 8)


def test_sign_flip_by_random_signs_agrees_with_the_normal_approximation():
    differences = np.linspace(-1.0, 1.4, 400)
    z = differences.sum() / math.sqrt((differences**2).sum())
    normal = math.erfc(z / math.sqrt(2))
    assert sign_flip_p_value(differences, resamples=100_000) == pytest.approx(normal, rel=0.5, abs=1e-4)


@pytest.mark.parametrize(
    ("correct", "samples", "k", "expected"),
    [(1, 4, 1, 0.25), (1, 4, 2, 0.5), (2, 4, 2, 5 / 6), (0, 4, 4, 0.0), (4, 4, 1, 1.0), (3, 4, 2, 1.0)],
)
def test_pass_at_k_equals_counting_the_draws(correct, samples, k, expected):
    assert pass_at_k(correct, samples, k) == pytest.approx(expected)


@pytest.mark.parametrize(("correct", "samples", "k"), [(1, 4, 5), (5, 4, 1), (1, 4, 0), (0, 0, 1)])
def test_pass_at_k_refuses_what_samples_cannot_tell(correct, samples, k):
    with pytest.raises(ValueError, match="pass@"):
        pass_at_k(correct, samples, k)

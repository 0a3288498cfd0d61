import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from components.algorithms.losses import KlEstimator
from components.algorithms.shaping import kl_charges, overlong_penalty


@pytest.mark.parametrize(
    ("length", "penalty"),
    [(0, 0.0), (16384, 0.0), (16385, -1 / 4096), (18432, -0.5), (20479, -4095 / 4096), (20480, -1.0), (50000, -1.0)],
)
def test_the_overlong_penalty_of_dapo_by_hand(length, penalty):
    assert overlong_penalty(length, limit=20480, buffer=4096) == penalty


def test_without_a_buffer_the_penalty_is_a_step():
    assert [overlong_penalty(length, limit=8, buffer=0) for length in (7, 8, 9)] == [0.0, 0.0, -1.0]


@given(st.integers(0, 10**6), st.integers(1, 10**5), st.integers(0, 10**5))
def test_the_penalty_is_never_below_minus_one_and_never_a_gift(length, limit, buffer):
    assert -1.0 <= overlong_penalty(length, limit=limit, buffer=min(buffer, limit)) <= 0.0


def test_kl_charges_by_hand_and_finite():
    logprobs, reference = np.array([-1.0, -2.0, -1.0]), np.array([-1.5, -1.0, -900.0])
    distance = np.array([0.5, -1.0, 20.0])
    for estimator, wanted in (
        (KlEstimator.K1, distance),
        (KlEstimator.K2, distance**2 / 2),
        (KlEstimator.K3, np.exp(-distance) + distance - 1),
    ):
        np.testing.assert_allclose(kl_charges(logprobs, reference, estimator), wanted)

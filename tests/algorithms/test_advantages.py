import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from components.algorithms.advantages import ESTIMATORS, by_group, dr_grpo, grpo, has_signal, rloo
from components.algorithms.terms import AdvantageKind

HALF_ROOT_3 = math.sqrt(3) / 2


@pytest.mark.parametrize("reward", [0.7, 0.9, 0.1, 1 / 3])
@pytest.mark.parametrize("kind", list(ESTIMATORS))
def test_a_group_of_equal_rewards_has_advantage_exactly_zero(kind, reward):
    rewards = [float(np.float32(reward))] * 8
    assert not has_signal(rewards)
    assert by_group(kind, rewards, ["a"] * 8) == [0.0] * 8


def test_leave_one_out_stays_near_the_reward_of_the_odd_one():
    advantages = rloo([0.35] * 7 + [0.0])
    assert advantages[-1] == pytest.approx(-0.35)
    assert advantages[:7] == pytest.approx([0.05] * 7)


def test_grpo_divides_by_the_sample_standard_deviation():
    expected = [HALF_ROOT_3, -HALF_ROOT_3, -HALF_ROOT_3, HALF_ROOT_3]
    assert grpo([1.0, 0.0, 0.0, 1.0]) == pytest.approx(expected, abs=1e-5)
    assert grpo([1.0, 1.0, 1.0, 0.0]) == pytest.approx([0.5, 0.5, 0.5, -1.5], abs=1e-5)


def test_dr_grpo_only_takes_the_mean_away():
    assert dr_grpo([1.0, 0.0, 0.0, 0.0]) == [0.75, -0.25, -0.25, -0.25]


def test_rloo_compares_with_the_others():
    assert rloo([1.0, 0.0, 0.5]) == pytest.approx([0.75, -0.75, 0.0])


@pytest.mark.parametrize("kind", list(ESTIMATORS))
def test_a_group_of_one_trains_nothing(kind):
    assert by_group(kind, [1.0], ["alone"]) == [0.0]


def test_grouping_goes_by_id_and_not_by_position():
    first, second = [1.0, 0.0, 0.0, 1.0], [1.0, 1.0, 1.0, 0.0]
    in_blocks = by_group(AdvantageKind.GRPO, first + second, ["A"] * 4 + ["B"] * 4)
    mixed = [reward for pair in zip(first, second, strict=True) for reward in pair]
    interleaved = by_group(AdvantageKind.GRPO, mixed, ["A", "B"] * 4)
    assert interleaved[0::2] == in_blocks[:4] == grpo(first)
    assert interleaved[1::2] == in_blocks[4:] == grpo(second)


@pytest.mark.parametrize("reward", [math.nan, math.inf])
def test_a_reward_that_is_not_finite_is_named(reward):
    with pytest.raises(ValueError, match=r"row 1 \(group 'g'\)"):
        by_group(AdvantageKind.GRPO, [0.0, reward], ["g", "g"])


def test_ids_and_rewards_must_be_in_step():
    with pytest.raises(ValueError, match="2 rewards but 1 group ids"):
        by_group(AdvantageKind.GRPO, [0.0, 1.0], ["g"])


@given(st.lists(st.floats(-10, 10, width=32), min_size=2, max_size=16), st.sampled_from(list(ESTIMATORS)))
def test_advantages_of_a_group_are_finite_and_sum_to_zero(rewards, kind):
    advantages = by_group(kind, rewards, ["g"] * len(rewards))
    assert all(math.isfinite(advantage) for advantage in advantages)
    assert sum(advantages) == pytest.approx(0, abs=1e-6)

"""Credit over sampled tokens only, by hand and by the textbook's recursion over the tokens alone."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from components.algorithms.advantages import ESTIMATORS, grpo
from components.algorithms.returns import discounted_returns, generalised_advantages, normalised, turn_advantages
from components.algorithms.terms import AdvantageKind

# Two sampled tokens, two observed ones with nonsense beside them, one sampled token.
MASK = [True, True, False, False, True]
REWARDS = [0.0, 1.0, 99.0, -99.0, 2.0]
VALUES = [0.5, 0.25, 77.0, 77.0, 1.0]


def test_returns_skip_observation_tokens():
    assert discounted_returns(REWARDS, MASK, discount=0.5) == [0.0 + 0.5 * (1.0 + 0.5 * 2.0), 2.0, 0.0, 0.0, 2.0]


def test_gae_by_hand_neither_bootstraps_from_nor_discounts_over_observation_tokens():
    advantages, returns = generalised_advantages(REWARDS, VALUES, MASK, discount=0.9, decay=0.5, last_value=0.5)
    third = 2.0 + 0.9 * 0.5 - 1.0
    second = 1.0 + 0.9 * 1.0 - 0.25 + 0.45 * third
    first = 0.0 + 0.9 * 0.25 - 0.5 + 0.45 * second
    assert advantages == pytest.approx([first, second, 0.0, 0.0, third])
    assert returns == pytest.approx([first + 0.5, second + 0.25, 0.0, 0.0, third + 1.0])


@given(st.data(), st.floats(0, 1), st.floats(0, 1))
def test_gae_is_that_of_the_sampled_tokens_laid_together(data, discount, decay):
    mask = data.draw(st.lists(st.booleans(), min_size=1, max_size=12))
    numbers = st.lists(st.floats(-5, 5), min_size=len(mask), max_size=len(mask))
    rewards, values = data.draw(numbers), data.draw(numbers)
    advantages, _ = generalised_advantages(rewards, values, mask, discount=discount, decay=decay)
    kept = np.flatnonzero(mask)
    chosen, worth = np.array(rewards)[kept], np.append(np.array(values)[kept], 0.0)
    surprises = chosen + discount * worth[1:] - worth[:-1]
    wanted = [sum((discount * decay) ** (k - t) * surprises[k] for k in range(t, len(kept))) for t in range(len(kept))]
    np.testing.assert_allclose(np.array(advantages)[kept], wanted, atol=1e-9)
    assert all(advantages[place] == 0.0 for place, sampled in enumerate(mask) if not sampled)


def test_undiscounted_gae_is_the_return_less_the_value():
    advantages, returns = generalised_advantages(REWARDS, VALUES, MASK)
    assert returns == pytest.approx(discounted_returns(REWARDS, MASK, discount=1.0))
    assert advantages == pytest.approx([3.0 - 0.5, 3.0 - 0.25, 0.0, 0.0, 2.0 - 1.0])


def published_gae(rewards, values, mask, discount: float, decay: float):
    """As implementations for many turns write it: from the last column to the first, carried over what is masked."""
    advantages, after, next_value = np.zeros_like(rewards), np.zeros(len(rewards)), np.zeros(len(rewards))
    for column in reversed(range(rewards.shape[1])):
        surprise = rewards[:, column] + discount * next_value - values[:, column]
        here = mask[:, column]
        after = np.where(here, surprise + discount * decay * after, after)
        next_value = np.where(here, values[:, column], next_value)
        advantages[:, column] = after
    return advantages, advantages + values


def published_whitening(advantages, mask):
    kept = advantages[mask]
    return (advantages - kept.mean()) / np.sqrt(kept.var(ddof=1) + 1e-8)


def test_gae_and_its_whitening_are_those_of_published_implementations():
    random = np.random.default_rng(1)
    rewards, values = random.normal(size=(2, 6, 20))
    mask = random.random((6, 20)) < 0.6
    wanted, wanted_returns = published_gae(rewards, values, mask, 0.97, 0.9)
    rows = zip(rewards.tolist(), values.tolist(), mask.tolist(), strict=True)
    judged = [generalised_advantages(*row, discount=0.97, decay=0.9) for row in rows]
    found, returns = (np.array([each[which] for each in judged]) for which in (0, 1))
    np.testing.assert_allclose(found[mask], wanted[mask])
    np.testing.assert_allclose(returns[mask], wanted_returns[mask])
    np.testing.assert_allclose(normalised(found[mask].tolist()), published_whitening(wanted, mask)[mask], rtol=1e-5)


def test_a_batch_is_normalised_over_its_tokens():
    found = normalised([0.0, 1.0, 1.0, 4.0])
    deviations = np.array([0.0, 1.0, 1.0, 4.0]) - 1.5
    np.testing.assert_allclose(found, deviations / (math.sqrt((deviations**2).sum() / 3) + 1e-6))


@pytest.mark.parametrize("values", [[], [0.3], [float(np.float32(0.7))] * 8])
def test_a_batch_that_says_nothing_has_advantage_exactly_zero(values):
    assert normalised(values) == [0.0] * len(values)


def test_a_turn_is_credited_with_what_it_and_later_turns_earned_against_those_that_got_as_far():
    # To go: 3 2 | 1 1 | 4, so the first turns are compared as 3, 1, 4 and the second as 2, 1.
    found = turn_advantages([[1.0, 2.0], [0.0, 1.0], [4.0]], ESTIMATORS[AdvantageKind.DR_GRPO])
    assert found == [pytest.approx([3 - 8 / 3, 0.5]), pytest.approx([1 - 8 / 3, -0.5]), pytest.approx([4 - 8 / 3])]


def test_a_reward_at_the_end_alone_makes_every_turn_worth_the_episode():
    found = turn_advantages([[0.0, 0.0, reward] for reward in (1.0, 0.0, 0.0, 1.0)], grpo)
    assert found == [[advantage] * 3 for advantage in grpo([1.0, 0.0, 0.0, 1.0])]

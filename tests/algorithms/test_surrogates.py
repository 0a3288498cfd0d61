"""Every surrogate and mask beside a few lines of NumPy, sequence by sequence as the papers write it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from components.algorithms.corrections import interpolated_proximal
from components.algorithms.objective import Objective, ObjectiveConfig
from components.algorithms.sampled import SampledTokens, sequence_mean, sequence_sum
from components.algorithms.surrogates import policy_loss
from components.config import load

# Three sequences; the log ratios of their tokens, and what they are worth.
SEQUENCES = [np.array([0.3, -0.1]), np.array([0.5, 0.2, -0.4]), np.array([-0.9, -0.7])]
ADVANTAGES = [2.0, -1.0, -0.5]
LENGTHS = [len(each) for each in SEQUENCES]
BEHAVIOR = -np.arange(1.0, 8.0) / 2
LOGPROBS = BEHAVIOR + np.concatenate(SEQUENCES)
A = np.repeat(ADVANTAGES, LENGTHS)
VERSIONS = np.array([5, 4, 3, 1, 2, 5, 0])
NONSENSE = 2


def objective(**values) -> Objective:
    return Objective.from_config(load(ObjectiveConfig, values))


def tokens(order: list[int] | None = None) -> tuple[jax.Array, SampledTokens]:
    """The sequences in some order as a packer lays them flat, nonsense behind them."""
    order = order or [0, 1, 2]
    places = np.concatenate([np.flatnonzero(np.repeat([0, 1, 2], LENGTHS) == number) for number in order])

    def flat(values: np.ndarray, nonsense: float) -> jax.Array:
        return jnp.asarray(np.append(values[places], [nonsense] * NONSENSE), jnp.float32)

    laid = SampledTokens(
        behavior_logprobs=flat(BEHAVIOR, -400.0),
        advantages=flat(A, -9.0),
        weights=flat(np.ones(7), 1.0),
        sequence=jnp.asarray([number for number, each in enumerate(order) for _ in range(LENGTHS[each])] + [-1, -1]),
        versions=jnp.asarray([*VERSIONS[places], -1, -1], jnp.int32),
    )
    return flat(LOGPROBS, 300.0), laid


def loss_and_gradient(made: Objective, version: int = 5) -> tuple[np.ndarray, np.ndarray]:
    """Per token, padding left out; and it is asserted that padding has neither loss nor gradient."""
    logprobs, laid = tokens()
    losses = policy_loss(made, logprobs, laid, jnp.int32(version)).losses
    gradient = jax.grad(lambda given: policy_loss(made, given, laid, jnp.int32(version)).losses.sum())(logprobs)
    np.testing.assert_array_equal(losses[7:], 0.0)
    np.testing.assert_array_equal(gradient[7:], 0.0)
    return np.asarray(losses[:7]), np.asarray(gradient[:7])


def bound(ratio: np.ndarray, low: float, high: float) -> np.ndarray:
    return -np.minimum(ratio * A, np.clip(ratio, 1 - low, 1 + high) * A)


def pulls(ratio: np.ndarray, low: float, high: float) -> np.ndarray:
    return ~(((A > 0) & (ratio > 1 + high)) | ((A < 0) & (ratio < 1 - low)))


def test_sums_and_means_are_of_a_sequence_wherever_it_lies():
    values, sequence = jnp.array([1.0, 2.0, 3.0, 6.0, 0.0]), jnp.array([0, 2, 2, 1, -1])
    np.testing.assert_allclose(sequence_sum(values, sequence), [1, 5, 5, 6, 0])
    np.testing.assert_allclose(sequence_mean(values, sequence), [1, 2.5, 2.5, 6, 0])


def test_gspo_clips_the_ratio_of_a_sequence_and_shares_its_gradient():
    ratio = np.concatenate([np.full(len(each), np.exp(each.mean())) for each in SEQUENCES])
    losses, gradient = loss_and_gradient(objective(preset="gspo", clip_low=0.2, clip_high=0.15))
    np.testing.assert_allclose(losses, bound(ratio, 0.2, 0.15), rtol=1e-5)
    # exp(0.1) = 1.105 and exp(0.1) are within; exp(-0.8) = 0.449 with A < 0 is clipped.
    np.testing.assert_allclose(gradient, np.where(pulls(ratio, 0.2, 0.15), -ratio * A, 0.0), rtol=1e-5)
    assert list(gradient == 0) == [False] * 5 + [True] * 2


def test_a_step_of_several_updates_is_clipped_around_the_policy_at_its_start():
    """u = policy / start is held within the clip, and start / behavior weighs the token, cut at the cap."""
    made = objective(proximal="current", epochs=2, clip_low=0.2, clip_high=0.3, importance_cap=1.1)
    logprobs, laid = tokens()
    drift = np.array([0.2, 0.1, -0.3, 0.0, 0.25, 0.4, -0.1])
    start = jnp.asarray(np.append(BEHAVIOR + drift, [900.0, -900.0]), jnp.float32)
    laid = laid.replace(proximal_logprobs=start)

    def total(given):
        return policy_loss(made, given, laid, jnp.int32(5)).losses.sum()

    found = policy_loss(made, logprobs, laid, jnp.int32(5))
    u, weight = np.exp(LOGPROBS - BEHAVIOR - drift), np.minimum(np.exp(drift), 1.1)
    np.testing.assert_allclose(found.losses[:7], weight * bound(u, 0.2, 0.3), rtol=1e-5)
    wanted = np.where(pulls(u, 0.2, 0.3), -weight * u * A, 0.0)
    assert 0 < np.count_nonzero(wanted) < 7
    np.testing.assert_allclose(jax.grad(total)(logprobs), np.append(wanted, [0.0, 0.0]), rtol=1e-5)
    with pytest.raises(ValueError, match="several updates"):
        policy_loss(made, *tokens(), jnp.int32(5))


def test_gspo_on_policy_has_ratio_exactly_one():
    _, laid = tokens()
    losses = policy_loss(objective(preset="gspo"), laid.behavior_logprobs, laid, None).losses
    np.testing.assert_array_equal(losses[:7], (-A).astype(np.float32))


def test_cispo_holds_the_weight_and_never_the_gradient():
    made = objective(preset="cispo", clip_high=0.2)
    weight = np.minimum(np.exp(LOGPROBS - BEHAVIOR), 1.2)
    losses, gradient = loss_and_gradient(made)
    np.testing.assert_allclose(losses, -weight * A * LOGPROBS, rtol=1e-5)
    np.testing.assert_allclose(gradient, -weight * A, rtol=1e-5)
    logprobs, laid = tokens()
    found = policy_loss(made, logprobs, laid, None)
    np.testing.assert_array_equal(found.held_high[:7], np.exp(LOGPROBS - BEHAVIOR) > 1.2)
    assert not found.held_low.any()


def test_the_interpolated_proximal_by_hand():
    logprobs, laid = tokens()
    age = np.maximum(5 - VERSIONS, 1)
    wanted = BEHAVIOR + (age - 1) / age * (LOGPROBS - BEHAVIOR)
    found = interpolated_proximal(logprobs, laid.behavior_logprobs, laid.versions, jnp.int32(5), laid.mask)
    np.testing.assert_allclose(found[:7], wanted, rtol=1e-5)
    # At the trainer's own version, and one behind it, the policy that sampled is the one before.
    np.testing.assert_allclose(found[:2], BEHAVIOR[:2], rtol=1e-6)


@pytest.mark.parametrize("cap", [5.0, 1.1])
def test_a_decoupled_step_around_the_interpolated_proximal_by_hand(cap):
    age = np.maximum(5 - VERSIONS, 1)
    proximal = BEHAVIOR + (age - 1) / age * (LOGPROBS - BEHAVIOR)
    u, weight = np.exp(LOGPROBS - proximal), np.minimum(np.exp(proximal - BEHAVIOR), cap)
    losses, gradient = loss_and_gradient(objective(preset="decoupled", importance_cap=cap))
    np.testing.assert_allclose(losses, weight * bound(u, 0.2, 0.2), rtol=1e-5)
    np.testing.assert_allclose(gradient, np.where(pulls(u, 0.2, 0.2), -weight * u * A, 0.0), rtol=1e-5)


def test_an_interpolated_proximal_without_a_version_is_an_error():
    logprobs, laid = tokens()
    with pytest.raises(ValueError, match="version is needed"):
        policy_loss(objective(preset="decoupled"), logprobs, laid, None)


@pytest.mark.parametrize(("rule", "cap"), [("truncate", 1.2), ("mask", 1.3)])
def test_importance_of_a_sequence_is_the_product_over_its_tokens(rule, cap):
    product = np.concatenate([np.full(len(each), np.exp(each.sum())) for each in SEQUENCES])
    weight = (
        np.minimum(product, cap) if rule == "truncate" else np.where((product >= 0.5) & (product <= cap), product, 0)
    )
    made = objective(proximal="current", importance_rule=rule, importance_level="sequence", importance_cap=cap)
    losses, gradient = loss_and_gradient(made)
    np.testing.assert_allclose(losses, -weight * A, rtol=1e-5)
    np.testing.assert_allclose(gradient, -weight * A, rtol=1e-5)


def test_the_geometric_mask_drops_whole_sequences():
    logprobs, laid = tokens()
    for bounds, kept in (
        ({"geometric_low": 0.99, "geometric_high": 1.01}, [0, 0, 0]),
        ({"geometric_low": 0.5}, [1, 1, 0]),
        ({"geometric_low": 0.4, "geometric_high": 1.11}, [1, 1, 1]),
        ({"geometric_high": 1.05}, [0, 0, 1]),
    ):
        found = policy_loss(objective(**bounds), logprobs, laid, None)
        wanted = np.repeat(kept, LENGTHS).astype(bool)
        np.testing.assert_array_equal(found.kept, [*wanted, False, False])
        np.testing.assert_array_equal(np.asarray(found.losses[:7]) != 0, wanted)
        np.testing.assert_array_equal(np.asarray(found.importance[:7]) != 0, wanted)


def test_the_off_policy_mask_drops_what_was_bad_and_has_become_unlikely():
    logprobs, laid = tokens()
    # mean log(behavior / policy): -0.1 (A > 0), -0.1, and 0.8 with A < 0.
    assert policy_loss(objective(off_policy_delta=0.9), logprobs, laid, None).kept[:7].all()
    kept = policy_loss(objective(off_policy_delta=0.5), logprobs, laid, None).kept
    np.testing.assert_array_equal(kept[:7], [True] * 5 + [False] * 2)


EVERYTHING = [
    {"preset": "gspo", "clip_low": 0.2, "clip_high": 0.15},
    {"preset": "cispo"},
    {"preset": "decoupled"},
    {"preset": "decoupled", "importance_level": "sequence", "importance_rule": "mask"},
    {"geometric_low": 0.5, "off_policy_delta": 0.1},
]


@pytest.mark.parametrize("values", EVERYTHING)
def test_the_order_in_which_sequences_are_packed_changes_nothing(values):
    made, version = objective(**values), jnp.int32(5)
    sums = []
    for order in ([0, 1, 2], [2, 0, 1]):
        logprobs, laid = tokens(order)
        sums.append(float(made.loss(logprobs, laid, version)[0]))
    # And one micro-batch per sequence.
    parts = [float(made.loss(*_alone(number), version)[0]) for number in range(3)]
    assert sums == pytest.approx([sum(parts)] * 2, abs=1e-5)


def _alone(number: int) -> tuple[jax.Array, SampledTokens]:
    logprobs, laid = tokens()
    sequence = jnp.where(laid.sequence == number, 0, -1)
    return logprobs, laid.replace(sequence=sequence)


@pytest.mark.parametrize(
    "values", [*EVERYTHING, {"dual_clip": 3.0}, {"proximal": "current", "importance_rule": "mask"}]
)
def test_a_policy_that_has_moved_by_hundreds_of_nats_leaves_loss_and_gradient_finite(values):
    made, version = objective(**values), jnp.int32(9)
    _, laid = tokens()
    for drift in (300.0, -300.0):
        logprobs = laid.behavior_logprobs + drift
        (total, sums), gradient = jax.value_and_grad(made.loss, has_aux=True)(logprobs, laid, version)
        assert np.isfinite([float(total), *(float(value) for value in sums.values())]).all()
        assert np.isfinite(gradient).all()
        np.testing.assert_array_equal(gradient[7:], 0.0)

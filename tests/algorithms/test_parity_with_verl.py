"""Formulas beside those of verl: values, and gradients by the log-probs. Where the two differ on purpose, how."""

from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from components.algorithms import corrections, returns, values
from components.algorithms.advantages import STD_EPSILON, by_group
from components.algorithms.losses import KlEstimator, kl_divergence
from components.algorithms.shaping import kl_charges
from components.algorithms.terms import AdvantageKind
from tests.algorithms.peers import CLOSE, ROWS, Rows, assert_same, loss_and_gradient, make_rows, peer, tensor


def verl() -> Any:
    return peer("verl.trainer.ppo.core_algos")


def verl_loss(rows: Rows, name: str, aggregation: str, scale: int | None = None, **clips: float) -> Any:
    actor = peer("verl.workers.config").ActorConfig(
        strategy="fsdp", rollout_n=1, ppo_micro_batch_size_per_gpu=1, **clips
    )
    actor.global_batch_info["loss_scale_factor"] = scale
    logprobs = tensor(rows.logprobs).requires_grad_()
    advantages = tensor(rows.advantages)[:, None].expand(*rows.mask.shape)
    loss, _ = verl().get_policy_loss_fn(name)(
        tensor(rows.behavior), logprobs, advantages, tensor(rows.mask), loss_agg_mode=aggregation, config=actor
    )
    loss.backward()
    return loss.item(), logprobs.grad.numpy()[rows.mask]


NO_DUAL_CLIP = 1e6
"""verl always has one; this one never binds."""


@pytest.mark.parametrize(
    ("settings", "theirs"),
    [
        ({"preset": "grpo"}, ("vanilla", "token-mean", None, (0.2, 0.2, NO_DUAL_CLIP))),
        ({"preset": "grpo", "dual_clip": 1.5}, ("vanilla", "token-mean", None, (0.2, 0.2, 1.5))),
        (
            {"preset": "grpo", "aggregation": "sequence_mean", "clip_high": 0.28},
            ("vanilla", "seq-mean-token-mean", None, (0.2, 0.28, NO_DUAL_CLIP)),
        ),
        (
            {"preset": "dr_grpo", "constant": 40},
            ("vanilla", "seq-mean-token-sum-norm", 40, (0.2, 0.2, NO_DUAL_CLIP)),
        ),
        ({"preset": "gspo"}, ("gspo", "seq-mean-token-mean", None, (3e-4, 4e-4, NO_DUAL_CLIP))),
        ({"preset": "cispo", "clip_high": 0.3}, ("cispo", "token-mean", None, (1.0, 0.3, NO_DUAL_CLIP))),
    ],
    ids=lambda given: given["preset"] if isinstance(given, dict) else given[1],
)
def test_surrogates_and_aggregations_are_verls(settings, theirs):
    name, aggregation, scale, (low, high, dual) = theirs
    clips = {"clip_ratio_low": low, "clip_ratio_high": high, "clip_ratio_c": dual}
    assert_same(loss_and_gradient(ROWS, **settings), verl_loss(ROWS, name, aggregation, scale, **clips))


def test_a_log_ratio_beyond_20_is_held_in_value_by_both_and_pulls_here_alone():
    far = make_rows(spread=0.0)
    far.logprobs[0] = far.behavior[0] - 25.0
    far.advantages[0] = 1.0
    value, gradient = loss_and_gradient(far, preset="grpo")
    theirs, their_gradient = verl_loss(far, "vanilla", "token-mean", clip_ratio_c=NO_DUAL_CLIP)
    np.testing.assert_allclose(value, theirs, **CLOSE)
    first = np.asarray(far.sequence) == 0
    np.testing.assert_allclose(gradient[first], -np.exp(-20.0) / far.lengths.sum(), rtol=1e-5)
    assert not their_gradient[first].any()
    np.testing.assert_allclose(gradient[~first], their_gradient[~first], **CLOSE)


REWARDS = np.array([1.0, 0.0, 0.25, 2.0, -1.0, 0.5, 0.7, 0.7, 0.7, 3.0, 0.0, 1.0], np.float32)
GROUPS = np.array([0, 1, 0, 1, 2, 0, 3, 3, 3, 4, 2, 2])
SAME, ALONE = GROUPS == 3, GROUPS == 4


@pytest.mark.parametrize("kind", [AdvantageKind.GRPO, AdvantageKind.DR_GRPO, AdvantageKind.RLOO])
def test_advantages_of_groups_are_verls(kind):
    rewards = np.zeros(ROWS.mask.shape, np.float32)
    rewards[:, 0] = REWARDS
    if kind is AdvantageKind.RLOO:
        found, _ = verl().compute_rloo_outcome_advantage(tensor(rewards), tensor(ROWS.mask), GROUPS)
    else:
        scaled = kind is AdvantageKind.GRPO
        found, _ = verl().compute_grpo_outcome_advantage(
            tensor(rewards), tensor(ROWS.mask), GROUPS, norm_adv_by_std_in_grpo=scaled
        )
    theirs = found.numpy()[:, 0]
    ours = np.array(by_group(kind, REWARDS.tolist(), GROUPS.tolist()))
    np.testing.assert_allclose(ours[~(SAME | ALONE)], theirs[~(SAME | ALONE)], **CLOSE)
    # Nothing to compare with is worth nothing here; there a group of one has a mean of 0 (and a deviation of 1), and
    # the rounding of a mean is divided by epsilon.
    assert not ours[SAME | ALONE].any()
    np.testing.assert_allclose(theirs[ALONE], REWARDS[ALONE], rtol=1e-5)
    assert np.abs(theirs[SAME]).max() <= 6e-8 / STD_EPSILON


def test_gae_is_verls_and_its_normalisation_differs_in_epsilon():
    random = np.random.default_rng(5)
    rewards, critic = random.normal(size=ROWS.mask.shape), random.normal(size=ROWS.mask.shape)
    advantages, targets = verl().compute_gae_advantage_return(
        tensor(rewards), tensor(critic), tensor(ROWS.mask), gamma=0.97, lam=0.9
    )
    pairs = [
        returns.generalised_advantages(row, expected, mask, discount=0.97, decay=0.9)
        for row, expected, mask in zip(rewards.tolist(), critic.tolist(), ROWS.mask.tolist(), strict=True)
    ]
    ours, our_targets = (np.array(each)[ROWS.mask] for each in zip(*pairs, strict=True))
    np.testing.assert_allclose(our_targets, targets.numpy()[ROWS.mask], **CLOSE)
    deviation = ours.std(ddof=1)
    theirs = advantages.numpy()[ROWS.mask] * np.sqrt(deviation**2 + 1e-8)
    np.testing.assert_allclose(np.array(returns.normalised(ours.tolist())) * (deviation + STD_EPSILON), theirs, **CLOSE)


def test_reinforce_pp_is_verls_and_its_normalisation_differs_in_epsilon():
    rewards = np.random.default_rng(6).normal(size=ROWS.mask.shape)
    advantages, found = verl().compute_reinforce_plus_plus_outcome_advantage(
        tensor(rewards), tensor(ROWS.mask), config=SimpleNamespace(gamma=0.98)
    )
    ours = np.array(
        [
            returns.discounted_returns(row, mask, discount=0.98)
            for row, mask in zip(rewards.tolist(), ROWS.mask.tolist(), strict=True)
        ]
    )[ROWS.mask]
    np.testing.assert_allclose(ours, found.numpy()[ROWS.mask], **CLOSE)
    deviation = ours.std(ddof=1)
    theirs = advantages.numpy()[ROWS.mask] * np.sqrt(deviation**2 + 1e-8)
    np.testing.assert_allclose(np.array(returns.normalised(ours.tolist())) * (deviation + STD_EPSILON), theirs, **CLOSE)


@pytest.mark.parametrize("estimator", list(KlEstimator))
def test_kl_estimators_are_verls_in_the_loss_and_in_the_reward(estimator):
    logprobs = tensor(ROWS.logprobs).requires_grad_()
    theirs = verl().kl_penalty(logprobs, tensor(ROWS.reference), str(estimator))
    theirs[tensor(ROWS.mask).bool()].sum().backward()
    mask = jnp.ones(int(ROWS.mask.sum()), bool)

    def total(given: jax.Array) -> jax.Array:
        return kl_divergence(given, ROWS.flat(ROWS.reference), mask, estimator=estimator).sum()

    flat = ROWS.flat(ROWS.logprobs)
    found = kl_divergence(flat, ROWS.flat(ROWS.reference), mask, estimator=estimator)
    expected = theirs.detach().numpy()[ROWS.mask]
    np.testing.assert_allclose(found, expected, **CLOSE)
    np.testing.assert_allclose(jax.grad(total)(flat), logprobs.grad.numpy()[ROWS.mask], **CLOSE)
    charges = kl_charges(ROWS.logprobs[ROWS.mask], ROWS.reference[ROWS.mask], estimator)
    np.testing.assert_allclose(charges, expected, **CLOSE)


def test_k3_of_a_far_token_is_cut_at_10_by_verl_and_pulls_back_here():
    logprobs = tensor([-8.0]).requires_grad_()
    theirs = verl().kl_penalty(logprobs, tensor([-1.0]), "k3")
    theirs.sum().backward()
    assert (theirs.item(), logprobs.grad.item()) == (10.0, 0.0)
    value, gradient = jax.value_and_grad(
        lambda given: kl_divergence(given, jnp.array([-1.0]), jnp.array([True]), estimator=KlEstimator.K3).sum()
    )(jnp.array([-8.0]))
    np.testing.assert_allclose([value, gradient[0]], [np.exp(7.0) - 8.0, 1 - np.exp(7.0)], rtol=1e-5)


def test_the_value_loss_is_verls():
    random = np.random.default_rng(7)
    old, targets = random.normal(size=ROWS.mask.shape), random.normal(size=ROWS.mask.shape)
    now = old + random.normal(0.0, 0.5, ROWS.mask.shape)
    predicted = tensor(now).requires_grad_()
    loss, clipped = verl().compute_value_loss(predicted, tensor(targets), tensor(old), tensor(ROWS.mask), 0.2)
    loss.backward()
    mask = jnp.ones(int(ROWS.mask.sum()), bool)

    def mean(given: jax.Array) -> tuple[jax.Array, jax.Array]:
        found = values.clipped_value_loss(given, ROWS.flat(old), ROWS.flat(targets), mask, clip=0.2)
        return found[0].mean(), found[1].mean()

    (value, share), gradient = jax.value_and_grad(mean, has_aux=True)(ROWS.flat(now))
    assert_same((float(value), np.asarray(gradient)), (loss.item(), predicted.grad.numpy()[ROWS.mask]))
    np.testing.assert_allclose(share, clipped.item(), rtol=1e-5)


@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize("rule", ["truncate", "mask"])
def test_importance_weights_are_verls(level, rule):
    helper = peer("verl.trainer.ppo.rollout_corr_helper")
    bound = "1.3" if rule == "truncate" else "0.7_1.3"
    found, _ = helper.compute_rollout_correction_weights(
        tensor(ROWS.logprobs - ROWS.behavior), tensor(ROWS.mask), rollout_is=level, rollout_is_threshold=bound
    )
    flat = ROWS.flat(ROWS.logprobs), ROWS.flat(ROWS.behavior)
    if level == "token":
        ratio = corrections.importance_ratio(*flat, jnp.ones(len(flat[0]), bool))
    else:
        ratio = corrections.sequence_importance_ratio(*flat, ROWS.sequence)
    if rule == "truncate":
        weights = corrections.truncated_importance_weight(ratio, cap=1.3)
    else:
        weights = corrections.masked_importance_weight(ratio, floor=0.7, cap=1.3)
    np.testing.assert_allclose(weights, found.numpy()[ROWS.mask], **CLOSE)


def test_the_geometric_mask_is_verls():
    helper = peer("verl.trainer.ppo.rollout_corr_helper")
    # Theirs bounds behavior / policy, and ours policy / behavior.
    found, _ = helper.compute_rollout_rejection_mask(
        tensor(ROWS.logprobs - ROWS.behavior), tensor(ROWS.mask), "seq_mean_k1", f"{1 / 1.1}_{1 / 0.9}"
    )
    flat = ROWS.flat(ROWS.logprobs), ROWS.flat(ROWS.behavior)
    kept = corrections.geometric_keep(*flat, ROWS.sequence, low=0.9, high=1.1)
    np.testing.assert_array_equal(kept, found.numpy()[ROWS.mask] > 0)
    assert 0 < int(kept.sum()) < len(kept)

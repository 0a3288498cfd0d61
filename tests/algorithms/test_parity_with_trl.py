"""Formulas beside those of TRL: values, and gradients by the log-probs. Where the two differ on purpose, how.

Where a trainer's method holds a formula, it is called with an object that has the settings which it reads.
"""

from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from components.algorithms.preference import PreferenceLoss, dpo_losses, odds_ratio_losses, pair_means, pair_sums
from components.algorithms.shaping import overlong_penalty
from components.model import head
from components.model.decoder import logits
from components.model.divergence import Side, token_divergences
from tests.algorithms.peers import CLOSE, ROWS, Rows, assert_same, loss_and_gradient, peer, tensor
from tests.training import tiny


def trainer(**settings: Any) -> SimpleNamespace:
    """What the methods of TRL's trainers read of themselves, on one process."""
    accelerator = SimpleNamespace(
        device="cpu",
        num_processes=1,
        sync_gradients=True,
        gather=lambda each: each,
        gather_for_metrics=lambda each: each,
        reduce=lambda each, reduction: each,
    )
    return SimpleNamespace(
        accelerator=accelerator,
        model=SimpleNamespace(training=True),
        aux_loss_enabled=False,
        current_gradient_accumulation_steps=1,
        _metrics=defaultdict(lambda: defaultdict(list)),
        **settings,
    )


def trl_loss(rows: Rows, loss_type: str, *, level: str = "token", delta: float | None = None, **settings: Any) -> Any:
    method = peer("trl.trainer.grpo_trainer").GRPOTrainer._compute_loss
    args = SimpleNamespace(delta=delta, use_bias_correction_kl=True, steps_per_generation=1)
    logprobs = tensor(rows.logprobs).requires_grad_()
    values = {"beta": 0.0, "epsilon_low": 0.2, "epsilon_high": 0.2, "off_policy_mask_threshold": None} | settings
    of = trainer(
        args=args,
        loss_type=loss_type,
        importance_sampling_level=level,
        top_entropy_quantile=1.0,
        use_vllm=False,
        max_completion_length=40,
        _entropy_bonus_enabled=False,
        _get_per_token_logps_and_entropies=lambda *_, **__: (logprobs, tensor(np.zeros(rows.mask.shape)), None),
        get_off_policy_mask=peer("trl.trainer.grpo_trainer").GRPOTrainer.get_off_policy_mask,
        **values,
    )
    nothing = tensor(np.zeros((len(rows.mask), 0)))
    inputs = {
        "prompt_ids": nothing,
        "prompt_mask": nothing,
        "completion_ids": tensor(np.zeros(rows.mask.shape)),
        "completion_mask": tensor(rows.mask),
        "advantages": tensor(rows.advantages),
        "old_per_token_logps": tensor(rows.behavior),
        "ref_per_token_logps": tensor(rows.reference),
        "num_items_in_batch": tensor(rows.mask.sum()),
    }
    loss = method(of, None, inputs)
    loss.backward()
    return loss.item(), logprobs.grad.numpy()[rows.mask]


@pytest.mark.parametrize(
    ("settings", "theirs"),
    [
        ({"preset": "grpo"}, {"loss_type": "dapo"}),
        ({"preset": "grpo", "dual_clip": 1.5}, {"loss_type": "dapo", "delta": 1.5}),
        ({"preset": "grpo", "aggregation": "sequence_mean"}, {"loss_type": "grpo"}),
        ({"preset": "dr_grpo", "constant": 40}, {"loss_type": "dr_grpo"}),
        (
            {"preset": "grpo", "kl_coefficient": 0.3, "kl_estimator": "k3"},
            {"loss_type": "dapo", "beta": 0.3},
        ),
        ({"preset": "grpo", "off_policy_delta": 0.05}, {"loss_type": "dapo", "off_policy_mask_threshold": 0.05}),
        # The cap is named itself there, and by its distance to 1 here.
        ({"preset": "cispo", "clip_high": 0.3}, {"loss_type": "cispo", "epsilon_high": 1.3}),
    ],
    ids=lambda given: "-".join(map(str, given.values())),
)
def test_policy_losses_are_trls(settings, theirs):
    assert_same(loss_and_gradient(ROWS, **settings), trl_loss(ROWS, **theirs))


def test_gspo_is_trls():
    ours = loss_and_gradient(ROWS, preset="gspo", clip_low=0.1, clip_high=0.1)
    theirs = trl_loss(ROWS, "grpo", level="sequence", epsilon_low=0.1, epsilon_high=0.1)
    # There a loss is of the sequence, here of each of its tokens: what pulls on a token is the same.
    assert_same(ours, theirs)


def test_the_overlong_penalty_is_trls():
    penalty = peer("trl.rewards").get_soft_overlong_punishment(max_completion_len=20, soft_punish_cache=8)
    lengths = range(1, 26)
    theirs = penalty([[0] * length for length in lengths])
    np.testing.assert_allclose([overlong_penalty(length, limit=20, buffer=8) for length in lengths], theirs)


PAIRS = len(ROWS.mask) // 2


def pairs_flat(rows: np.ndarray) -> tuple[jax.Array, jax.Array]:
    """Six pairs, chosen beside rejected, where TRL has all chosen ones first: values and sequence numbers."""
    order = np.arange(2 * PAIRS).reshape(2, PAIRS).T.reshape(-1)
    mask = ROWS.mask[order]
    return jnp.asarray(rows[order][mask], jnp.float32), jnp.asarray(np.nonzero(mask)[0], jnp.int32)


def trl_dpo(loss_type: str, beta: float, label_smoothing: float = 0.0) -> Any:
    method = peer("trl.trainer.dpo_trainer").DPOTrainer._compute_loss
    logprobs = tensor(ROWS.logprobs * ROWS.mask).requires_grad_()
    shape = (len(ROWS.mask), ROWS.mask.shape[1])
    said = SimpleNamespace(
        log_probs=logprobs,
        entropy=tensor(np.zeros(shape)),
        mean_logits=tensor(np.zeros(shape)),
        is_top1=tensor(np.zeros(shape)).bool(),
    )
    sums = (ROWS.reference * ROWS.mask).sum(axis=1)
    of = trainer(
        ld_alpha=None,
        precompute_ref_logps=True,
        f_divergence_type="reverse_kl",
        loss_types=[loss_type],
        loss_weights=[1.0],
        beta=beta,
        label_smoothing=label_smoothing,
        use_weighting=False,
        _total_train_tokens=0,
        _tp_size=1,
    )
    # Of the first token there is no log-prob.
    mask = np.pad(ROWS.mask, ((0, 0), (1, 0)))
    inputs = {
        "input_ids": tensor(np.zeros(mask.shape)),
        "attention_mask": tensor(np.ones(mask.shape)),
        "completion_mask": tensor(mask).long(),
        "ref_chosen_logps": tensor(sums[:PAIRS]),
        "ref_rejected_logps": tensor(sums[PAIRS:]),
    }
    loss = method(of, lambda **_: said, inputs, False)
    loss.backward()
    return loss.item(), logprobs.grad.numpy(), of


def our_dpo(given: np.ndarray, **settings: Any) -> tuple[float, np.ndarray]:
    logprobs, sequence = pairs_flat(given)
    reference, _ = pairs_flat(ROWS.reference)

    def loss(logprobs: jax.Array) -> jax.Array:
        found = pair_sums(logprobs - reference, sequence)
        losses = dpo_losses(found.margin, **settings)
        return jnp.sum(jnp.where(found.there, losses, 0.0)) / PAIRS

    value, gradient = jax.value_and_grad(loss)(logprobs)
    return float(value), np.asarray(gradient)


def test_dpo_is_trls():
    value, gradient, of = trl_dpo("sigmoid", 0.5)
    assert_same(our_dpo(ROWS.logprobs, beta=0.5), (value, np.asarray(pairs_flat(gradient)[0])))
    ratios = pair_sums(*(each for each in pairs_flat(ROWS.logprobs - ROWS.reference)))
    metrics = of._metrics["train"]
    np.testing.assert_allclose(0.5 * ratios.margin[:PAIRS].mean(), metrics["rewards/margins"], **CLOSE)
    np.testing.assert_allclose((ratios.margin[:PAIRS] > 0).mean(), metrics["rewards/accuracies"], **CLOSE)


def test_smoothed_labels_are_conservative_here_and_unbiased_in_trls_robust_loss():
    """Theirs is ((1 - s) l(m) - s l(-m)) / (1 - 2 s), after which the noise of labels drops out in the mean."""
    value, _, _ = trl_dpo("robust", 0.5, label_smoothing=0.1)
    right = our_dpo(ROWS.logprobs, beta=0.5)[0]
    ours = our_dpo(ROWS.logprobs, beta=0.5, label_smoothing=0.1)[0]
    wrong = (ours - 0.9 * right) / 0.1
    np.testing.assert_allclose(value, (0.9 * right - 0.1 * wrong) / 0.8, rtol=1e-4)


def test_ipo_sums_over_an_answer_where_trl_averages():
    """Equation 17 has log-probs of whole answers; with answers of one length n, TRL's margin is 1 / n of ours."""
    value, _, _ = trl_dpo("ipo", 0.5)
    ratios = pair_means(*pairs_flat(ROWS.logprobs - ROWS.reference))
    np.testing.assert_allclose(value, jnp.square(ratios.margin[:PAIRS] - 1.0).mean(), **CLOSE)
    summed = pair_sums(*pairs_flat(ROWS.logprobs - ROWS.reference)).margin[:PAIRS]
    ours = our_dpo(ROWS.logprobs, beta=0.5, loss=PreferenceLoss.IPO)[0]
    np.testing.assert_allclose(ours, jnp.square(summed - 1.0).mean(), **CLOSE)


@pytest.mark.filterwarnings("ignore:You are importing from 'trl.experimental'")
def test_orpos_odds_ratio_is_trls():
    method = peer("trl.experimental.orpo.orpo_trainer").ORPOTrainer.odds_ratio_loss
    means = pair_means(*pairs_flat(ROWS.logprobs - 0.5))
    chosen, rejected = (tensor(each[:PAIRS]).requires_grad_() for each in means[:2])
    losses, *_ = method(trainer(beta=0.1), chosen, rejected)
    (-losses.sum()).backward()
    # `losses` is what they take off the likelihood's loss.
    np.testing.assert_allclose(0.1 * odds_ratio_losses(means)[:PAIRS], -losses.detach().numpy(), **CLOSE)
    gradient = jax.grad(lambda given: 0.1 * odds_ratio_losses(means._replace(chosen=given))[:PAIRS].sum())(means.chosen)
    np.testing.assert_allclose(gradient[:PAIRS], chosen.grad.numpy(), **CLOSE)


@pytest.mark.filterwarnings("ignore:You are importing from 'trl.experimental'")
def test_distillations_divergences_are_trls_before_the_square_of_the_temperature():
    method = peer("trl.experimental.gkd.gkd_trainer").GKDTrainer.generalized_jsd_loss
    base, other = tiny.base(), jax.tree.map(lambda leaf: 1.5 * leaf, tiny.base())
    hidden = [jax.random.normal(jax.random.key(seed), (7, tiny.ARCHITECTURE.d_model)) for seed in (1, 2)]
    policy, teacher = (Side(tiny.ARCHITECTURE, *each) for each in zip((base, other), hidden, strict=True))
    found = token_divergences(policy, teacher, temperature=1.5)
    spoken = [tensor(logits(tiny.ARCHITECTURE, side.base, side.hidden)) for side in (policy, teacher)]
    for beta, ours in zip((0, 1), found, strict=True):
        theirs = method(*spoken, beta=beta, temperature=1.5, reduction="sum").item()
        np.testing.assert_allclose(ours.sum(), theirs, rtol=1e-4)


def test_log_probs_and_entropies_are_trls():
    module = peer("trl.trainer.utils")
    base = tiny.base()
    hidden = jax.random.normal(jax.random.key(3), (9, tiny.ARCHITECTURE.d_model))
    targets = jnp.arange(9) * 2
    found, entropy = head.token_logprobs(tiny.ARCHITECTURE, base, hidden, targets, temperature=0.7)
    spoken = tensor(logits(tiny.ARCHITECTURE, base, hidden)) / 0.7
    index = tensor(targets).long()
    np.testing.assert_allclose(found, module.selective_log_softmax(spoken, index).numpy(), **CLOSE)
    np.testing.assert_allclose(entropy, module.entropy_from_logits(spoken).numpy(), **CLOSE)

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from components.algorithms.objective import Objective, ObjectiveConfig, mean_statistics
from components.algorithms.sampled import SampledTokens
from components.algorithms.terms import Aggregation
from components.config import load


def objective(**values) -> Objective:
    return Objective.from_config(load(ObjectiveConfig, values, where="objective"))


def sampled(
    made: Objective,
    behavior: list[float],
    advantages: list[float],
    lengths: list[int],
    padding: int = 0,
    versions: tuple[int, ...] | None = None,
):
    """Sequences laid end to end, then padding with nonsense in it."""
    sequence = [number for number, length in enumerate(lengths) for _ in range(length)]
    per_token = [advantages[number] for number in sequence]
    weights = [made.weight(lengths[number]) for number in sequence]
    return SampledTokens(
        behavior_logprobs=jnp.array(behavior + [-300.0] * padding, jnp.float32),
        advantages=jnp.array(per_token + [7.0] * padding, jnp.float32),
        weights=jnp.array(weights + [1.0] * padding, jnp.float32),
        sequence=jnp.array(sequence + [-1] * padding, jnp.int32),
        versions=jnp.array([*(versions or [0] * len(sequence)), *[-1] * padding], jnp.int32),
    )


# Two sequences of 1 and 3 tokens with advantages 2 and -1, on-policy: token losses -2 | 1 1 1.
@pytest.mark.parametrize(
    ("values", "loss"),
    [
        ({"aggregation": "token_mean"}, 1 / 4),
        ({"aggregation": "sequence_mean"}, (-2 + 1) / 2),
        ({"aggregation": "constant", "constant": 10}, (-2 / 10 + 3 / 10) / 2),
    ],
)
def test_each_aggregation_by_hand(values, loss):
    made = objective(**values)
    lengths = [1, 3]
    tokens = sampled(made, [-1.0] * 4, [2.0, -1.0], lengths, padding=2)
    total, _ = made.loss(jnp.array([-1.0] * 4 + [0.0] * 2), tokens)
    denominator = sum(made.share(length) for length in lengths)
    assert float(total) / denominator == pytest.approx(loss, rel=1e-6)


def test_the_kl_term_is_added_with_its_coefficient():
    made = objective(kl_coefficient=0.04, kl_estimator="k2")
    tokens = sampled(made, [-1.0, -1.0], [1.0], [2])
    beside = tokens.replace(reference_logprobs=jnp.array([-1.5, -1.0]))
    total, statistics = made.loss(jnp.array([-1.0, -1.0]), beside)
    assert float(total) == pytest.approx(-2 + 0.04 * 0.125, rel=1e-6)
    assert float(statistics["reference_kl"]) == pytest.approx(np.exp(-0.5) - 0.5, rel=1e-4)


def test_a_kl_term_without_reference_is_an_error():
    made = objective(kl_coefficient=0.04)
    with pytest.raises(ValueError, match="kl_coefficient"):
        made.loss(jnp.array([-1.0]), sampled(made, [-1.0], [1.0], [1]))


@pytest.mark.parametrize("aggregation", list(Aggregation))
def test_a_batch_without_tokens_has_loss_and_gradient_zero(aggregation):
    constant = {"constant": 8} if aggregation is Aggregation.CONSTANT else {}
    made = objective(aggregation=aggregation.value, kl_coefficient=0.1, **constant)
    tokens = sampled(made, [], [], [], padding=4).replace(reference_logprobs=jnp.zeros(4))

    def total(logprobs: jax.Array) -> jax.Array:
        return made.loss(logprobs, tokens)[0]

    loss, gradient = jax.value_and_grad(total)(jnp.array([0.0, -500.0, 3.0, -1.0]))
    assert loss == 0.0
    np.testing.assert_array_equal(gradient, np.zeros(4))
    statistics = made.loss(jnp.zeros(4), tokens)[1]
    numbers = mean_statistics({key: float(value) for key, value in statistics.items()}, 0)
    assert numbers == {"loss": 0.0, "trained_tokens": 0.0}


def test_statistics_are_sums_that_end_as_means_per_token():
    made = objective()
    tokens = sampled(made, [0.0, 0.0], [1.0], [2], padding=1)
    logprobs = jnp.array([np.log(1.5), np.log(0.5), 0.0], jnp.float32)
    _, statistics = made.loss(logprobs, tokens)
    means = mean_statistics({key: float(value) for key, value in statistics.items()}, denominator=2)
    assert means["trained_tokens"] == 2
    assert means["loss"] == pytest.approx((-1.2 - 0.5) / 2, rel=1e-6)
    assert means["importance_weight"] == pytest.approx(1.0)
    assert means["importance_weight_max"] == pytest.approx(1.5)
    assert means["clipped"] == 0.5
    assert means["effective_sample_size"] == pytest.approx(2.0**2 / (2 * (1.5**2 + 0.5**2)))
    # KL(behavior || policy) by k3 with d = -log(ratio): ratio - log(ratio) - 1.
    assert means["behavior_kl"] == pytest.approx((1.5 + 0.5 - np.log(0.75) - 2) / 2, rel=1e-4)


# Two sequences, the first sampled by versions 3, 4 and 5 while the trainer is at 5. Policy / behavior per token:
RATIOS = np.array([0.25, 1.5, 1.0, 8.0, 0.8, 3.0])
VERSIONS = (3, 4, 5, 2, 5, 4)


def mixed(made: Objective):
    """(log-probs of the policy, tokens) with those ratios; advantages 2 and -1, lengths 3 and 3."""
    behavior = [-1.0, -2.0, -0.5, -3.0, -1.5, -2.5]
    logprobs = jnp.array([*(behavior + np.log(RATIOS)), 0.0], jnp.float32)
    return logprobs, sampled(made, behavior, [2.0, -1.0], [3, 3], padding=1, versions=VERSIONS)


@pytest.mark.parametrize(
    ("values", "weights"),
    [
        ({}, [0.25, 1.5, 1.0, 2.0, 0.8, 2.0]),
        ({"importance_cap": 5.0}, [0.25, 1.5, 1.0, 5.0, 0.8, 3.0]),
        ({"importance_rule": "mask"}, [0.0, 1.5, 1.0, 0.0, 0.8, 3.0]),
    ],
)
def test_a_decoupled_loss_weighs_each_token_by_its_own_version(values, weights):
    made = objective(proximal="current", **values)
    logprobs, tokens = mixed(made)
    (total, statistics), gradient = jax.value_and_grad(made.loss, has_aux=True)(logprobs, tokens)
    wanted = -np.array(weights) * np.array([2.0, 2.0, 2.0, -1.0, -1.0, -1.0])
    assert float(total) == pytest.approx(wanted.sum(), rel=1e-5)
    np.testing.assert_allclose(gradient, [*wanted, 0.0], rtol=1e-5)
    means = mean_statistics({key: float(value) for key, value in statistics.items()}, 6)
    assert means["importance_weight"] == pytest.approx(np.mean(weights), rel=1e-5)
    assert means["importance_weight_max"] == pytest.approx(max(weights), rel=1e-5)
    assert means["clipped"] == pytest.approx(np.mean(np.abs(RATIOS - weights) > 1e-3))
    effective = sum(weights) ** 2 / (6 * sum(weight**2 for weight in weights))
    assert means["effective_sample_size"] == pytest.approx(effective, rel=1e-5)


def test_mismatch_is_measured_at_the_trainers_own_version_only():
    made = objective()
    logprobs, tokens = mixed(made)
    _, sums = made.loss(logprobs, tokens, jnp.int32(5))
    means = mean_statistics({key: float(value) for key, value in sums.items()}, 6)
    # Tokens 2 and 4, by k3: ratio - log(ratio) - 1.
    assert means["mismatch_kl"] == pytest.approx((0.8 - np.log(0.8) - 1) / 2, rel=1e-4)
    assert means["same_version_share"] == pytest.approx(2 / 6)
    assert means["behavior_kl"] == pytest.approx(np.mean(RATIOS - np.log(RATIOS) - 1), rel=1e-4)
    _, sums = made.loss(logprobs, tokens, jnp.int32(9))
    means = mean_statistics({key: float(value) for key, value in sums.items()}, 6)
    assert means["same_version_share"] == 0.0
    assert "mismatch_kl" not in means


def test_a_step_whose_weights_are_all_masked_moves_nothing_and_has_finite_numbers():
    made = objective(proximal="current", importance_rule="mask")
    tokens = sampled(made, [-1.0, -300.0], [1.0], [2], padding=1)
    logprobs = jnp.array([-300.0, -1.0, 500.0])
    (total, sums), gradient = jax.value_and_grad(made.loss, has_aux=True)(logprobs, tokens, jnp.int32(0))
    assert float(total) == 0.0
    np.testing.assert_array_equal(gradient, np.zeros(3))
    means = mean_statistics({key: float(value) for key, value in sums.items()}, 2)
    assert (means["effective_sample_size"], means["importance_weight_max"], means["clipped"]) == (0.0, 0.0, 1.0)
    assert np.isfinite(list(means.values())).all()


def test_zero_advantage_has_no_gradient_unless_there_is_a_kl_term():
    assert not objective().has_gradient(0.0)
    assert objective().has_gradient(-0.1)
    assert objective(kl_coefficient=0.01).has_gradient(0.0)


def test_k3_in_the_loss_is_weighted_by_the_ratio_and_then_has_the_gradient_of_the_kl():
    made = objective(kl_coefficient=0.5, kl_estimator="k3")
    logprobs, reference = jnp.array([-1.0, -2.0]), jnp.array([-1.5, -1.2])

    def total(logprobs: jax.Array, behavior: list[float]) -> jax.Array:
        tokens = sampled(made, behavior, [0.0], [2]).replace(reference_logprobs=reference)
        return made.loss(logprobs, tokens)[0]

    distance = np.asarray(logprobs - reference)
    k3 = np.exp(-distance) + distance - 1
    value, gradient = jax.value_and_grad(total)(logprobs, [-1.0, -2.0])
    assert float(value) == pytest.approx(0.5 * k3.sum(), rel=1e-5)
    # d/dlogprob of ratio * k3 at ratio 1 is k3 + 1 - exp(-d) = d: the score function's weight in the KL's gradient.
    np.testing.assert_allclose(gradient, 0.5 * distance, rtol=1e-5)
    halved = total(logprobs, [float(-1.0 + np.log(2)), float(-2.0 + np.log(2))])
    assert float(halved) == pytest.approx(0.5 * 0.5 * k3.sum(), rel=1e-5)


def test_the_entropy_bonus_is_taken_off_the_loss_and_the_parts_add_up():
    made = objective(entropy_coefficient=0.1, kl_coefficient=0.04)
    tokens = sampled(made, [-1.0, -2.0, -1.0], [1.0, -2.0], [1, 2], padding=1)
    logprobs, entropies = jnp.array([-1.0, -2.0, -1.0, 0.0]), jnp.array([0.5, 0.7, 0.9, jnp.nan])
    tokens = tokens.replace(reference_logprobs=logprobs - 0.5)
    total, sums = made.loss(logprobs, tokens, None, entropies)
    parts = {"policy_loss": -1.0 + 2.0 + 2.0, "kl_loss": 0.04 * 3 * 0.125, "entropy_loss": -0.1 * 2.1}
    assert {key: float(sums[key]) for key in parts} == pytest.approx(parts, rel=1e-5)
    assert float(total) == pytest.approx(sum(parts.values()), rel=1e-5)
    means = mean_statistics({key: float(value) for key, value in sums.items()}, 3)
    assert means["entropy_loss"] == pytest.approx(-0.07, rel=1e-5)
    assert made.has_gradient(0.0)
    with pytest.raises(ValueError, match="entropy_coefficient"):
        made.loss(logprobs, tokens)

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from components.algorithms.advantages import AdvantageKind
from components.algorithms.corrections import ImportanceRule, Proximal
from components.algorithms.losses import KlEstimator
from components.algorithms.objective import (
    Aggregation,
    Objective,
    ObjectiveConfig,
    SampledTokens,
    mean_statistics,
)
from components.config import dump, load
from components.errors import ConfigError


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
    total, _ = made.loss(jnp.array([-1.0] * 4 + [0.0] * 2), None, tokens)
    denominator = sum(made.share(length) for length in lengths)
    assert float(total) / denominator == pytest.approx(loss, rel=1e-6)


def test_the_kl_term_is_added_with_its_coefficient():
    made = objective(kl_coefficient=0.04, kl_estimator="k2")
    tokens = sampled(made, [-1.0, -1.0], [1.0], [2])
    total, statistics = made.loss(jnp.array([-1.0, -1.0]), jnp.array([-1.5, -1.0]), tokens)
    assert float(total) == pytest.approx(-2 + 0.04 * 0.125, rel=1e-6)
    assert float(statistics["reference_kl"]) == pytest.approx(np.exp(-0.5) - 0.5, rel=1e-4)


def test_a_kl_term_without_reference_is_an_error():
    made = objective(kl_coefficient=0.04)
    with pytest.raises(ValueError, match="kl_coefficient"):
        made.loss(jnp.array([-1.0]), None, sampled(made, [-1.0], [1.0], [1]))


@pytest.mark.parametrize("aggregation", list(Aggregation))
def test_a_batch_without_tokens_has_loss_and_gradient_zero(aggregation):
    constant = {"constant": 8} if aggregation is Aggregation.CONSTANT else {}
    made = objective(aggregation=aggregation.value, kl_coefficient=0.1, **constant)
    tokens = sampled(made, [], [], [], padding=4)

    def total(logprobs: jax.Array) -> jax.Array:
        return made.loss(logprobs, jnp.zeros(4), tokens)[0]

    loss, gradient = jax.value_and_grad(total)(jnp.array([0.0, -500.0, 3.0, -1.0]))
    assert loss == 0.0
    np.testing.assert_array_equal(gradient, np.zeros(4))
    statistics = made.loss(jnp.zeros(4), jnp.zeros(4), tokens)[1]
    numbers = mean_statistics({key: float(value) for key, value in statistics.items()}, 0)
    assert numbers == {"loss": 0.0, "trained_tokens": 0.0}


def test_statistics_are_sums_that_end_as_means_per_token():
    made = objective()
    tokens = sampled(made, [0.0, 0.0], [1.0], [2], padding=1)
    logprobs = jnp.array([np.log(1.5), np.log(0.5), 0.0], jnp.float32)
    _, statistics = made.loss(logprobs, None, tokens)
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
    (total, statistics), gradient = jax.value_and_grad(made.loss, has_aux=True)(logprobs, None, tokens)
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
    _, sums = made.loss(logprobs, None, tokens, jnp.int32(5))
    means = mean_statistics({key: float(value) for key, value in sums.items()}, 6)
    # Tokens 2 and 4, by k3: ratio - log(ratio) - 1.
    assert means["mismatch_kl"] == pytest.approx((0.8 - np.log(0.8) - 1) / 2, rel=1e-4)
    assert means["same_version_share"] == pytest.approx(2 / 6)
    assert means["behavior_kl"] == pytest.approx(np.mean(RATIOS - np.log(RATIOS) - 1), rel=1e-4)
    _, sums = made.loss(logprobs, None, tokens, jnp.int32(9))
    means = mean_statistics({key: float(value) for key, value in sums.items()}, 6)
    assert means["same_version_share"] == 0.0
    assert "mismatch_kl" not in means


def test_a_step_whose_weights_are_all_masked_moves_nothing_and_has_finite_numbers():
    made = objective(proximal="current", importance_rule="mask")
    tokens = sampled(made, [-1.0, -300.0], [1.0], [2], padding=1)
    logprobs = jnp.array([-300.0, -1.0, 500.0])
    (total, sums), gradient = jax.value_and_grad(made.loss, has_aux=True)(logprobs, None, tokens, jnp.int32(0))
    assert float(total) == 0.0
    np.testing.assert_array_equal(gradient, np.zeros(3))
    means = mean_statistics({key: float(value) for key, value in sums.items()}, 2)
    assert (means["effective_sample_size"], means["importance_weight_max"], means["clipped"]) == (0.0, 0.0, 1.0)
    assert np.isfinite(list(means.values())).all()


def test_zero_advantage_has_no_gradient_unless_there_is_a_kl_term():
    assert not objective().has_gradient(0.0)
    assert objective().has_gradient(-0.1)
    assert objective(kl_coefficient=0.01).has_gradient(0.0)


def test_every_field_of_the_preset_can_be_set():
    assert objective() == Objective(
        advantage=AdvantageKind.GRPO,
        clip_low=0.2,
        clip_high=0.2,
        dual_clip=None,
        aggregation=Aggregation.TOKEN_MEAN,
        constant=None,
        kl_coefficient=0.0,
        kl_estimator=KlEstimator.K2,
        proximal=Proximal.BEHAVIOR,
        importance_rule=None,
        importance_floor=None,
        importance_cap=None,
    )
    values = {
        "advantage": "rloo",
        "clip_low": 0.1,
        "clip_high": 0.28,
        "dual_clip": 3.0,
        "aggregation": "constant",
        "constant": 64,
        "kl_coefficient": 0.04,
        "kl_estimator": "k3",
    }
    assert {key: getattr(objective(**values), key) for key in values} == values
    values = {"proximal": "current", "importance_rule": "mask", "importance_floor": 0.25, "importance_cap": 3.0}
    assert {key: getattr(objective(**values), key) for key in values} == values


@pytest.mark.parametrize(
    ("values", "rule", "floor", "cap"),
    [
        ({}, ImportanceRule.TRUNCATE, None, 2.0),
        ({"importance_rule": "mask"}, ImportanceRule.MASK, 0.5, 5.0),
        ({"importance_rule": "mask", "importance_floor": 0.0}, ImportanceRule.MASK, 0.0, 5.0),
    ],
)
def test_each_rule_has_its_own_bounds(values, rule, floor, cap):
    made = objective(proximal="current", **values)
    assert (made.importance_rule, made.importance_floor, made.importance_cap) == (rule, floor, cap)


def test_the_config_survives_being_written_and_read():
    config = load(ObjectiveConfig, {"clip_high": 0.28})
    assert load(ObjectiveConfig, dump(config)) == config


@pytest.mark.parametrize(
    ("values", "key"),
    [
        ({"kl_estimator": "k3"}, "kl_estimator"),
        ({"kl_estimator": "k3", "kl_coefficient": 0.0}, "kl_estimator"),
        ({"kl_estimator": "k1", "kl_coefficient": 0.1}, "kl_estimator"),
        ({"constant": 8}, "constant"),
        ({"aggregation": "constant"}, "constant"),
        ({"aggregation": "sum"}, "aggregation"),
        ({"clip_low": -0.1}, "clip_low"),
        ({"clip": 0.2}, "clip"),
        ({"importance_cap": 2.0}, "importance_cap"),
        ({"importance_floor": 0.5}, "importance_floor"),
        ({"importance_rule": "mask"}, "importance_rule"),
        ({"proximal": "current", "clip_low": 0.2}, "clip_low"),
        ({"proximal": "current", "clip_high": 0.2}, "clip_high"),
        ({"proximal": "current", "dual_clip": 3.0}, "dual_clip"),
        ({"proximal": "current", "importance_floor": 0.5}, "importance_floor"),
        ({"proximal": "current", "importance_rule": "mask", "importance_floor": 5.0}, "importance_floor"),
        ({"proximal": "current", "importance_cap": 0.0}, "importance_cap"),
        ({"proximal": "latest"}, "proximal"),
    ],
)
def test_a_key_that_cannot_work_or_would_change_nothing_is_named(values, key):
    with pytest.raises(ConfigError) as caught:
        objective(**values)
    assert [problem.where for problem in caught.value.problems] == [f"objective.{key}"]


def test_the_description_holds_every_constant():
    text = objective(
        clip_low=0.11,
        clip_high=0.27,
        dual_clip=3.5,
        aggregation="constant",
        constant=768,
        kl_coefficient=0.08,
        kl_estimator="k3",
    ).describe()
    for part in ("1 - 0.11", "1 + 0.27", "3.5 * A", "1 / 768", "0.08 * (exp(-d) + d - 1)", "n - 1, + 1e-06"):
        assert part in text
    assert "reference" not in objective().describe()
    assert "importance" not in objective().describe()


@pytest.mark.parametrize(
    ("values", "held"),
    [
        ({"importance_cap": 1.75}, "min(ratio, 1.75)"),
        (
            {"importance_rule": "mask", "importance_floor": 0.25, "importance_cap": 4.5},
            "ratio where 0.25 <= ratio <= 4.5, else 0",
        ),
    ],
)
def test_the_description_of_a_decoupled_objective_says_how_weights_are_held(values, held):
    text = objective(proximal="current", kl_coefficient=0.08, **values).describe()
    assert text.startswith("loss = sum over sampled tokens of w * (-importance * u * A + 0.08 * d^2 / 2) / N")
    assert held in text
    assert "clip(" not in text

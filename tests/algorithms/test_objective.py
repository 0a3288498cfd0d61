import jax
import jax.numpy as jnp
import numpy as np
import pytest

from components.algorithms.advantages import AdvantageKind
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


def sampled(made: Objective, behavior: list[float], advantages: list[float], lengths: list[int], padding: int = 0):
    """Sequences laid end to end, then padding with nonsense in it."""
    sequence = [number for number, length in enumerate(lengths) for _ in range(length)]
    per_token = [advantages[number] for number in sequence]
    weights = [made.weight(lengths[number]) for number in sequence]
    return SampledTokens(
        behavior_logprobs=jnp.array(behavior + [-300.0] * padding, jnp.float32),
        advantages=jnp.array(per_token + [7.0] * padding, jnp.float32),
        weights=jnp.array(weights + [1.0] * padding, jnp.float32),
        sequence=jnp.array(sequence + [-1] * padding, jnp.int32),
        versions=jnp.array([0] * len(sequence) + [-1] * padding, jnp.int32),
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
    assert mean_statistics({key: float(value) for key, value in statistics.items()}, 0) == {"loss": 0.0, "tokens": 0.0}


def test_statistics_are_sums_that_end_as_means_per_token():
    made = objective()
    tokens = sampled(made, [0.0, 0.0], [1.0], [2], padding=1)
    logprobs = jnp.array([np.log(1.5), np.log(0.5), 0.0], jnp.float32)
    _, statistics = made.loss(logprobs, None, tokens)
    means = mean_statistics({key: float(value) for key, value in statistics.items()}, denominator=2)
    assert means["tokens"] == 2
    assert means["loss"] == pytest.approx((-1.2 - 0.5) / 2, rel=1e-6)
    assert means["ratio"] == pytest.approx(1.0)
    assert means["clipped"] == 0.5
    assert means["effective_sample_size"] == pytest.approx(2.0**2 / (2 * (1.5**2 + 0.5**2)))
    # KL(behavior || policy) by k3 with d = -log(ratio): ratio - log(ratio) - 1.
    assert means["behavior_kl"] == pytest.approx((1.5 + 0.5 - np.log(0.75) - 2) / 2, rel=1e-4)


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

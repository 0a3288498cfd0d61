"""A preset is its paper's; every value can be replaced; what would change nothing is named, with what makes it so."""

import dataclasses

import pytest

from components.algorithms.losses import KlEstimator
from components.algorithms.objective import Objective, ObjectiveConfig
from components.algorithms.terms import (
    AdvantageKind,
    Aggregation,
    ImportanceLevel,
    ImportanceRule,
    KlPlace,
    Proximal,
    Reference,
    Surrogate,
)
from components.config import dump, load
from components.errors import ConfigError


def objective(**values) -> Objective:
    return Objective.from_config(load(ObjectiveConfig, values, where="objective"))


def differing(preset: str, **values) -> dict[str, object]:
    """What a preset has other than grpo."""
    plain = dataclasses.asdict(objective())
    return {
        key: value
        for key, value in dataclasses.asdict(objective(preset=preset, **values)).items()
        if value != plain[key]
    }


def test_each_preset_is_its_papers():
    assert differing("grpo") == {}
    assert differing("dr_grpo", constant=64) == {
        "advantage": AdvantageKind.DR_GRPO,
        "aggregation": Aggregation.CONSTANT,
        "constant": 64,
    }
    assert differing("dapo") == {"clip_high": 0.28, "overlong_penalty": 1.0, "dynamic_sampling": True}
    assert differing("gspo") == {
        "surrogate": Surrogate.GSPO,
        "clip_low": 3e-4,
        "clip_high": 4e-4,
        "aggregation": Aggregation.SEQUENCE_MEAN,
    }
    assert differing("cispo") == {"surrogate": Surrogate.CISPO, "clip_low": 1.0, "clip_high": 4.0}
    assert differing("rloo") == {"advantage": AdvantageKind.RLOO}
    assert differing("reinforce_pp") == {"advantage": AdvantageKind.REINFORCE_PP}
    assert differing("decoupled") == {
        "proximal": Proximal.INTERPOLATED,
        "importance_rule": ImportanceRule.TRUNCATE,
        "importance_level": ImportanceLevel.TOKEN,
        "importance_cap": 5.0,
    }
    assert differing("ppo") == {"advantage": AdvantageKind.GAE, "epochs": 2, "minibatches": 2}
    ppo = objective(preset="ppo")
    assert (ppo.discount, ppo.decay, ppo.value_clip, ppo.whiten, ppo.bootstrap) == (1.0, 1.0, 0.2, True, True)
    dapo = objective(preset="dapo")
    assert (dapo.overlong_limit, dapo.overlong_buffer, dapo.kl_coefficient) == (20480, 4096, 0.0)
    assert (objective().clip_low, objective().clip_high, objective().aggregation) == (0.2, 0.2, "token_mean")


SETS = [
    {
        "advantage": "rloo",
        "credit": "turn",
        "clip_low": 0.1,
        "clip_high": 0.27,
        "dual_clip": 3.0,
        "aggregation": "constant",
        "constant": 64,
        "geometric_low": 0.9,
        "geometric_high": 1.1,
        "off_policy_delta": 0.5,
        "kl_coefficient": 0.04,
        "kl_estimator": "k3",
        "kl_place": "loss",
        "reference": "start",
        "entropy_coefficient": 0.01,
        "overlong_penalty": 0.5,
        "overlong_limit": 100,
        "overlong_buffer": 20,
        "dynamic_sampling": True,
        "refill_limit": 7,
    },
    {"advantage": "reinforce_pp", "discount": 0.9, "kl_coefficient": 0.1, "kl_place": "reward", "kl_estimator": "k1"},
    {
        "surrogate": "clipped",
        "proximal": "interpolated",
        "importance_rule": "mask",
        "importance_level": "sequence",
        "importance_floor": 0.25,
        "importance_cap": 3.0,
    },
    {
        "advantage": "gae",
        "discount": 0.99,
        "decay": 0.95,
        "whiten": False,
        "bootstrap": False,
        "value_clip": 0.5,
        "epochs": 3,
        "minibatches": 4,
        "max_kl": 0.02,
    },
]


@pytest.mark.parametrize("values", SETS)
@pytest.mark.parametrize("preset", ["grpo", "dapo", "rloo", "decoupled"])
def test_every_field_of_a_preset_can_be_set(preset, values):
    proximal = {"proximal": "behavior"} if preset == "decoupled" and "proximal" not in values else {}
    made = objective(preset=preset, **values, **proximal)
    assert {key: getattr(made, key) for key in values} == values


def test_every_field_is_set_by_one_of_these():
    fields = {field.name for field in dataclasses.fields(ObjectiveConfig)} - {"preset"}
    assert fields == {key for values in SETS for key in values}


def test_what_a_preset_turns_on_can_be_turned_off():
    off = {"overlong_penalty": 0.0, "dynamic_sampling": False, "clip_high": 0.2}
    assert objective(preset="dapo", **off) == objective()


@pytest.mark.parametrize(
    ("values", "rule", "floor", "cap"),
    [
        ({}, ImportanceRule.TRUNCATE, None, 2.0),
        ({"importance_level": "sequence"}, ImportanceRule.TRUNCATE, None, 5.0),
        ({"importance_rule": "mask"}, ImportanceRule.MASK, 0.5, 5.0),
        ({"importance_rule": "mask", "importance_floor": 0.0}, ImportanceRule.MASK, 0.0, 5.0),
    ],
)
def test_each_rule_has_its_own_bounds(values, rule, floor, cap):
    made = objective(proximal="current", **values)
    assert (made.importance_rule, made.importance_floor, made.importance_cap) == (rule, floor, cap)


def test_the_estimator_belongs_to_the_place_of_the_kl():
    assert objective(kl_coefficient=0.1).kl_estimator is KlEstimator.K2
    charged = objective(kl_coefficient=0.1, kl_place="reward")
    assert (charged.kl_estimator, charged.kl_place, charged.reference) == (
        KlEstimator.K1,
        KlPlace.REWARD,
        Reference.BASE,
    )
    assert (charged.charges_kl, charged.needs_reference) == (True, False)


def test_the_config_survives_being_written_and_read():
    config = load(ObjectiveConfig, {"preset": "dapo", "clip_high": 0.3, "overlong_limit": 5000})
    assert load(ObjectiveConfig, dump(config)) == config


def test_a_clip_around_the_steps_start_has_an_effect_where_a_step_makes_several_updates():
    for several in ({"epochs": 2}, {"minibatches": 3}):
        made = objective(proximal="current", clip_low=0.1, dual_clip=3.0, **several)
        assert (made.clip_low, made.several_updates, made.needs_proximal) == (0.1, True, True)
    assert not objective(epochs=2).needs_proximal


MASKED = {"proximal": "current", "importance_rule": "mask"}


@pytest.mark.parametrize(
    ("values", "key", "because"),
    [
        ({"kl_estimator": "k3"}, "kl_estimator", "while kl_coefficient is 0"),
        ({"kl_estimator": "k3", "kl_coefficient": 0.0}, "kl_estimator", "while kl_coefficient is 0"),
        ({"kl_place": "reward"}, "kl_place", "while kl_coefficient is 0"),
        ({"reference": "start"}, "reference", "while kl_coefficient is 0"),
        ({"kl_estimator": "k1", "kl_coefficient": 0.1}, "kl_estimator", "kl_place reward"),
        ({"constant": 8}, "constant", "unless aggregation is constant"),
        ({"aggregation": "constant"}, "constant", "needed by aggregation constant"),
        ({"preset": "dr_grpo"}, "constant", "give a length in tokens"),
        ({"aggregation": "sum"}, "aggregation", "'token_mean'"),
        ({"clip_low": -0.1}, "clip_low", "greater than 0"),
        ({"clip": 0.2}, "clip", "unknown key"),
        ({"preset": "trpo"}, "preset", "'dapo'"),
        ({"discount": 0.9}, "discount", "unless advantage is reinforce_pp or gae"),
        ({"decay": 0.9}, "decay", "unless advantage is gae"),
        ({"whiten": True}, "whiten", "unless advantage is gae"),
        ({"bootstrap": False}, "bootstrap", "unless advantage is gae"),
        ({"preset": "reinforce_pp", "value_clip": 0.5}, "value_clip", "unless advantage is gae"),
        ({"preset": "ppo", "epochs": 1, "max_kl": 0.1}, "max_kl", "while epochs is 1"),
        ({"epochs": 0}, "epochs", "greater than or equal to 1"),
        ({"preset": "ppo", "decay": 1.1}, "decay", "less than or equal to 1"),
        ({"preset": "gspo", "dual_clip": 3.0}, "dual_clip", "while surrogate is gspo"),
        ({"preset": "cispo", "proximal": "current"}, "proximal", "needs surrogate clipped"),
        ({"overlong_limit": 100}, "overlong_limit", "while overlong_penalty is 0"),
        ({"preset": "dapo", "overlong_limit": 100}, "overlong_buffer", r"not be more than overlong_limit \(100\)"),
        ({"overlong_penalty": 1.5}, "overlong_penalty", "less than or equal to 1"),
        ({"refill_limit": 3}, "refill_limit", "while dynamic_sampling is false"),
        ({"geometric_low": 1.0, "geometric_high": 1.0}, "geometric_low", "less than geometric_high"),
        ({"importance_cap": 2.0}, "importance_cap", "unless proximal is current or interpolated"),
        ({"importance_level": "sequence"}, "importance_level", "unless proximal is current or interpolated"),
        ({"importance_floor": 0.5}, "importance_floor", "unless proximal is current or interpolated"),
        ({"importance_rule": "mask"}, "importance_rule", "unless proximal is current or interpolated"),
        ({"proximal": "current", "clip_low": 0.2}, "clip_low", "while proximal is current"),
        ({"proximal": "current", "clip_high": 0.2}, "clip_high", "while proximal is current"),
        ({"proximal": "current", "dual_clip": 3.0}, "dual_clip", "while proximal is current"),
        ({"proximal": "current", "importance_floor": 0.5}, "importance_floor", "unless importance_rule is mask"),
        (MASKED | {"importance_floor": 5.0}, "importance_floor", r"less than importance_cap \(5\)"),
        ({"proximal": "current", "importance_cap": 0.0}, "importance_cap", "greater than 0"),
        ({"proximal": "latest"}, "proximal", "'behavior'"),
    ],
)
def test_a_key_that_cannot_work_or_would_change_nothing_is_named_with_its_reason(values, key, because):
    with pytest.raises(ConfigError, match=because) as caught:
        objective(**values)
    assert [problem.where for problem in caught.value.problems] == [f"objective.{key}"]


@pytest.mark.parametrize(
    ("values", "parts"),
    [
        (
            {"preset": "grpo"},
            ["-min(ratio * A, clip(ratio, 1 - 0.2, 1 + 0.2) * A)", "std of its group", "w = 1; N = sampled"],
        ),
        ({"preset": "dr_grpo", "constant": 768}, ["A = R - mean of its group;", "w = 1 / 768; N = sequences"]),
        (
            {"preset": "dapo"},
            ["1 + 0.28", "1 at 20480 sampled tokens and beyond, linear from 0 at 16384", "up to 200 in one"],
        ),
        (
            {"preset": "gspo"},
            ["-min(s * A, clip(s, 1 - 0.0003, 1 + 0.0004) * A)", "s = exp(mean", "1 / sampled tokens"],
        ),
        ({"preset": "cispo"}, ["-clip(ratio, 0, 1 + 4) * A * logprob", "no gradient flows through its clip"]),
        ({"preset": "rloo"}, ["A = R - mean of the others in its group"]),
        (
            {"preset": "reinforce_pp", "discount": 0.9},
            ["mean of the batch's tokens", "discounted by 0.9 per sampled token"],
        ),
        (
            {"preset": "ppo", "discount": 0.99, "decay": 0.9, "value_clip": 0.4, "max_kl": 0.03},
            [
                "A = r + 0.99 * V0 of the next sampled token - V0 + 0.891 * A of the next sampled token",
                "then (A - mean of the batch's tokens) / (their std, n - 1, + 1e-06)",
                "where the episode was truncated what the critic expects of the state it was cut in",
                "mean over sampled tokens of 1/2 * max((V - G)^2, (clip(V, V0 - 0.4, V0 + 0.4) - G)^2)",
                "N = sampled tokens of the minibatch",
                "passes over its tokens 2 times, each time in 2 shuffled minibatches",
                "none after one with KL(behavior || policy) > 0.03",
            ],
        ),
        (
            {"preset": "ppo", "whiten": False, "bootstrap": False, "value_clip": 0.0, "minibatches": 1, "epochs": 1},
            ["behind the last token 0, where the episode was truncated 0, too", "1/2 * (V - G)^2", "G = A + V0"],
        ),
        (
            {"proximal": "current", "epochs": 2},
            ["-importance * min(u * A, clip(u, 1 - 0.2, 1 + 0.2) * A)", "policy at the start of the optimizer step"],
        ),
        ({"preset": "decoupled"}, ["-importance * min(u * A,", "min(weight, 5)", "a = 1 - 1 / (versions since"]),
    ],
)
def test_the_description_says_what_each_preset_is(values, parts):
    text = objective(**values).describe()
    for part in parts:
        assert part in text
    assert "reference" not in text


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
    for part in (
        "1 - 0.11",
        "1 + 0.27",
        "3.5 * A",
        "1 / 768",
        "0.08 * pi/behavior * (exp(-d) + d - 1)",
        "n - 1, + 1e-06",
    ):
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


def test_the_description_tells_masks_and_what_comes_off_a_reward():
    text = objective(
        kl_coefficient=0.03,
        kl_place="reward",
        reference="start",
        geometric_low=0.99,
        off_policy_delta=0.6,
        credit="turn",
    ).describe()
    for part in ("unless 0.99 <= exp(mean", "sequence > 0.6", "0.03 * sum of d of the token", "run started from"):
        assert part in text
    assert "earned in the token's turn and after it" in text
    assert "0.02 * entropy" in objective(entropy_coefficient=0.02).describe()

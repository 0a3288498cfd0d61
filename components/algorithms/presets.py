"""The name of an algorithm and what a recipe replaces in it -> every value of an objective, or what cannot work.

    preset         advantage      surrogate   clip below / above   aggregation     besides
    grpo           grpo           clipped     0.2 / 0.2            token_mean
    dr_grpo        dr_grpo        clipped     0.2 / 0.2            constant        give `constant`, a length in tokens
    dapo           grpo           clipped     0.2 / 0.28           token_mean      dynamic sampling, overlong penalty
    gspo           grpo           gspo        3e-4 / 4e-4          sequence_mean
    cispo          grpo           cispo       1 / 4                token_mean
    rloo           rloo           clipped     0.2 / 0.2            token_mean
    reinforce_pp   reinforce_pp   clipped     0.2 / 0.2            token_mean      compares over the whole batch
    decoupled      grpo           clipped     0.2 / 0.2            token_mean      proximal: interpolated, cap 5
    ppo            gae            clipped     0.2 / 0.2            token_mean      a critic, 2 epochs of 2 minibatches

GRPO's paper averages within a sequence first; here as in DAPO every token of the optimizer step counts alike
(`aggregation: sequence_mean` is the paper's). No preset charges a KL or gives an entropy bonus.
"""

from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Any

from components.algorithms.losses import KlEstimator
from components.algorithms.terms import (
    AdvantageKind,
    Aggregation,
    Credit,
    ImportanceLevel,
    ImportanceRule,
    KlPlace,
    Proximal,
    Reference,
    Surrogate,
)
from components.errors import Problem


class Preset(StrEnum):
    """A named set of values; a key that is given replaces the preset's."""

    GRPO = "grpo"
    DR_GRPO = "dr_grpo"
    DAPO = "dapo"
    GSPO = "gspo"
    CISPO = "cispo"
    RLOO = "rloo"
    REINFORCE_PP = "reinforce_pp"
    DECOUPLED = "decoupled"
    PPO = "ppo"


COMMON: Mapping[str, Any] = {
    "advantage": AdvantageKind.GRPO,
    "credit": Credit.EPISODE,
    "discount": 1.0,
    "decay": 1.0,
    "whiten": True,
    "bootstrap": True,
    "value_clip": 0.2,
    "surrogate": Surrogate.CLIPPED,
    "clip_low": 0.2,
    "clip_high": 0.2,
    "aggregation": Aggregation.TOKEN_MEAN,
    "proximal": Proximal.BEHAVIOR,
    "kl_coefficient": 0.0,
    "kl_place": KlPlace.LOSS,
    "reference": Reference.BASE,
    "entropy_coefficient": 0.0,
    "overlong_penalty": 0.0,
    "overlong_limit": 20480,
    "overlong_buffer": 4096,
    "dynamic_sampling": False,
    "refill_limit": 200,
    "epochs": 1,
    "minibatches": 1,
}
"""What a preset does not say otherwise."""

PRESETS: Mapping[Preset, Mapping[str, Any]] = {
    Preset.GRPO: {},
    Preset.DR_GRPO: {"advantage": AdvantageKind.DR_GRPO, "aggregation": Aggregation.CONSTANT},
    Preset.DAPO: {"clip_high": 0.28, "dynamic_sampling": True, "overlong_penalty": 1.0},
    Preset.GSPO: {
        "surrogate": Surrogate.GSPO,
        "clip_low": 3e-4,
        "clip_high": 4e-4,
        "aggregation": Aggregation.SEQUENCE_MEAN,
    },
    Preset.CISPO: {"surrogate": Surrogate.CISPO, "clip_low": 1.0, "clip_high": 4.0},
    Preset.RLOO: {"advantage": AdvantageKind.RLOO},
    Preset.REINFORCE_PP: {"advantage": AdvantageKind.REINFORCE_PP},
    Preset.DECOUPLED: {"proximal": Proximal.INTERPOLATED, "importance_cap": 5.0},
    Preset.PPO: {"advantage": AdvantageKind.GAE, "epochs": 2, "minibatches": 2},
}
"""arXiv: GRPO 2402.03300, Dr.GRPO 2503.20783, DAPO 2503.14476, GSPO 2507.18071, CISPO 2506.13585, RLOO 2402.14740,
REINFORCE++ 2501.03262, decoupled PPO 2110.00641, PPO 1707.06347."""

IMPORTANCE: Mapping[tuple[ImportanceRule, ImportanceLevel], Mapping[str, float]] = {
    (ImportanceRule.TRUNCATE, ImportanceLevel.TOKEN): {"importance_cap": 2.0},
    (ImportanceRule.TRUNCATE, ImportanceLevel.SEQUENCE): {"importance_cap": 5.0},
    (ImportanceRule.MASK, ImportanceLevel.TOKEN): {"importance_floor": 0.5, "importance_cap": 5.0},
    (ImportanceRule.MASK, ImportanceLevel.SEQUENCE): {"importance_floor": 0.5, "importance_cap": 5.0},
}
"""Bounds of the importance weights that neither the recipe nor the preset gives."""


def fill(preset: Preset, given: Mapping[str, Any]) -> dict[str, Any]:
    """Every value of an objective. `given` has every key, None where the recipe is silent."""
    known = {**COMMON, **PRESETS[preset]}
    values = {key: known.get(key) if value is None else value for key, value in given.items()}
    if values["kl_estimator"] is None:
        in_reward = values["kl_place"] is KlPlace.REWARD
        values["kl_estimator"] = KlEstimator.K1 if in_reward else KlEstimator.K2
    if values["proximal"] is not Proximal.BEHAVIOR:
        rule = values["importance_rule"] = values["importance_rule"] or ImportanceRule.TRUNCATE
        level = values["importance_level"] = values["importance_level"] or ImportanceLevel.TOKEN
        values |= {key: value for key, value in IMPORTANCE[rule, level].items() if values[key] is None}
    else:
        values["importance_cap"] = given["importance_cap"]
    return values


def problems(given: Mapping[str, Any], values: Mapping[str, Any]) -> Iterator[Problem]:
    """What of the keys that a recipe gives cannot work, or would change nothing and by which other key."""
    for keys, why in _inert(values):
        for key in keys:
            if given[key] is not None:
                yield _problem(key, given[key], f"has no effect {why}")
    yield from _impossible(given, values)


def _inert(values: Mapping[str, Any]) -> Iterator[tuple[tuple[str, ...], str]]:
    if not values["kl_coefficient"]:
        yield ("kl_estimator", "kl_place", "reference"), "while kl_coefficient is 0"
    if values["aggregation"] is not Aggregation.CONSTANT:
        yield ("constant",), "unless aggregation is constant"
    if values["advantage"] not in (AdvantageKind.REINFORCE_PP, AdvantageKind.GAE):
        yield ("discount",), "unless advantage is reinforce_pp or gae"
    if values["advantage"] is not AdvantageKind.GAE:
        yield ("decay", "whiten", "bootstrap", "value_clip"), "unless advantage is gae"
    if values["epochs"] == 1:
        yield ("max_kl",), "while epochs is 1, as there is no later pass to leave out"
    if values["surrogate"] is not Surrogate.CLIPPED:
        yield ("dual_clip",), f"while surrogate is {values['surrogate']}"
    if not values["overlong_penalty"]:
        yield ("overlong_limit", "overlong_buffer"), "while overlong_penalty is 0"
    if not values["dynamic_sampling"]:
        yield ("refill_limit",), "while dynamic_sampling is false"
    if values["proximal"] is Proximal.BEHAVIOR:
        keys = ("importance_rule", "importance_level", "importance_floor", "importance_cap")
        yield keys, "unless proximal is current or interpolated"
    elif values["importance_rule"] is ImportanceRule.TRUNCATE:
        yield ("importance_floor",), "unless importance_rule is mask"
    if values["proximal"] is Proximal.CURRENT and values["epochs"] * values["minibatches"] == 1:
        why = "while proximal is current and epochs and minibatches are 1, as one update has nothing to clip"
        yield ("clip_low", "clip_high", "dual_clip"), why


def _impossible(given: Mapping[str, Any], values: Mapping[str, Any]) -> Iterator[Problem]:
    surrogate, proximal = values["surrogate"], values["proximal"]
    if proximal is not Proximal.BEHAVIOR and surrogate is not Surrogate.CLIPPED:
        yield _problem("proximal", proximal, f"needs surrogate clipped; {surrogate} holds the ratio to behavior itself")
    if values["kl_coefficient"] and values["kl_place"] is KlPlace.LOSS and values["kl_estimator"] is KlEstimator.K1:
        message = "its gradient in a loss is noise of mean 0; use k2 or k3, or kl_place reward"
        yield _problem("kl_estimator", "k1", message)
    if values["aggregation"] is Aggregation.CONSTANT and values["constant"] is None:
        message = "is needed by aggregation constant: give a length in tokens, such as that of the longest completion"
        yield _problem("constant", None, message)
    if values["overlong_penalty"] and values["overlong_buffer"] > values["overlong_limit"]:
        message = f"must not be more than overlong_limit ({values['overlong_limit']})"
        yield _problem("overlong_buffer", values["overlong_buffer"], message)
    for low, high in (("importance_floor", "importance_cap"), ("geometric_low", "geometric_high")):
        if values[low] is not None and values[high] is not None and values[low] >= values[high]:
            if low == "importance_floor" and values["importance_rule"] is not ImportanceRule.MASK:
                continue
            yield _problem(low, values[low], f"must be less than {high} ({values[high]:g})")


def _problem(key: str, value: Any, message: str) -> Problem:
    return Problem(where=f"objective.{key}", value=value, message=message)

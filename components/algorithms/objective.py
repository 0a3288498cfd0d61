"""Settings of an objective -> one number per optimizer step, as a sum over micro-batches of any size.

Every aggregation is written as sum(weight * loss of the token) / denominator. Weights are known when a sample is packed
and the denominator when the optimizer step is complete, so micro-batches can be summed as samples arrive:

    token_mean      weight 1                     denominator: sampled tokens     (DAPO, arXiv:2503.14476)
    sequence_mean   weight 1 / sequence length   denominator: sequences          (GRPO, arXiv:2402.03300)
    constant        weight 1 / constant          denominator: sequences          (Dr.GRPO, arXiv:2503.20783)
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Annotated, Any, no_type_check

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int
from pydantic import Field

from components.algorithms.advantages import STD_EPSILON, AdvantageKind
from components.algorithms.corrections import (
    ImportanceRule,
    Proximal,
    decoupled_surrogate,
    importance_ratio,
    masked_importance_weight,
    truncated_importance_weight,
)
from components.algorithms.losses import KlEstimator, clipped_surrogate, is_clipped, kl_divergence
from components.config import config
from components.errors import ConfigError, Problem

Statistics = dict[str, Array]
"""Sums over the tokens of a micro-batch; a key that ends in `_max` holds a maximum of numbers that are not negative."""


class Preset(StrEnum):
    """A named set of values; a key that is given replaces the preset's."""

    GRPO = "grpo"


class Aggregation(StrEnum):
    """How the losses of tokens become one loss; see the head of this file."""

    TOKEN_MEAN = "token_mean"
    SEQUENCE_MEAN = "sequence_mean"
    CONSTANT = "constant"


@config
class ObjectiveConfig:
    """What is minimised. A key left out (None) takes the preset's value.

    `constant` is a length in tokens. `proximal: current` weighs each token by policy / behavior, held by the importance
    keys, where `behavior` clips that ratio instead (see `corrections`). A key that would change nothing (`kl_estimator`
    without a `kl_coefficient`, `constant` without that aggregation, a clip where nothing is clipped) is a ConfigError.
    """

    preset: Preset = Preset.GRPO
    advantage: AdvantageKind | None = None
    clip_low: Annotated[float, Field(gt=0, le=1)] | None = None
    clip_high: Annotated[float, Field(gt=0)] | None = None
    dual_clip: Annotated[float, Field(gt=1)] | None = None
    aggregation: Aggregation | None = None
    constant: Annotated[int, Field(ge=1)] | None = None
    kl_coefficient: Annotated[float, Field(ge=0)] | None = None
    kl_estimator: KlEstimator | None = None
    proximal: Proximal | None = None
    importance_rule: ImportanceRule | None = None
    importance_floor: Annotated[float, Field(ge=0)] | None = None
    importance_cap: Annotated[float, Field(gt=0)] | None = None

    def __post_init__(self) -> None:
        values = _values(self)
        problems = _proximal_problems(self, values)
        if not values["kl_coefficient"] and self.kl_estimator is not None:
            problems.append(_problem("kl_estimator", self.kl_estimator, "has no effect while kl_coefficient is 0"))
        if self.kl_estimator is KlEstimator.K1:
            problems.append(_problem("kl_estimator", "k1", "its gradient in a loss is noise of mean 0; use k2 or k3"))
        if values["aggregation"] is Aggregation.CONSTANT and self.constant is None:
            problems.append(_problem("constant", None, "is needed by aggregation constant: give a length in tokens"))
        if values["aggregation"] is not Aggregation.CONSTANT and self.constant is not None:
            problems.append(_problem("constant", self.constant, "has no effect unless aggregation is constant"))
        if problems:
            raise ConfigError(problems)


PRESETS: Mapping[Preset, Mapping[str, Any]] = {
    Preset.GRPO: {
        "advantage": AdvantageKind.GRPO,
        "clip_low": 0.2,
        "clip_high": 0.2,
        "aggregation": Aggregation.TOKEN_MEAN,
        "kl_coefficient": 0.0,
        "kl_estimator": KlEstimator.K2,
        "proximal": Proximal.BEHAVIOR,
    },
}
IMPORTANCE: Mapping[ImportanceRule, Mapping[str, float]] = {
    ImportanceRule.TRUNCATE: {"importance_cap": 2.0},
    ImportanceRule.MASK: {"importance_floor": 0.5, "importance_cap": 5.0},
}
"""Values of the importance keys that are not given, by rule."""


@no_type_check  # its leaves may stand for arrays: shapes, shardings, nothing
@struct.dataclass
class SampledTokens:
    """What an objective knows of the sampled tokens of a micro-batch, beside their log-probs.

    `sequence` tells samples apart (0, 1, ... within the micro-batch; -1 is padding). All tokens of a sample are in one
    micro-batch. `versions` is the policy version that sampled the token.
    """

    behavior_logprobs: Float[Array, "tokens"]
    advantages: Float[Array, "tokens"]
    weights: Float[Array, "tokens"]
    sequence: Int[Array, "tokens"]
    versions: Int[Array, "tokens"]

    @property
    def mask(self) -> Bool[Array, "tokens"]:
        """False for padding."""
        return self.sequence >= 0


@dataclass(frozen=True)
class Objective:
    """An `ObjectiveConfig` with every value filled in. Hashable, so that a jitted function may close over it."""

    advantage: AdvantageKind
    clip_low: float
    clip_high: float
    dual_clip: float | None
    aggregation: Aggregation
    constant: int | None
    kl_coefficient: float
    kl_estimator: KlEstimator
    proximal: Proximal
    importance_rule: ImportanceRule | None
    importance_floor: float | None
    importance_cap: float | None

    @classmethod
    def from_config(cls, config: ObjectiveConfig) -> "Objective":
        """Fill in the preset's values."""
        return cls(**_values(config))

    @property
    def needs_reference(self) -> bool:
        """True when the log-probs of the reference policy enter the loss."""
        return self.kl_coefficient > 0

    def has_gradient(self, advantage: float) -> bool:
        """False when a sample of this advantage pulls on nothing. It still counts in the denominator."""
        return advantage != 0 or self.needs_reference

    def weight(self, length: int) -> float:
        """Weight of each of the `length` sampled tokens of one sample."""
        match self.aggregation:
            case Aggregation.TOKEN_MEAN:
                return 1.0
            case Aggregation.SEQUENCE_MEAN:
                return 1.0 / length
            case Aggregation.CONSTANT:
                assert self.constant is not None, "ObjectiveConfig checks it"
                return 1.0 / self.constant

    def share(self, length: int) -> int:
        """What one sample of `length` sampled tokens adds to the denominator of the optimizer step."""
        return length if self.aggregation is Aggregation.TOKEN_MEAN else 1

    def loss(
        self,
        logprobs: Float[Array, "tokens"],
        reference_logprobs: Float[Array, "tokens"] | None,
        tokens: SampledTokens,
        version: Int[Array, ""] | None = None,
    ) -> tuple[Float[Array, ""], Statistics]:
        """The weighted SUM of the loss over one micro-batch, and sums of what is worth a look (`mean_statistics`).

        `version` is the policy version that `logprobs` are of; without it there is no `mismatch_kl`. Raises ValueError
        when a KL term is set and the reference's log-probs are not given.
        """
        mask = tokens.mask
        losses, importance, clipped = self._surrogate(logprobs, tokens)
        statistics = _statistics(logprobs, tokens, version) | {
            "importance_weight": jnp.sum(importance),
            "importance_weight_squared": jnp.sum(importance * importance),
            "importance_weight_max": jnp.max(importance, initial=0.0),
            "clipped": jnp.sum(clipped, dtype=jnp.float32),
        }
        if self.needs_reference:
            if reference_logprobs is None:
                raise ValueError(f"kl_coefficient is {self.kl_coefficient}: the reference's log-probs are needed")
            penalty = kl_divergence(logprobs, reference_logprobs, mask, estimator=self.kl_estimator)
            losses = losses + self.kl_coefficient * penalty
            k3 = kl_divergence(logprobs, reference_logprobs, mask, estimator=KlEstimator.K3)
            statistics["reference_kl"] = jnp.sum(k3)
        total = jnp.sum(losses * jnp.where(mask, tokens.weights, 0.0))
        return total, {"loss": total, **statistics}

    def _surrogate(
        self, logprobs: Float[Array, "tokens"], tokens: SampledTokens
    ) -> tuple[Float[Array, "tokens"], Float[Array, "tokens"], Bool[Array, "tokens"]]:
        """Loss and importance weight in use per token, and whether a clip, the cap or the floor holds it."""
        behavior, advantages, mask = tokens.behavior_logprobs, tokens.advantages, tokens.mask
        clip = {"clip_low": self.clip_low, "clip_high": self.clip_high}
        ratio = importance_ratio(logprobs, behavior, mask)
        if self.proximal is Proximal.BEHAVIOR:
            losses = clipped_surrogate(logprobs, behavior, advantages, mask, dual_clip=self.dual_clip, **clip)
            return losses, ratio, is_clipped(logprobs, behavior, advantages, mask, **clip)
        importance = self._held(ratio)
        # One optimizer step per batch: the policy at its start is the one whose log-probs these are.
        losses = decoupled_surrogate(logprobs, logprobs, importance, advantages, mask, dual_clip=self.dual_clip, **clip)
        return losses, importance, importance != ratio

    def _held(self, ratio: Float[Array, "tokens"]) -> Float[Array, "tokens"]:
        assert self.importance_cap is not None, "ObjectiveConfig fills it in"
        if self.importance_rule is ImportanceRule.TRUNCATE:
            return truncated_importance_weight(ratio, cap=self.importance_cap)
        assert self.importance_floor is not None, "ObjectiveConfig fills it in"
        return masked_importance_weight(ratio, floor=self.importance_floor, cap=self.importance_cap)

    def describe(self) -> str:
        """The formula with every constant, for people."""
        return "\n".join(_formula(self))


def mean_statistics(sums: Mapping[str, float], denominator: int | float) -> dict[str, float]:
    """Sums over an optimizer step -> loss, means per token, and the effective sample size as a share of the tokens.

    `effective_sample_size` is that of the importance weights in use, 0 when all of them are masked. `mismatch_kl` is
    over the tokens of `same_version_share`, and absent when there are none. An optimizer step without tokens has none
    of these numbers: `{"trained_tokens": 0.0}` and a loss of 0.
    """
    tokens = sums.get("tokens", 0.0)
    if not tokens or not denominator:
        return {"loss": 0.0, "trained_tokens": 0.0}
    apart = {"loss", "tokens", "importance_weight_squared", "mismatch_kl", "same_version"}
    means = {key: sums[key] if key.endswith("_max") else sums[key] / tokens for key in sums if key not in apart}
    squares = sums["importance_weight_squared"]
    means["effective_sample_size"] = sums["importance_weight"] ** 2 / (tokens * squares) if squares else 0.0
    if "same_version" in sums:
        means["same_version_share"] = sums["same_version"] / tokens
    if sums.get("same_version"):
        means["mismatch_kl"] = sums["mismatch_kl"] / sums["same_version"]
    return {"loss": sums["loss"] / denominator, "trained_tokens": tokens, **means}


def _statistics(logprobs: Float[Array, "tokens"], tokens: SampledTokens, version: Int[Array, ""] | None) -> Statistics:
    mask = tokens.mask
    # The behavior policy drew the tokens, so this is KL(behavior || policy) with the two swapped.
    drift = kl_divergence(tokens.behavior_logprobs, logprobs, mask, estimator=KlEstimator.K3)
    statistics = {
        "tokens": jnp.sum(mask, dtype=jnp.float32),
        "behavior_kl": jnp.sum(drift),
    }
    if version is None:
        return statistics
    # One version on both sides: what differs is arithmetic, not the policy.
    same = mask & (tokens.versions == version)
    return statistics | {
        "same_version": jnp.sum(same, dtype=jnp.float32),
        "mismatch_kl": jnp.sum(jnp.where(same, drift, 0.0)),
    }


def _values(config: ObjectiveConfig) -> dict[str, Any]:
    given = {key: value for key, value in asdict(config).items() if key != "preset"}
    preset = PRESETS[config.preset]
    values = {key: preset.get(key) if value is None else value for key, value in given.items()}
    if values["proximal"] is Proximal.CURRENT:
        rule = values["importance_rule"] or ImportanceRule.TRUNCATE
        values["importance_rule"] = rule
        values |= {key: value for key, value in IMPORTANCE[rule].items() if values[key] is None}
    return values


def _proximal_problems(config: ObjectiveConfig, values: Mapping[str, Any]) -> list[Problem]:
    problems = []
    if values["proximal"] is Proximal.BEHAVIOR:
        keys = ("importance_rule", "importance_floor", "importance_cap")
        inert = dict.fromkeys(keys, "has no effect unless proximal is current")
    else:
        keys = ("clip_low", "clip_high", "dual_clip")
        inert = dict.fromkeys(keys, "has no effect while proximal is current: one step per batch has nothing to clip")
        floor, cap = values["importance_floor"], values["importance_cap"]
        if values["importance_rule"] is ImportanceRule.TRUNCATE:
            inert["importance_floor"] = "has no effect unless importance_rule is mask"
        elif floor >= cap:
            problems.append(_problem("importance_floor", floor, f"must be less than importance_cap ({cap:g})"))
    given = {key: value for key, value in asdict(config).items() if value is not None}
    return problems + [_problem(key, given[key], message) for key, message in inert.items() if key in given]


def _problem(key: str, value: Any, message: str) -> Problem:
    return Problem(where=f"objective.{key}", value=value, message=message)


_ADVANTAGES = {
    AdvantageKind.GRPO: f"(reward - mean of its group) / (std of its group, n - 1, + {STD_EPSILON:g})",
    AdvantageKind.DR_GRPO: "reward - mean of its group",
    AdvantageKind.RLOO: "reward - mean of the others in its group",
}
_PENALTIES = {
    KlEstimator.K1: "d",
    KlEstimator.K2: "d^2 / 2",
    KlEstimator.K3: "(exp(-d) + d - 1)",
}


def _formula(objective: Objective) -> list[str]:
    surrogate, definitions = _surrogate_formula(objective)
    penalty = ""
    if objective.needs_reference:
        penalty = f" + {objective.kl_coefficient:g} * {_PENALTIES[objective.kl_estimator]}"
        definitions.append("d = logprob - logprob of the reference (the base without adapter), held within +-20")
    weight, denominator = {
        Aggregation.TOKEN_MEAN: ("1", "sampled tokens of the optimizer step"),
        Aggregation.SEQUENCE_MEAN: ("1 / sampled tokens of its sequence", "sequences of the optimizer step"),
        Aggregation.CONSTANT: (f"1 / {objective.constant}", "sequences of the optimizer step"),
    }[objective.aggregation]
    return [
        f"loss = sum over sampled tokens of w * ({surrogate}{penalty}) / N",
        *definitions,
        f"A = {_ADVANTAGES[objective.advantage]}; 0 where all rewards of the group are equal",
        f"w = {weight}; N = {denominator}",
    ]


def _surrogate_formula(objective: Objective) -> tuple[str, list[str]]:
    ratio = "ratio = exp(logprob - behavior logprob), the log held within +-20"
    if objective.proximal is Proximal.CURRENT:
        cap, floor = objective.importance_cap, objective.importance_floor
        held = f"min(ratio, {cap:g})"
        if objective.importance_rule is ImportanceRule.MASK:
            held = f"ratio where {floor:g} <= ratio <= {cap:g}, else 0"
        proximal = "u = exp(logprob - proximal logprob), of the present policy: 1 with the gradient of logprob, no clip"
        return "-importance * u * A", [f"importance = {held}; no gradient flows through it", ratio, proximal]
    low, high = f"1 - {objective.clip_low:g}", f"1 + {objective.clip_high:g}"
    gain = f"min(ratio * A, clip(ratio, {low}, {high}) * A)"
    if objective.dual_clip is not None:
        gain = f"({gain}, where A < 0 at least {objective.dual_clip:g} * A)"
    return f"-{gain}", [ratio]

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
from components.algorithms.losses import KlEstimator, clipped_surrogate, is_clipped, kl_divergence, log_ratio
from components.config import config
from components.errors import ConfigError, Problem

Statistics = dict[str, Array]


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

    `constant` is a length in tokens. A key that would change nothing (`kl_estimator` without a `kl_coefficient`,
    `constant` without that aggregation) is a ConfigError.
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

    def __post_init__(self) -> None:
        values = _values(self)
        problems = []
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
    },
}


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
    ) -> tuple[Float[Array, ""], Statistics]:
        """The weighted SUM of the loss over one micro-batch, and sums of what is worth a look (`mean_statistics`).

        Raises ValueError when a KL term is set and the reference's log-probs are not given.
        """
        behavior, advantages, mask = tokens.behavior_logprobs, tokens.advantages, tokens.mask
        clip = {"clip_low": self.clip_low, "clip_high": self.clip_high}
        losses = clipped_surrogate(logprobs, behavior, advantages, mask, dual_clip=self.dual_clip, **clip)
        statistics = _statistics(logprobs, tokens)
        statistics["clipped"] = jnp.sum(is_clipped(logprobs, behavior, advantages, mask, **clip), dtype=jnp.float32)
        if self.needs_reference:
            if reference_logprobs is None:
                raise ValueError(f"kl_coefficient is {self.kl_coefficient}: the reference's log-probs are needed")
            penalty = kl_divergence(logprobs, reference_logprobs, mask, estimator=self.kl_estimator)
            losses = losses + self.kl_coefficient * penalty
            k3 = kl_divergence(logprobs, reference_logprobs, mask, estimator=KlEstimator.K3)
            statistics["reference_kl"] = jnp.sum(k3)
        total = jnp.sum(losses * jnp.where(mask, tokens.weights, 0.0))
        return total, {"loss": total, **statistics}

    def describe(self) -> str:
        """The formula with every constant, for people."""
        return "\n".join(_formula(self))


def mean_statistics(sums: Mapping[str, float], denominator: int | float) -> dict[str, float]:
    """Sums over an optimizer step -> loss, means per token, and the effective sample size as a share of the tokens.

    An optimizer step without tokens has none of them: `{"tokens": 0.0}` and a loss of 0.
    """
    tokens = sums.get("tokens", 0.0)
    if not tokens or not denominator:
        return {"loss": 0.0, "tokens": 0.0}
    means = {key: sums[key] / tokens for key in sums if key not in ("loss", "tokens", "ratio_squared")}
    effective = sums["ratio"] ** 2 / (tokens * sums["ratio_squared"])
    return {"loss": sums["loss"] / denominator, "tokens": tokens, "effective_sample_size": effective, **means}


def _statistics(logprobs: Float[Array, "tokens"], tokens: SampledTokens) -> Statistics:
    mask = tokens.mask
    ratio = jnp.where(mask, jnp.exp(log_ratio(logprobs, tokens.behavior_logprobs, mask)), 0.0)
    # The behavior policy drew the tokens, so this is KL(behavior || policy) with the two swapped.
    drift = kl_divergence(tokens.behavior_logprobs, logprobs, mask, estimator=KlEstimator.K3)
    return {
        "tokens": jnp.sum(mask, dtype=jnp.float32),
        "ratio": jnp.sum(ratio),
        "ratio_squared": jnp.sum(ratio * ratio),
        "behavior_kl": jnp.sum(drift),
    }


def _values(config: ObjectiveConfig) -> dict[str, Any]:
    given = {key: value for key, value in asdict(config).items() if key != "preset"}
    preset = PRESETS[config.preset]
    return {key: preset.get(key) if value is None else value for key, value in given.items()}


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
    low, high = f"1 - {objective.clip_low:g}", f"1 + {objective.clip_high:g}"
    gain = f"min(ratio * A, clip(ratio, {low}, {high}) * A)"
    if objective.dual_clip is not None:
        gain = f"({gain}, where A < 0 at least {objective.dual_clip:g} * A)"
    penalty = ""
    if objective.needs_reference:
        penalty = f" + {objective.kl_coefficient:g} * {_PENALTIES[objective.kl_estimator]}"
    weight, denominator = {
        Aggregation.TOKEN_MEAN: ("1", "sampled tokens of the optimizer step"),
        Aggregation.SEQUENCE_MEAN: ("1 / sampled tokens of its sequence", "sequences of the optimizer step"),
        Aggregation.CONSTANT: (f"1 / {objective.constant}", "sequences of the optimizer step"),
    }[objective.aggregation]
    lines = [
        f"loss = sum over sampled tokens of w * (-{gain}{penalty}) / N",
        "ratio = exp(logprob - behavior logprob), the log held within +-20",
        f"A = {_ADVANTAGES[objective.advantage]}; 0 where all rewards of the group are equal",
        f"w = {weight}; N = {denominator}",
    ]
    if objective.needs_reference:
        lines.insert(2, "d = logprob - logprob of the reference (the base without adapter), held within +-20")
    return lines

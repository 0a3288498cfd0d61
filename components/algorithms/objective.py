"""Settings of an objective -> one number per optimizer step, as a sum over micro-batches of any size.

Every aggregation is written as sum(weight * loss of the token) / denominator. Weights are known when a sample is packed
and the denominator when the optimizer step is complete, so micro-batches can be summed as samples arrive:

    token_mean      weight 1                     denominator: sampled tokens     (DAPO, arXiv:2503.14476)
    sequence_mean   weight 1 / sequence length   denominator: sequences          (GRPO, arXiv:2402.03300)
    constant        weight 1 / constant          denominator: sequences          (Dr.GRPO, arXiv:2503.20783)
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Annotated, Any

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int
from pydantic import Field

from components.algorithms import presets
from components.algorithms.formula import formula
from components.algorithms.losses import KlEstimator, kl_divergence, log_ratio
from components.algorithms.presets import Preset
from components.algorithms.sampled import SampledTokens
from components.algorithms.surrogates import policy_loss
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
    Terms,
)
from components.config import config
from components.errors import ConfigError

Statistics = dict[str, Array]
"""Sums over the tokens of a micro-batch; a key that ends in `_max` holds a maximum of numbers that are not negative."""

LOSS_PARTS = ("loss", "policy_loss", "kl_loss", "entropy_loss")
"""Sums of weighted losses, to be divided by the denominator of the optimizer step."""


@config
class ObjectiveConfig:
    """What is minimised. A key left out (None) takes the preset's value; the presets are in `presets`.

    A key that would change nothing (`kl_estimator` without a `kl_coefficient`, a clip where nothing is clipped) is a
    ConfigError that names what makes it so.

    advantage: how rewards compare; `credit: turn` gives each turn what was earned from it on; `discount` is per sampled
        token (reinforce_pp, gae).
    decay, whiten, bootstrap, value_clip (gae): lambda; whether advantages are normalised over the batch; whether a
        truncated episode is worth what the critic expects of the state it was cut in, or nothing more; how far a value
        may move in one optimizer step before it pulls no more (0 is no clip).
    surrogate: `clipped` (PPO; `dual_clip` bounds bad tokens), `gspo` (its ratio is the sequence's) or `cispo`.
    aggregation: see the head of this file; `constant` is a length in tokens.
    proximal: `behavior` clips policy / behavior. `current` weighs each token by it instead, held by the importance keys
        (token or sequence level, cut at the cap or zero outside of [floor, cap]); `interpolated` clips around the
        version before, and weighs by its distance to behavior.
    geometric_low, geometric_high: drop sequences whose mean ratio is outside (0.99 and 1.01 hold tightly).
    off_policy_delta: drop tokens with a negative advantage in sequences that the policy has left (0.5).
    kl_coefficient: charged in the loss (k2, or k3 weighted by the ratio) or in the reward (k1), against `reference`.
    overlong_penalty: taken off the reward of a trajectory of `overlong_limit` sampled tokens, rising over the last
        `overlong_buffer` of them; 0 is off.
    dynamic_sampling: a group whose rewards are all equal is refused and another one played; more than `refill_limit` of
        them in one optimizer step stop the run.
    epochs, minibatches: an optimizer step passes over its trajectories so many times, each time in so many shuffled
        parts with an update after each; `max_kl` (nats per token, of the policy that sampled against the one that
        trains) makes the pass that went beyond it the last. The next version serves after the last update.
    """

    preset: Preset = Preset.GRPO
    advantage: AdvantageKind | None = None
    credit: Credit | None = None
    discount: Annotated[float, Field(gt=0, le=1)] | None = None
    decay: Annotated[float, Field(ge=0, le=1)] | None = None
    whiten: bool | None = None
    bootstrap: bool | None = None
    value_clip: Annotated[float, Field(ge=0)] | None = None
    surrogate: Surrogate | None = None
    clip_low: Annotated[float, Field(gt=0, le=1)] | None = None
    clip_high: Annotated[float, Field(gt=0)] | None = None
    dual_clip: Annotated[float, Field(gt=1)] | None = None
    aggregation: Aggregation | None = None
    constant: Annotated[int, Field(ge=1)] | None = None
    proximal: Proximal | None = None
    importance_rule: ImportanceRule | None = None
    importance_level: ImportanceLevel | None = None
    importance_floor: Annotated[float, Field(ge=0)] | None = None
    importance_cap: Annotated[float, Field(gt=0)] | None = None
    geometric_low: Annotated[float, Field(ge=0, le=1)] | None = None
    geometric_high: Annotated[float, Field(ge=1)] | None = None
    off_policy_delta: Annotated[float, Field(ge=0)] | None = None
    kl_coefficient: Annotated[float, Field(ge=0)] | None = None
    kl_estimator: KlEstimator | None = None
    kl_place: KlPlace | None = None
    reference: Reference | None = None
    entropy_coefficient: Annotated[float, Field(ge=0)] | None = None
    overlong_penalty: Annotated[float, Field(ge=0, le=1)] | None = None
    overlong_limit: Annotated[int, Field(ge=1)] | None = None
    overlong_buffer: Annotated[int, Field(ge=0)] | None = None
    dynamic_sampling: bool | None = None
    refill_limit: Annotated[int, Field(ge=0)] | None = None
    epochs: Annotated[int, Field(ge=1)] | None = None
    minibatches: Annotated[int, Field(ge=1)] | None = None
    max_kl: Annotated[float, Field(gt=0)] | None = None

    def __post_init__(self) -> None:
        given = _given(self)
        found = [*presets.problems(given, presets.fill(self.preset, given))]
        if found:
            raise ConfigError(found)


@dataclass(frozen=True, kw_only=True)
class Objective(Terms):
    """An `ObjectiveConfig` with every value filled in. Hashable, so that a jitted function may close over it."""

    @classmethod
    def from_config(cls, config: ObjectiveConfig) -> "Objective":
        """Fill in the preset's values."""
        return cls(**presets.fill(config.preset, _given(config)))

    def has_gradient(self, advantage: float) -> bool:
        """False when a sample of this advantage pulls on nothing, nor on a critic. It still counts in N."""
        return advantage != 0 or self.needs_reference or self.entropy_coefficient > 0 or self.needs_critic

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
        tokens: SampledTokens,
        version: Int[Array, ""] | None = None,
        entropies: Float[Array, "tokens"] | None = None,
    ) -> tuple[Float[Array, ""], Statistics]:
        """The weighted SUM of the loss over one micro-batch, and sums of what is worth a look (`mean_statistics`).

        `version` is the policy version that `logprobs` are of; without it there is no `mismatch_kl`. `entropies` are
        those of the policy. Raises ValueError when a term needs what is not given.
        """
        weights = jnp.where(tokens.mask, tokens.weights, 0.0)
        found = policy_loss(self, logprobs, tokens, version)
        parts = {"policy_loss": jnp.sum(found.losses * weights)}
        statistics = _statistics(logprobs, tokens, version) | {
            "importance_weight": jnp.sum(found.importance),
            "importance_weight_squared": jnp.sum(found.importance * found.importance),
            "importance_weight_max": jnp.max(found.importance, initial=0.0),
            "clipped": _count(found.held_low | found.held_high),
            "clipped_low": _count(found.held_low),
            "clipped_high": _count(found.held_high),
            "masked": _count(tokens.mask & ~found.kept),
        }
        if self.needs_reference:
            losses, statistics["reference_kl"] = self._kl(logprobs, tokens)
            parts["kl_loss"] = jnp.sum(losses * weights)
        if self.entropy_coefficient:
            if entropies is None:
                raise ValueError(f"entropy_coefficient is {self.entropy_coefficient}: the entropies are needed")
            bonus = jnp.where(tokens.mask, entropies, 0.0) * weights
            parts["entropy_loss"] = -self.entropy_coefficient * jnp.sum(bonus)
        total = sum(parts.values(), start=jnp.float32(0.0))
        return total, {"loss": total, **parts, **statistics}

    def _kl(
        self, logprobs: Float[Array, "tokens"], tokens: SampledTokens
    ) -> tuple[Float[Array, "tokens"], Float[Array, ""]]:
        """The KL term per token, and the sum of k3 for people."""
        reference = tokens.reference_logprobs
        if reference is None:
            raise ValueError(f"kl_coefficient is {self.kl_coefficient}: the reference's log-probs are needed")
        losses = kl_divergence(logprobs, reference, tokens.mask, estimator=self.kl_estimator)
        k3 = kl_divergence(logprobs, reference, tokens.mask, estimator=KlEstimator.K3)
        if self.kl_estimator is KlEstimator.K3:
            # Only with the ratio's own gradient is this that of KL(policy || reference) (arXiv:2512.02556).
            losses = losses * jnp.exp(log_ratio(logprobs, tokens.behavior_logprobs, tokens.mask))
        return self.kl_coefficient * losses, jnp.sum(k3)

    def describe(self) -> str:
        """The formula with every constant, for people."""
        return "\n".join(formula(self))


def mean_statistics(sums: Mapping[str, float], denominator: int | float) -> dict[str, float]:
    """Sums over an optimizer step -> loss and its parts, means per token, and the effective sample size as a share.

    `effective_sample_size` is that of the importance weights in use, 0 when all of them are masked. `mismatch_kl` is
    over the tokens of `same_version_share`, and absent when there are none. An optimizer step without tokens has none
    of these numbers: `{"trained_tokens": 0.0}` and a loss of 0.
    """
    tokens = sums.get("tokens", 0.0)
    if not tokens or not denominator:
        return {"loss": 0.0, "trained_tokens": 0.0}
    apart = {*LOSS_PARTS, "tokens", "importance_weight_squared", "mismatch_kl", "same_version"}
    means = {key: sums[key] if key.endswith("_max") else sums[key] / tokens for key in sums if key not in apart}
    squares = sums["importance_weight_squared"]
    means["effective_sample_size"] = sums["importance_weight"] ** 2 / (tokens * squares) if squares else 0.0
    if "same_version" in sums:
        means["same_version_share"] = sums["same_version"] / tokens
    if sums.get("same_version"):
        means["mismatch_kl"] = sums["mismatch_kl"] / sums["same_version"]
    losses = {key: sums[key] / denominator for key in LOSS_PARTS if key in sums}
    return {**losses, "trained_tokens": tokens, **means}


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


def _count(which: Bool[Array, "tokens"]) -> Float[Array, ""]:
    return jnp.sum(which, dtype=jnp.float32)


def _given(config: ObjectiveConfig) -> dict[str, Any]:
    return {key: value for key, value in asdict(config).items() if key != "preset"}

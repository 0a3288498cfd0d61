"""Log-probs of sampled tokens -> loss per token.

Flat arrays, one entry per token that the policy sampled. There are no rows, and the only padding is entries whose
`mask` is false: they come out as 0 with gradient 0, whatever nonsense stands in them. The input of every exp is
cleaned, not its output: an infinity that is masked after the exp is harmless forwards and NaN backwards.
"""

from enum import StrEnum

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from components.algorithms.sampled import sequence_mean

LOG_RATIO_LIMIT = 20.0


class KlEstimator(StrEnum):
    """Estimators of KL(policy || reference) from one sampled token (http://joschu.net/blog/kl-approx.html)."""

    K1 = "k1"
    K2 = "k2"
    K3 = "k3"


def log_ratio(
    logprobs: Float[Array, "tokens"], other_logprobs: Float[Array, "tokens"], mask: Bool[Array, "tokens"]
) -> Float[Array, "tokens"]:
    """logprobs - other_logprobs, 0 where masked, held within +-20 so that its exp is finite.

    Only the value is held: the gradient passes as if it were not, so a policy that drifted far is still pulled back.
    """
    difference = jnp.where(mask, logprobs, 0.0) - jnp.where(mask, other_logprobs, 0.0)
    held = jnp.clip(difference, -LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    return difference + jax.lax.stop_gradient(held - difference)


def clipped_surrogate(
    logprobs: Float[Array, "tokens"],
    behavior_logprobs: Float[Array, "tokens"],
    advantages: Float[Array, "tokens"],
    mask: Bool[Array, "tokens"],
    *,
    clip_low: float,
    clip_high: float,
    dual_clip: float | None = None,
) -> Float[Array, "tokens"]:
    """PPO's pessimistic bound per token (arXiv:1707.06347, eq. 7). DAPO is `clip_high > clip_low` (arXiv:2503.14476).

    `dual_clip` = c > 1 bounds the loss of a token with negative advantage by c * |advantage| (arXiv:1912.09729, eq. 5).
    """
    ratio = jnp.exp(log_ratio(logprobs, behavior_logprobs, mask))
    return pessimistic_bound(ratio, advantages, mask, clip_low=clip_low, clip_high=clip_high, dual_clip=dual_clip)


def pessimistic_bound(
    ratio: Float[Array, "tokens"],
    advantages: Float[Array, "tokens"],
    mask: Bool[Array, "tokens"],
    *,
    clip_low: float,
    clip_high: float,
    dual_clip: float | None = None,
) -> Float[Array, "tokens"]:
    """`clipped_surrogate` of a ratio that is known, of a token or of its sequence."""
    clipped = jnp.clip(ratio, 1 - clip_low, 1 + clip_high)
    gain = jnp.minimum(ratio * advantages, clipped * advantages)
    if dual_clip is not None:
        gain = jnp.where(advantages < 0, jnp.maximum(gain, dual_clip * advantages), gain)
    return jnp.where(mask, -gain, 0.0)


def clip_sides(
    ratio: Float[Array, "tokens"],
    advantages: Float[Array, "tokens"],
    mask: Bool[Array, "tokens"],
    *,
    clip_low: float,
    clip_high: float,
    dual_clip: float | None = None,
) -> tuple[Bool[Array, "tokens"], Bool[Array, "tokens"]]:
    """Where `clipped_surrogate` is flat, so that the token pulls on nothing: (ratio too low, ratio too high)."""
    too_low = (advantages < 0) & (ratio < 1 - clip_low)
    too_high = (advantages > 0) & (ratio > 1 + clip_high)
    if dual_clip is not None:
        too_high = too_high | ((advantages < 0) & (ratio > dual_clip))
    return mask & too_low, mask & too_high


def cispo_surrogate(
    logprobs: Float[Array, "tokens"],
    behavior_logprobs: Float[Array, "tokens"],
    advantages: Float[Array, "tokens"],
    mask: Bool[Array, "tokens"],
    *,
    clip_low: float,
    clip_high: float,
) -> Float[Array, "tokens"]:
    """REINFORCE with a clipped weight: -sg[clip(ratio)] * A * logprob (arXiv:2506.13585, eq. 4).

    The weight is held and never the gradient: a token that has moved far still pulls. `clip_low` 1 is no lower bound.
    """
    ratio = jnp.exp(log_ratio(logprobs, behavior_logprobs, mask))
    weight = jax.lax.stop_gradient(jnp.clip(ratio, 1 - clip_low, 1 + clip_high))
    return jnp.where(mask, -weight * advantages * jnp.where(mask, logprobs, 0.0), 0.0)


def sequence_ratio(
    logprobs: Float[Array, "tokens"], behavior_logprobs: Float[Array, "tokens"], sequence: Int[Array, "tokens"]
) -> Float[Array, "tokens"]:
    """GSPO's ratio at each token (arXiv:2507.18071, eq. 7 and 14): exp(mean log ratio of its sequence).

    The value is the sequence's, the same at each of its tokens; the gradient is that of the token's own log-prob.
    """
    mask = sequence >= 0
    mean = sequence_mean(log_ratio(logprobs, behavior_logprobs, mask), sequence)
    own = jnp.where(mask, logprobs, 0.0)
    return jax.lax.stop_gradient(jnp.exp(mean)) * jnp.exp(own - jax.lax.stop_gradient(own))


def kl_divergence(
    logprobs: Float[Array, "tokens"],
    other_logprobs: Float[Array, "tokens"],
    mask: Bool[Array, "tokens"],
    *,
    estimator: KlEstimator,
) -> Float[Array, "tokens"]:
    """KL(policy || other) per token, with d = logprobs - other_logprobs, of tokens that the policy sampled.

    k1 = d (unbiased, of either sign), k2 = d^2 / 2, k3 = exp(-d) + d - 1 (unbiased, never negative).
    """
    difference = log_ratio(logprobs, other_logprobs, mask)
    if estimator is KlEstimator.K1:
        return difference
    if estimator is KlEstimator.K2:
        return difference * difference / 2
    return jnp.exp(-difference) + difference - 1

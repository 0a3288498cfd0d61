"""Tokens that another policy sampled -> how much each should count.

A token comes from the policy that was served when it was sampled (behavior); the gradient is of the policy that trains.
Between the two lies the proximal policy, around which a step is clipped. Decoupling them (arXiv:2110.00641) gives

    loss of a token = -weight * min(u * A, clip(u) * A)        u = policy / proximal, weight = proximal / behavior

The weight corrects for staleness and is held by a rule, as one token with a weight of a hundred drowns all others.
Versions may change within a sequence: every token has its own behavior log-prob, so nothing else is needed.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from components.algorithms.losses import LOG_RATIO_LIMIT, clipped_surrogate, log_ratio
from components.algorithms.sampled import sequence_mean, sequence_sum


def importance_ratio(
    logprobs: Float[Array, "tokens"], behavior_logprobs: Float[Array, "tokens"], mask: Bool[Array, "tokens"]
) -> Float[Array, "tokens"]:
    """policy / behavior per token, a constant for the gradient; 0 where masked. At most exp(20)."""
    ratio = jnp.exp(log_ratio(logprobs, behavior_logprobs, mask))
    return jax.lax.stop_gradient(jnp.where(mask, ratio, 0.0))


def truncated_importance_weight(ratio: Float[Array, "tokens"], *, cap: float) -> Float[Array, "tokens"]:
    """min(ratio, cap): every token still pulls, none by more than the cap (arXiv:1802.01561, eq. 1)."""
    return jnp.minimum(ratio, cap)


def masked_importance_weight(ratio: Float[Array, "tokens"], *, floor: float, cap: float) -> Float[Array, "tokens"]:
    """The ratio where floor <= ratio <= cap, else 0: a token that the policy has moved away from pulls on nothing."""
    return jnp.where((ratio >= floor) & (ratio <= cap), ratio, 0.0)


def sequence_importance_ratio(
    logprobs: Float[Array, "tokens"], behavior_logprobs: Float[Array, "tokens"], sequence: Int[Array, "tokens"]
) -> Float[Array, "tokens"]:
    """policy / behavior of the whole sequence, at each of its tokens; a constant, 0 at padding, within exp(+-20)."""
    mask = sequence >= 0
    total = sequence_sum(log_ratio(logprobs, behavior_logprobs, mask), sequence)
    ratio = jnp.exp(jnp.clip(total, -LOG_RATIO_LIMIT, LOG_RATIO_LIMIT))
    return jax.lax.stop_gradient(jnp.where(mask, ratio, 0.0))


def interpolated_proximal(
    logprobs: Float[Array, "tokens"],
    behavior_logprobs: Float[Array, "tokens"],
    versions: Int[Array, "tokens"],
    version: Int[Array, ""],
    mask: Bool[Array, "tokens"],
) -> Float[Array, "tokens"]:
    """Log-probs of the version before the trainer's, on the line between the policy and the one that sampled.

    log behavior + a (log policy - log behavior), a = (v - 1 - v_token) / (v - v_token), which saves a forward pass
    (https://inclusionai.github.io/AReaL/algorithms/prox_approx.html). A token of the trainer's own version, or of the
    one before, has a = 0. No gradient flows.
    """
    age = jnp.maximum(version - versions, 1).astype(jnp.float32)
    behavior = jnp.where(mask, behavior_logprobs, 0.0)
    return jax.lax.stop_gradient(behavior + (age - 1) / age * log_ratio(logprobs, behavior_logprobs, mask))


def geometric_keep(
    logprobs: Float[Array, "tokens"],
    behavior_logprobs: Float[Array, "tokens"],
    sequence: Int[Array, "tokens"],
    *,
    low: float | None,
    high: float | None,
) -> Bool[Array, "tokens"]:
    """True at the tokens of sequences with exp(mean log ratio) within [low, high]; None is no bound."""
    mask = sequence >= 0
    mean = jnp.exp(sequence_mean(log_ratio(logprobs, behavior_logprobs, mask), sequence))
    kept = mask
    if low is not None:
        kept = kept & (mean >= low)
    if high is not None:
        kept = kept & (mean <= high)
    return kept


def off_policy_keep(
    logprobs: Float[Array, "tokens"],
    behavior_logprobs: Float[Array, "tokens"],
    advantages: Float[Array, "tokens"],
    sequence: Int[Array, "tokens"],
    *,
    delta: float,
) -> Bool[Array, "tokens"]:
    """False at tokens with a negative advantage in a sequence that the policy has left (arXiv:2512.02556).

    It has left one when the mean of log(behavior / policy) over its tokens is above `delta`: what is already unlikely
    and was bad says little more, and pushes hardest.
    """
    mask = sequence >= 0
    drift = -sequence_mean(log_ratio(logprobs, behavior_logprobs, mask), sequence)
    return mask & ~((advantages < 0) & (drift > delta))


def decoupled_surrogate(
    logprobs: Float[Array, "tokens"],
    proximal_logprobs: Float[Array, "tokens"],
    importance: Float[Array, "tokens"],
    advantages: Float[Array, "tokens"],
    mask: Bool[Array, "tokens"],
    *,
    clip_low: float,
    clip_high: float,
    dual_clip: float | None = None,
) -> Float[Array, "tokens"]:
    """PPO's pessimistic bound around the proximal policy, times what each token counts (arXiv:2110.00641, eq. 12).

    `importance` is a held proximal / behavior. No gradient flows through it or through `proximal_logprobs`: with one
    update per batch the proximal policy is the present one, and its log-probs are `logprobs` themselves. Then u is 1,
    no clip binds, and the gradient is that of -importance * A * logprob.
    """
    proximal = jax.lax.stop_gradient(proximal_logprobs)
    surrogate = clipped_surrogate(
        logprobs, proximal, advantages, mask, clip_low=clip_low, clip_high=clip_high, dual_clip=dual_clip
    )
    return jax.lax.stop_gradient(importance) * surrogate

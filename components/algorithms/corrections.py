"""Tokens that another policy sampled -> how much each should count, and words for when that goes wrong.

A token comes from the policy that was served when it was sampled (behavior); the gradient is of the policy that trains.
Between the two lies the proximal policy, around which a step is clipped. Decoupling them (arXiv:2110.00641) gives

    loss of a token = -weight * min(u * A, clip(u) * A)        u = policy / proximal, weight = proximal / behavior

The weight corrects for staleness and is held by a rule, as one token with a weight of a hundred drowns all others.
Versions may change within a sequence: every token has its own behavior log-prob, so nothing else is needed.
"""

from collections.abc import Mapping
from enum import StrEnum

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from components.algorithms.losses import clipped_surrogate, log_ratio

LOW_SAMPLE_SIZE = 0.5


class Proximal(StrEnum):
    """The policy around which a step is clipped: the one that sampled, or the present one (at the step's start)."""

    BEHAVIOR = "behavior"
    CURRENT = "current"


class ImportanceRule(StrEnum):
    """How importance weights are held: cut at the cap, or zero outside of [floor, cap] (IcePop)."""

    TRUNCATE = "truncate"
    MASK = "mask"


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
    optimizer step per batch the proximal policy is the present one, and its log-probs are `logprobs` themselves. Then u
    is 1, no clip binds, and the gradient is that of -importance * A * logprob.
    """
    proximal = jax.lax.stop_gradient(proximal_logprobs)
    surrogate = clipped_surrogate(
        logprobs, proximal, advantages, mask, clip_low=clip_low, clip_high=clip_high, dual_clip=dual_clip
    )
    return jax.lax.stop_gradient(importance) * surrogate


def staleness_warnings(numbers: Mapping[str, float]) -> list[str]:
    """What a person should know of one optimizer step's `mean_statistics`: sentences, none when all is well."""
    size = numbers.get("effective_sample_size")
    if size is None or size >= LOW_SAMPLE_SIZE:
        return []
    head = f"effective_sample_size is {size:.2f}, below {LOW_SAMPLE_SIZE:g}: a few tokens outweigh all others, "
    if numbers.get("same_version_share") == 1.0:
        return [
            f"{head}although all were sampled at the trainer's own version. Engine and trainer compute different "
            f"log-probs (mismatch_kl {numbers.get('mismatch_kl', 0.0):.2g}): compare their dtypes and sampling settings"
        ]
    return [
        f"{head}as the policy has moved far from the versions that sampled them; the gradient is mostly noise and "
        "training may collapse. Lower rollout.max_staleness or the learning rate, or hold the weights with "
        "objective.proximal: current (with a lower objective.importance_cap where it is set already)"
    ]

"""The terms of an objective and the log-probs of a micro-batch -> the policy's loss per token, and what holds it."""

from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from components.algorithms.corrections import (
    decoupled_surrogate,
    geometric_keep,
    importance_ratio,
    interpolated_proximal,
    masked_importance_weight,
    off_policy_keep,
    sequence_importance_ratio,
    truncated_importance_weight,
)
from components.algorithms.losses import cispo_surrogate, clip_sides, log_ratio, pessimistic_bound, sequence_ratio
from components.algorithms.sampled import SampledTokens
from components.algorithms.terms import ImportanceLevel, ImportanceRule, Proximal, Surrogate, Terms


class PolicyLoss(NamedTuple):
    """Per token: the loss; the importance weight in use; where a bound holds the token from below and from above.

    `kept` is false at padding and at the tokens of sequences that a mask drops: their loss and weight are 0.
    """

    losses: Float[Array, "tokens"]
    importance: Float[Array, "tokens"]
    held_low: Bool[Array, "tokens"]
    held_high: Bool[Array, "tokens"]
    kept: Bool[Array, "tokens"]


def policy_loss(
    terms: Terms, logprobs: Float[Array, "tokens"], tokens: SampledTokens, version: Int[Array, ""] | None
) -> PolicyLoss:
    """The surrogate that the terms name, of all kept tokens; `version` is the policy's, for `interpolated`."""
    if terms.proximal is not Proximal.BEHAVIOR:
        found = _decoupled(terms, logprobs, tokens, version)
    elif terms.surrogate is Surrogate.CISPO:
        found = _cispo(terms, logprobs, tokens)
    else:
        found = _clipped(terms, logprobs, tokens)
    kept = _kept(terms, logprobs, tokens)
    return PolicyLoss(
        losses=jnp.where(kept, found.losses, 0.0),
        importance=jnp.where(kept, found.importance, 0.0),
        held_low=found.held_low & kept,
        held_high=found.held_high & kept,
        kept=kept,
    )


def _clipped(terms: Terms, logprobs: Float[Array, "tokens"], tokens: SampledTokens) -> PolicyLoss:
    """PPO's bound on the ratio of a token, or of its sequence."""
    behavior, mask = tokens.behavior_logprobs, tokens.mask
    if terms.surrogate is Surrogate.GSPO:
        ratio = sequence_ratio(logprobs, behavior, tokens.sequence)
    else:
        ratio = jnp.exp(log_ratio(logprobs, behavior, mask))
    bounds = _bounds(terms)
    losses = pessimistic_bound(ratio, tokens.advantages, mask, **bounds)
    low, high = clip_sides(ratio, tokens.advantages, mask, **bounds)
    return PolicyLoss(losses, jnp.where(mask, ratio, 0.0), low, high, mask)


def _cispo(terms: Terms, logprobs: Float[Array, "tokens"], tokens: SampledTokens) -> PolicyLoss:
    behavior, mask = tokens.behavior_logprobs, tokens.mask
    bounds = {"clip_low": terms.clip_low, "clip_high": terms.clip_high}
    losses = cispo_surrogate(logprobs, behavior, tokens.advantages, mask, **bounds)
    ratio = importance_ratio(logprobs, behavior, mask)
    weight = jnp.where(mask, jnp.clip(ratio, 1 - terms.clip_low, 1 + terms.clip_high), 0.0)
    return PolicyLoss(losses, weight, weight > ratio, weight < ratio, mask)


def _decoupled(
    terms: Terms, logprobs: Float[Array, "tokens"], tokens: SampledTokens, version: Int[Array, ""] | None
) -> PolicyLoss:
    """A step around the proximal policy, whose distance to the behavior policy is a held weight."""
    behavior, advantages, mask = tokens.behavior_logprobs, tokens.advantages, tokens.mask
    # One update per optimizer step: the policy at its start is the one whose log-probs these are.
    proximal = logprobs
    if terms.needs_proximal:
        if tokens.proximal_logprobs is None:
            raise ValueError("proximal is current and there are several updates: its log-probs are needed")
        proximal = tokens.proximal_logprobs
    if terms.proximal is Proximal.INTERPOLATED:
        if version is None:
            raise ValueError("proximal is interpolated: the policy's version is needed")
        proximal = interpolated_proximal(logprobs, behavior, tokens.versions, version, mask)
    if terms.importance_level is ImportanceLevel.SEQUENCE:
        ratio = sequence_importance_ratio(proximal, behavior, tokens.sequence)
    else:
        ratio = importance_ratio(proximal, behavior, mask)
    importance = _held(terms, ratio)
    bounds = _bounds(terms)
    losses = decoupled_surrogate(logprobs, proximal, importance, advantages, mask, **bounds)
    low, high = clip_sides(jnp.exp(log_ratio(logprobs, proximal, mask)), advantages, mask, **bounds)
    dropped = mask & (importance != ratio)
    too_heavy = dropped & (ratio > (terms.importance_cap or 0.0))
    return PolicyLoss(losses, importance, low | (dropped & ~too_heavy), high | too_heavy, mask)


def _bounds(terms: Terms) -> dict[str, Any]:
    return {"clip_low": terms.clip_low, "clip_high": terms.clip_high, "dual_clip": terms.dual_clip}


def _held(terms: Terms, ratio: Float[Array, "tokens"]) -> Float[Array, "tokens"]:
    assert terms.importance_cap is not None, "a preset fills it in"
    if terms.importance_rule is ImportanceRule.TRUNCATE:
        return truncated_importance_weight(ratio, cap=terms.importance_cap)
    assert terms.importance_floor is not None, "a preset fills it in"
    return masked_importance_weight(ratio, floor=terms.importance_floor, cap=terms.importance_cap)


def _kept(terms: Terms, logprobs: Float[Array, "tokens"], tokens: SampledTokens) -> Bool[Array, "tokens"]:
    kept, behavior = tokens.mask, tokens.behavior_logprobs
    if terms.geometric_low is not None or terms.geometric_high is not None:
        bounds = {"low": terms.geometric_low, "high": terms.geometric_high}
        kept = kept & geometric_keep(logprobs, behavior, tokens.sequence, **bounds)
    if terms.off_policy_delta is not None:
        delta = terms.off_policy_delta
        kept = kept & off_policy_keep(logprobs, behavior, tokens.advantages, tokens.sequence, delta=delta)
    return kept

"""Sums of log-probs over answers, two answers a pair -> the losses of preference tuning, one number per pair.

A micro-batch holds both answers of a pair, one behind the other: sequence 2k is the answer that was chosen over
sequence 2k + 1. Arrays have a place for every pair that could be there; `there` is false where there is none.
"""

from enum import StrEnum
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int


class PreferenceLoss(StrEnum):
    """How DPO bounds a margin: a logistic loss (arXiv:2305.18290), or a square around 1 / (2 beta) (IPO)."""

    SIGMOID = "sigmoid"
    IPO = "ipo"


class Pairs(NamedTuple):
    """One number for each answer of each pair."""

    chosen: Float[Array, " pairs"]
    rejected: Float[Array, " pairs"]
    there: Bool[Array, " pairs"]

    @property
    def margin(self) -> Float[Array, " pairs"]:
        """By how much the chosen answer's number is the larger; 0 where there is no pair."""
        return self.chosen - self.rejected


def pair_sums(values: Float[Array, " tokens"], sequence: Int[Array, " tokens"]) -> Pairs:
    """The sum of `values` over each answer; 0 where there is no pair."""
    # As many places as there may be answers, and one behind them for padding.
    places = 2 * -(-len(sequence) // 2)
    mask = sequence >= 0
    segments = jnp.where(mask, sequence, places)
    kept = jnp.where(mask, values, 0.0)
    sums = jax.ops.segment_sum(kept, segments, num_segments=places + 1)[:places]
    counts = jax.ops.segment_sum(mask.astype(jnp.int32), segments, num_segments=places + 1)[:places]
    return Pairs(sums[0::2], sums[1::2], (counts[0::2] > 0) & (counts[1::2] > 0))


def pair_means(values: Float[Array, " tokens"], sequence: Int[Array, " tokens"]) -> Pairs:
    """The mean of `values` over the tokens of each answer; 0 where there is no pair."""
    sums = pair_sums(values, sequence)
    lengths = pair_sums(jnp.ones_like(values), sequence)
    return Pairs(
        sums.chosen / jnp.maximum(lengths.chosen, 1.0), sums.rejected / jnp.maximum(lengths.rejected, 1.0), sums.there
    )


def dpo_losses(
    margins: Float[Array, " pairs"],
    *,
    beta: float,
    label_smoothing: float = 0.0,
    loss: PreferenceLoss = PreferenceLoss.SIGMOID,
) -> Float[Array, " pairs"]:
    """DPO (arXiv:2305.18290, eq. 7): -log sigmoid(beta * margin).

    A margin is (log pi - log pi_ref) of the chosen answer minus that of the rejected one, each summed over the answer's
    tokens. `label_smoothing` is the share of pairs that are taken to be the wrong way round (conservative DPO:
    (1 - s) * loss(margin) + s * loss(-margin)). IPO (arXiv:2310.12036, eq. 17): (margin - 1 / (2 beta)) ** 2.
    """
    if loss is PreferenceLoss.IPO:
        return (margins - 1 / (2 * beta)) ** 2
    right, wrong = jax.nn.log_sigmoid(beta * margins), jax.nn.log_sigmoid(-beta * margins)
    return -(1 - label_smoothing) * right - label_smoothing * wrong


def log_odds(mean_logprobs: Float[Array, " answers"]) -> Float[Array, " answers"]:
    """log(P / (1 - P)) with P = exp(mean log-prob), the odds of ORPO (arXiv:2403.07691, eq. 4)."""
    # P = 1 has no odds: the largest float32 below 1 stands for it.
    logprobs = jnp.minimum(mean_logprobs, -6e-8)
    return logprobs - jnp.log(-jnp.expm1(logprobs))


def odds_ratio_losses(means: Pairs) -> Float[Array, " pairs"]:
    """ORPO's second term (arXiv:2403.07691, eq. 7): -log sigmoid(log odds of the chosen - log odds of the rejected)."""
    return -jax.nn.log_sigmoid(log_odds(means.chosen) - log_odds(means.rejected))


def right_share(margins: Float[Array, " pairs"]) -> Float[Array, " pairs"]:
    """1 where the chosen answer is ahead, 0 where the rejected one is, and one half where neither is."""
    return (jnp.sign(margins) + 1) / 2

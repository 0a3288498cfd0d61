"""The sampled tokens of a micro-batch, beside their log-probs, and sums over the sequences that they belong to.

Flat arrays, one entry per token that the policy sampled, several sequences one after another. What concerns a whole
sequence is a sum over equal numbers in `sequence`, so it is the same however sequences are packed into rows.
"""

from typing import no_type_check

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int


@no_type_check  # its leaves may stand for arrays: shapes, shardings, nothing
@struct.dataclass
class SampledTokens:
    """What an objective knows of the sampled tokens of a micro-batch, beside their log-probs.

    `sequence` tells samples apart (0, 1, ... within the micro-batch; -1 is padding). All tokens of a sample are in one
    micro-batch. `versions` is the policy version that sampled the token. The last four are there where an objective
    needs them: the log-probs at the step's start, the reference's, what the critic expected at the step's start, and
    what it should have expected.
    """

    behavior_logprobs: Float[Array, "tokens"]
    advantages: Float[Array, "tokens"]
    weights: Float[Array, "tokens"]
    sequence: Int[Array, "tokens"]
    versions: Int[Array, "tokens"]
    proximal_logprobs: Float[Array, "tokens"] | None = None
    reference_logprobs: Float[Array, "tokens"] | None = None
    values: Float[Array, "tokens"] | None = None
    returns: Float[Array, "tokens"] | None = None

    @property
    def mask(self) -> Bool[Array, "tokens"]:
        """False for padding."""
        return self.sequence >= 0


def sequence_sum(values: Float[Array, "tokens"], sequence: Int[Array, "tokens"]) -> Float[Array, "tokens"]:
    """At each token the sum over its sequence; `values` must be 0 at padding, and padding gets 0."""
    places = len(sequence)
    # Padding has a place of its own behind all sequences, of which there are at most as many as tokens.
    segments = jnp.where(sequence >= 0, sequence, places)
    return jax.ops.segment_sum(values, segments, num_segments=places + 1)[segments]


def sequence_mean(values: Float[Array, "tokens"], sequence: Int[Array, "tokens"]) -> Float[Array, "tokens"]:
    """At each token the mean over its sequence; `values` must be 0 at padding, and padding gets 0."""
    lengths = sequence_sum((sequence >= 0).astype(jnp.float32), sequence)
    return sequence_sum(values, sequence) / jnp.maximum(lengths, 1.0)

"""What is taken off a reward before it becomes an advantage: for length, and for distance to the reference policy."""

import numpy as np
from jaxtyping import Float

from components.algorithms.losses import LOG_RATIO_LIMIT, KlEstimator


def overlong_penalty(length: int, *, limit: int, buffer: int) -> float:
    """0 up to `limit` - `buffer` sampled tokens, then linear to -1 at `limit` and beyond (arXiv:2503.14476, eq. 13).

    `buffer` 0 is a step: -1 for more than `limit` tokens.
    """
    over = length - (limit - buffer)
    if over <= 0:
        return 0.0
    return -min(over / buffer, 1.0) if buffer else -1.0


def kl_charges(
    logprobs: Float[np.ndarray, " tokens"], reference_logprobs: Float[np.ndarray, " tokens"], estimator: KlEstimator
) -> Float[np.ndarray, " tokens"]:
    """KL(policy || reference) per token, of the policy that sampled; to be charged to its rewards. No gradient.

    k1 = d has the gradient of the KL when it is in the reward, with d = logprob - reference held within +-20.
    """
    difference = np.clip(logprobs - reference_logprobs, -LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    if estimator is KlEstimator.K1:
        return difference
    if estimator is KlEstimator.K2:
        return difference * difference / 2
    return np.exp(-difference) + difference - 1

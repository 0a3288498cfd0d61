"""What a critic expects and what came -> its loss per token, and how much of what came it had foreseen.

Flat arrays as in `losses`: one entry per sampled token, and 0 with gradient 0 where `mask` is false.
"""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float


def clipped_value_loss(
    values: Float[Array, "tokens"],
    old_values: Float[Array, "tokens"],
    returns: Float[Array, "tokens"],
    mask: Bool[Array, "tokens"],
    *,
    clip: float,
) -> tuple[Float[Array, "tokens"], Bool[Array, "tokens"]]:
    """Half the larger of (V - G)^2 and (V held within `clip` of V0 - G)^2, and where the second is the larger.

    There the loss is flat: a value that has moved that far from V0 towards or beyond its return pulls no more
    (arXiv:2005.12729, section 2). `clip` 0 is no clip. G are `returns`, V0 `old_values`: neither has a gradient.
    """
    free = jnp.where(mask, jnp.square(values - returns), 0.0)
    if not clip:
        return free / 2, jnp.zeros_like(mask)
    held = jnp.clip(values, old_values - clip, old_values + clip)
    bound = jnp.where(mask, jnp.square(held - returns), 0.0)
    return jnp.maximum(free, bound) / 2, bound > free


def explained_variance(values: Float[np.ndarray, " tokens"], returns: Float[np.ndarray, " tokens"]) -> float:
    """1 - Var(G - V) / Var(G): 1 is a perfect critic, 0 one that says the same everywhere, below 0 a harmful one.

    0 where returns are all equal, or there are none: then there is nothing to explain. Equal is decided by max - min.
    """
    if returns.size == 0 or float(np.ptp(returns)) == 0.0:
        return 0.0
    return float(1.0 - np.var(returns - values) / np.var(returns))

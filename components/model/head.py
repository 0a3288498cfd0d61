"""Hidden states and targets -> log-probs and entropies, without ever holding tokens x vocabulary numbers."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from components.model.architecture import Architecture
from components.model.base import Base
from components.model.decoder import logits


def token_logprobs(
    architecture: Architecture,
    base: Base,
    hidden: Float[Array, "tokens d_model"],
    targets: Int[Array, " tokens"],
    *,
    temperature: float = 1.0,
    chunk: int = 256,
) -> tuple[Float[Array, " tokens"], Float[Array, " tokens"]]:
    """Per token, the log-prob (nats) of its target under softmax(logits / temperature), and that softmax's entropy.

    Works on `chunk` tokens at a time and computes their logits again in the backward pass, so that memory is
    chunk x vocabulary. The temperature must be above 0.
    """
    tokens, width = hidden.shape
    chunks = max(1, -(-tokens // chunk))
    size = -(-tokens // chunks)
    short = chunks * size - tokens
    folded = jnp.pad(hidden, ((0, short), (0, 0))).reshape(chunks, size, width)
    folded_targets = jnp.pad(targets, (0, short)).reshape(chunks, size)

    @jax.checkpoint
    def score(
        part: tuple[Float[Array, "size d_model"], Int[Array, " size"]],
    ) -> tuple[Float[Array, " size"], Float[Array, " size"]]:
        logprobs = jax.nn.log_softmax(logits(architecture, base, part[0]) / temperature)
        entropy = -jnp.sum(jnp.exp(logprobs) * logprobs, axis=-1)
        return jnp.take_along_axis(logprobs, part[1][:, None], axis=-1)[:, 0], entropy

    logprobs, entropy = jax.lax.map(score, (folded, folded_targets))
    return logprobs.reshape(-1)[:tokens], entropy.reshape(-1)[:tokens]

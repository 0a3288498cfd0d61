"""The chunked head against the dense one."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from components.model.architecture import Architecture
from components.model.decoder import logits
from components.model.head import token_logprobs
from components.model.weights import random_base
from tests.model.tiny import CONFIGS

ARCHITECTURE = Architecture.from_huggingface(CONFIGS["gemma2"])
BASE = random_base(jax.random.key(0), ARCHITECTURE)
HIDDEN = jax.random.normal(jax.random.key(1), (23, 32))
TARGETS = jnp.arange(23) * 5 % 61


def dense(hidden, temperature):
    everything = jax.nn.log_softmax(logits(ARCHITECTURE, BASE, hidden) / temperature)
    return everything[jnp.arange(23), TARGETS], -jnp.sum(jnp.exp(everything) * everything, axis=-1)


def chunked(hidden, temperature, chunk=5):
    return token_logprobs(ARCHITECTURE, BASE, hidden, TARGETS, temperature=temperature, chunk=chunk)


@pytest.mark.parametrize("temperature", [1.0, 0.5])
@pytest.mark.parametrize("chunk", [5, 23, 100])
def test_logprobs_and_entropies_equal_the_dense_ones(temperature: float, chunk: int) -> None:
    for got, expected in zip(chunked(HIDDEN, temperature, chunk), dense(HIDDEN, temperature), strict=True):
        np.testing.assert_allclose(got, expected, atol=1e-5)


def test_gradients_equal_the_dense_ones() -> None:
    def loss(function):
        return lambda hidden: sum(jnp.sum(jnp.sin(part)) for part in function(hidden, 0.7))

    np.testing.assert_allclose(jax.grad(loss(chunked))(HIDDEN), jax.grad(loss(dense))(HIDDEN), atol=1e-5)


def test_a_uniform_distribution_has_the_log_of_the_vocabulary_as_entropy() -> None:
    logprobs, entropy = chunked(jnp.zeros((23, 32)), 1.0)
    np.testing.assert_allclose(entropy, np.log(61), rtol=1e-6)
    np.testing.assert_allclose(logprobs, -np.log(61), rtol=1e-6)


def test_no_array_of_tokens_by_vocabulary_is_made_forward_or_backward() -> None:
    tokens, chunk = 512, 16
    hidden, targets = jnp.zeros((tokens, 32)), jnp.zeros(tokens, int)

    def loss(hidden):
        return jnp.sum(token_logprobs(ARCHITECTURE, BASE, hidden, targets, temperature=1.0, chunk=chunk)[0])

    memory = jax.jit(jax.grad(loss)).lower(hidden).compile().memory_analysis()
    assert memory.temp_size_in_bytes < tokens * ARCHITECTURE.vocab_size * 4

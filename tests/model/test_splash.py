"""The kernel for TPUs, interpreted here, computes what plain attention does."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from components.model import attention, platform, splash
from components.model.architecture import Architecture
from components.model.base import random_base
from components.model.decoder import forward
from tests.model.tiny import CONFIGS

# Soft caps, a window of 4, two query heads for each key head of 12 numbers.
ARCHITECTURE = Architecture.from_huggingface(CONFIGS["gemma2"])
LENGTHS = (70, 60)
TIME = 160
SEGMENTS = np.repeat([1, 2, 0], [*LENGTHS, TIME - sum(LENGTHS)])[None]
POSITIONS = np.concatenate([np.arange(length) for length in (*LENGTHS, TIME - sum(LENGTHS))])[None]


def arrays() -> list[jax.Array]:
    """Queries, keys, values and what the outputs are weighted with."""
    shapes = [(1, TIME, 4, 12), (1, TIME, 2, 12), (1, TIME, 2, 12), (1, TIME, 4, 12)]
    return [jax.random.normal(jax.random.key(number), shape) for number, shape in enumerate(shapes)]


@pytest.mark.parametrize("window", [None, 40])
def test_outputs_and_gradients_are_those_of_plain_attention(window):
    distance = POSITIONS[:, :, None] - POSITIONS[:, None, :]
    same = SEGMENTS[:, :, None] == SEGMENTS[:, None, :]
    mask = jnp.asarray((distance >= 0) & same & (distance < (window or TIME)))
    *operands, weights = arrays()
    weights = weights * (SEGMENTS > 0)[:, :, None, None]

    def plain(queries, keys, values):
        mixed = attention.attend(ARCHITECTURE, queries, keys.transpose(0, 2, 3, 1), values.transpose(0, 2, 1, 3), mask)
        return jnp.sum(mixed * weights)

    def fused(queries, keys, values):
        segments = jnp.asarray(SEGMENTS)
        mixed = splash.attend(ARCHITECTURE, queries, keys, values, segments, window=window, interpret=True)
        return jnp.sum(mixed * weights)

    wanted, found = (jax.jit(jax.value_and_grad(each, argnums=(0, 1, 2)))(*operands) for each in (plain, fused))
    for one, other in zip(jax.tree.leaves(wanted), jax.tree.leaves(found), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


def test_a_platform_with_the_kernel_gives_the_hidden_states_of_one_without(monkeypatch):
    base = random_base(jax.random.key(0), ARCHITECTURE)
    tokens = np.random.default_rng(0).integers(0, ARCHITECTURE.vocab_size, SEGMENTS.shape)
    arguments = ARCHITECTURE, base, None, jnp.asarray(tokens), jnp.asarray(POSITIONS), jnp.asarray(SEGMENTS)
    plain = forward(*arguments)
    here = dataclasses.replace(platform.current(), packed_attention="interpreted")
    monkeypatch.setattr(platform, "current", lambda: here)
    # A pass without gradients runs op by op here: compiling the interpreted kernel for every layer takes longer.
    fused = forward(*arguments)
    real = SEGMENTS > 0
    np.testing.assert_allclose(plain[real], fused[real], rtol=1e-4, atol=1e-5)


def test_the_platforms_differ_where_it_was_measured():
    assert platform.TPU.packed_attention == "splash"
    assert platform.GPU.packed_attention == platform.CPU.packed_attention == "plain"

"""Rematerialising changes the memory of a gradient, not the gradient."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from components.model.architecture import Architecture
from components.model.decoder import forward
from components.model.lora import LoraConfig, init_adapter
from components.model.remat import Remat, rematerialise
from components.model.weights import random_base
from tests.model.tiny import CONFIGS

ARCHITECTURE = Architecture.from_huggingface({**CONFIGS["gemma3"], "num_hidden_layers": 6, "layer_types": None})
BASE = random_base(jax.random.key(0), ARCHITECTURE)
ADAPTER = init_adapter(jax.random.key(1), ARCHITECTURE, LoraConfig(rank=2))
KINDS = ("full", "linear_outputs", "none")
IDS = jnp.arange(4 * 64).reshape(4, 64) % 61


def loss(adapter, base, *, remat: Remat):
    positions = jnp.broadcast_to(jnp.arange(64), IDS.shape)
    hidden = forward(ARCHITECTURE, base, adapter, IDS, positions, jnp.ones_like(IDS), remat=remat)
    return jnp.sum(jnp.sin(hidden))


@functools.cache
def compiled(remat: Remat, wanted: int | tuple[int, ...]):
    return jax.jit(jax.grad(functools.partial(loss, remat=remat), argnums=wanted)).lower(ADAPTER, BASE).compile()


@pytest.mark.parametrize(("remat", "wanted"), [("full", 0), ("full", (0, 1)), ("linear_outputs", 0)])
def test_the_gradient_of_adapter_and_base_is_the_same_whatever_is_kept(remat, wanted) -> None:
    plain, again = (compiled(each, wanted)(ADAPTER, BASE) for each in ("none", remat))
    for expected, got in zip(jax.tree.leaves(plain), jax.tree.leaves(again), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-3)


def test_the_memory_of_a_gradient_is_less_than_half() -> None:
    plain, again = (compiled(remat, 0).memory_analysis().temp_size_in_bytes for remat in ("none", "full"))
    assert again < plain / 2


def test_keeping_the_outputs_of_linear_layers_takes_memory_between_the_two() -> None:
    full, kept, plain = (compiled(remat, 0).memory_analysis().temp_size_in_bytes for remat in KINDS)
    assert full < kept < plain


def test_a_gradient_that_is_not_a_number_stays_one() -> None:
    def times(x, y):
        return x * y

    gradient = jax.grad(lambda x: jnp.sum(rematerialise(times)(x, jnp.ones(3)) * jnp.asarray([jnp.nan, 1.0, 1.0])))
    assert jnp.isnan(gradient(jnp.ones(3))[0])


def test_only_what_is_differentiated_is_computed() -> None:
    def product(x, weight):
        return x @ weight

    def use(x, weight):
        return jnp.sum(rematerialise(product)(x, weight))

    text = str(jax.make_jaxpr(jax.grad(use))(jnp.ones((5, 3)), jnp.ones((3, 4))))
    # Forward and backward to x; the product that the weight's gradient would take, (3, 5) by (5, 4), is not there.
    assert "f32[5,3] = dot_general" in text
    assert "f32[3,4] = dot_general" not in text
    assert "f32[4,3] = dot_general" not in text

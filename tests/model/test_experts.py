"""Experts: whatever else is in the batch, each token gets the sum of its own, weighted as its router says."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from components.model import platform
from components.model.architecture import Architecture
from components.model.base import Experts, random_base
from components.model.decoder import matmul
from components.model.experts import mix, route
from components.model.quantise import Kind, quantise_tree
from components.model.switches import Mixture
from tests.model.tiny import CONFIGS, dense_tree, quick_jit


def random_experts(mixture: Mixture, d_model: int = 6) -> Experts:
    keys = jax.random.split(jax.random.key(0), 3)
    return Experts(
        router=jax.random.normal(keys[0], (d_model, mixture.count)),
        gate_up=0.4 * jax.random.normal(keys[1], (mixture.count, d_model, 2 * mixture.d_ff)),
        down=0.4 * jax.random.normal(keys[2], (mixture.count, mixture.d_ff, d_model)),
    )


def one_by_one(mixture: Mixture, experts: Experts, x: np.ndarray) -> np.ndarray:
    """The same by two plain loops."""
    result = np.zeros_like(x)
    for row, token in enumerate(x):
        scores = np.exp(token @ experts.router)
        probabilities = scores / scores.sum()
        chosen = np.argsort(-probabilities)[: mixture.per_token]
        for expert in chosen:
            gate, up = np.split(token @ experts.gate_up[expert], 2)
            weight = probabilities[expert] / (probabilities[chosen].sum() if mixture.normalised else 1)
            result[row] += weight * ((gate / (1 + np.exp(-gate)) * up) @ experts.down[expert])
    return result


@pytest.fixture(params=["blocks", "ragged"])
def each_product(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = dataclasses.replace(platform.CPU, ragged_products=request.param == "ragged")
    monkeypatch.setattr(platform, "current", lambda: chosen)


@pytest.mark.usefixtures("each_product")
@pytest.mark.parametrize(
    ("tokens", "count", "per_token", "normalised"),
    [(1, 4, 4, False), (3, 40, 2, True), (70, 3, 1, True), (50, 5, 2, False)],
)
def test_every_token_reaches_all_of_its_experts(tokens: int, count: int, per_token: int, normalised: bool) -> None:
    mixture = Mixture(count, per_token, d_ff=4, layers=(0,), normalised=normalised)
    experts, x = random_experts(mixture), jax.random.normal(jax.random.key(1), (tokens, 6))
    mixed = quick_jit(lambda x: mix(mixture, experts, x, x, product=matmul, activate=jax.nn.silu))(x)
    np.testing.assert_allclose(mixed, one_by_one(mixture, experts, np.asarray(x)), atol=1e-5)


@pytest.mark.usefixtures("each_product")
def test_experts_that_all_tokens_choose_and_experts_that_none_does_are_served() -> None:
    mixture = Mixture(4, 2, d_ff=4, layers=(0,))
    experts = random_experts(mixture)
    experts = dataclasses.replace(experts, router=jnp.zeros((6, 4)).at[0].set(jnp.asarray([9.0, 0.0, 8.0, 0.0])))
    x = jax.random.normal(jax.random.key(1), (37, 6)).at[:, 0].set(1.0)
    weights, chosen = route(mixture, experts, x @ experts.router)
    assert {tuple(row) for row in np.asarray(chosen)} == {(0, 2)}
    np.testing.assert_allclose(weights[0], [1 / (1 + np.exp(-1)), 1 / (1 + np.exp(1))], rtol=1e-6)
    mixed = quick_jit(lambda x: mix(mixture, experts, x, x, product=matmul, activate=jax.nn.silu))(x)
    np.testing.assert_allclose(mixed, one_by_one(mixture, experts, np.asarray(x)), atol=1e-5)


@pytest.mark.usefixtures("each_product")
@pytest.mark.parametrize("kind", ["int8", "nf4"])
def test_quantised_experts_are_the_numbers_that_they_stand_for(kind: Kind) -> None:
    mixture = Mixture(4, 2, d_ff=4, layers=(0,))
    stored = quantise_tree(random_experts(mixture), kind, jnp.float32)
    x = jax.random.normal(jax.random.key(1), (9, 6))
    mixed = quick_jit(lambda x: mix(mixture, stored, x, x, product=matmul, activate=jax.nn.silu))(x)
    np.testing.assert_allclose(mixed, one_by_one(mixture, dense_tree(stored), np.asarray(x)), atol=1e-5)


@pytest.mark.usefixtures("each_product")
def test_bfloat16_experts_have_a_float32_gradient_of_what_they_read() -> None:
    mixture = Mixture(4, 2, d_ff=4, layers=(0,))
    exact = random_experts(mixture)
    rounded = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), exact)
    x = jax.random.normal(jax.random.key(1), (9, 6))

    def loss(x: jax.Array, experts: Experts) -> jax.Array:
        return jnp.sum(jnp.sin(mix(mixture, experts, x, x, product=matmul, activate=jax.nn.silu)))

    gradient, wanted = (quick_jit(jax.grad(loss))(x, experts) for experts in (rounded, exact))
    assert gradient.dtype == jnp.float32
    assert 0 < jnp.linalg.norm(gradient - wanted) < 0.02 * jnp.linalg.norm(wanted)


def test_only_layers_of_a_mixture_have_experts() -> None:
    base = random_base(jax.random.key(0), Architecture.from_huggingface(CONFIGS["qwen3_moe"]))
    assert [layer.experts is None for layer in base.layers] == [False, True, False]
    assert [layer.gate_proj is None for layer in base.layers] == [True, False, True]

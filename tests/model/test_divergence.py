"""Two heads read block by block against the plain formula over the whole vocabulary."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from components.model.divergence import Side, token_divergences
from components.model.head import head_of
from components.model.quantise import Kind, dense
from tests.model.test_head import TOKENS, WIDTH, made
from tests.model.tiny import quick_jit

HIDDEN = jax.random.normal(jax.random.key(1), (TOKENS, WIDTH))
TAUGHT = jax.random.normal(jax.random.key(3), (TOKENS, WIDTH))


def plain(side: Side, temperature: float) -> jax.Array:
    head = dense(head_of(side.base)).astype(jnp.float32)
    scores = side.hidden @ head.T
    cap = side.architecture.final_softcap
    return jax.nn.log_softmax((scores if cap is None else cap * jnp.tanh(scores / cap)) / temperature)


@pytest.mark.parametrize(("policy", "teacher", "kind"), [("llama", "gemma2", "none"), ("gemma2", "llama", "int8")])
def test_values_and_gradients_equal_those_of_the_formula(policy: str, teacher: str, kind: Kind) -> None:
    student, tutor = made(policy), made(teacher, quantise=kind)

    def chunked(hidden):
        sides = Side(*student, hidden), Side(*tutor, TAUGHT)
        return token_divergences(*sides, temperature=0.7, chunk=5, block_rows=16)

    def formula(hidden):
        p, t = plain(Side(*student, hidden), 0.7), plain(Side(*tutor, TAUGHT), 0.7)
        return jnp.sum(jnp.exp(t) * (t - p), axis=-1), jnp.sum(jnp.exp(p) * (p - t), axis=-1)

    @functools.partial(quick_jit, static_argnums=0)
    def both(function, hidden):
        def loss(hidden):
            forward, reverse = function(hidden)
            return jnp.sum(jnp.sin(forward)) + jnp.sum(jnp.cos(reverse)), (forward, reverse)

        gradient, values = jax.grad(loss, has_aux=True)(hidden)
        return *values, gradient

    for found, wanted in zip(both(chunked, HIDDEN), both(formula, HIDDEN), strict=True):
        np.testing.assert_allclose(found, wanted, atol=2e-5)
    assert min(float(each.min()) for each in formula(HIDDEN)) > 0.01


def test_two_outcomes_by_hand() -> None:
    """Teacher (3/4, 1/4) and policy (1/2, 1/2): 3/4 log(3/2) + 1/4 log(1/2), and 1/2 log(2/3) + 1/2 log 2."""
    architecture, base = made("llama")
    two = base.replace(head=jnp.eye(2, WIDTH))
    hidden, taught = jnp.zeros((1, WIDTH)), jnp.zeros((1, WIDTH)).at[0, 0].set(np.log(3.0))
    forward, reverse = token_divergences(Side(architecture, two, hidden), Side(architecture, two, taught))
    np.testing.assert_allclose(forward, [0.75 * np.log(1.5) + 0.25 * np.log(0.5)], rtol=1e-5)
    np.testing.assert_allclose(reverse, [0.5 * np.log(2 / 3) + 0.5 * np.log(2.0)], rtol=1e-5)


def test_a_policy_is_not_apart_from_itself() -> None:
    architecture, base = made("gemma2")
    forward, reverse = token_divergences(Side(architecture, base, HIDDEN), Side(architecture, base, HIDDEN))
    np.testing.assert_allclose([forward, reverse], 0.0, atol=1e-6)


def test_no_array_of_tokens_and_vocabulary_is_made() -> None:
    """4096 tokens and 262,144 words are 4 GiB of float32, forward and backward; a block of a chunk is 8 MiB."""
    architecture, base = made("llama")
    shape = jax.ShapeDtypeStruct
    large = base.replace(embedding=shape((262_144, 64), jnp.float32), head=shape((262_144, 64), jnp.float32))

    def loss(hidden, policy, teacher, taught):
        forward, reverse = token_divergences(Side(architecture, policy, hidden), Side(architecture, teacher, taught))
        return jnp.sum(forward) + jnp.sum(reverse)

    hidden = shape((4096, 64), jnp.float32)
    memory = jax.jit(jax.grad(loss)).lower(hidden, large, large, hidden).compile().memory_analysis()
    assert memory.temp_size_in_bytes < 200e6


def test_vocabularies_of_two_sizes_are_refused() -> None:
    architecture, base = made("llama")
    other = base.replace(head=base.head[:-1])
    with pytest.raises(ValueError, match="must be alike"):
        token_divergences(Side(architecture, base, HIDDEN), Side(architecture, other, HIDDEN))

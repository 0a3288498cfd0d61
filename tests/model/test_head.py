"""The head that reads the vocabulary block by block against the plain formula over all of it."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from components.model.architecture import Architecture
from components.model.base import Base
from components.model.decoder import logits
from components.model.head import token_logprobs
from components.model.quantise import Kind, dense, quantise_tree
from tests.model.tiny import CONFIGS, quick_jit

TOKENS, WIDTH, VOCAB = 23, 32, 61
HIDDEN = jax.random.normal(jax.random.key(1), (TOKENS, WIDTH))
TARGETS = jnp.arange(TOKENS) * 5 % VOCAB
LARGE_VOCAB, LARGE_TOKENS, LARGE_WIDTH = 262_144, 4096, 64


def made(family: str, dtype: str = "float32", quantise: Kind = "none") -> tuple[Architecture, Base]:
    """An architecture and what the head needs of its base."""
    architecture = Architecture.from_huggingface(CONFIGS[family])
    embedding, head = 0.3 * jax.random.normal(jax.random.key(2), (2, VOCAB, WIDTH))
    base = Base(embedding=embedding, layers=(), final_norm=jnp.ones(WIDTH))
    base = base if architecture.tie_embeddings else dataclasses.replace(base, head=head)
    if quantise != "none":
        return architecture, quantise_tree(base, quantise, dtype)
    return architecture, jax.tree.map(lambda leaf: leaf.astype(dtype), base)


def plain(architecture: Architecture, base: Base, hidden: jax.Array, temperature: float) -> tuple[jax.Array, jax.Array]:
    """The formula, over all tokens and all of the vocabulary, of the numbers that the head stands for."""
    head = dense(base.embedding if base.head is None else base.head)
    scores = hidden.astype(head.dtype).astype(jnp.float32) @ head.astype(jnp.float32).T
    if architecture.final_softcap is not None:
        scores = architecture.final_softcap * jnp.tanh(scores / architecture.final_softcap)
    everything = jax.nn.log_softmax(scores / temperature)
    return everything[jnp.arange(TOKENS), TARGETS], -jnp.sum(jnp.exp(everything) * everything, axis=-1)


def chunked(
    architecture: Architecture, base: Base, hidden: jax.Array, temperature: float, chunk: int = 5, block_rows: int = 16
) -> tuple[jax.Array, jax.Array]:
    return token_logprobs(
        architecture, base, hidden, TARGETS, temperature=temperature, chunk=chunk, block_rows=block_rows
    )


HEADS = [
    ("llama", "float32", "none"),
    ("llama_tied", "float32", "none"),
    ("gemma2", "float32", "none"),
    ("gemma2", "bfloat16", "none"),
    ("llama", "float32", "int8"),
    ("gemma2", "bfloat16", "nf4"),
]


@pytest.mark.parametrize(("family", "dtype", "quantise"), HEADS)
def test_values_and_gradients_equal_those_of_the_formula(family: str, dtype: str, quantise: Kind) -> None:
    architecture, base = made(family, dtype, quantise)

    @functools.partial(quick_jit, static_argnums=0)
    def both(function, hidden):
        def loss(hidden):
            logprobs, entropy = function(architecture, base, hidden, 0.7)
            return jnp.sum(jnp.sin(logprobs)) + jnp.sum(jnp.cos(entropy)), (logprobs, entropy)

        gradient, values = jax.grad(loss, has_aux=True)(hidden)
        return *values, gradient

    *found, found_gradient = both(chunked, HIDDEN)
    *wanted, wanted_gradient = both(plain, HIDDEN)
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)
    # A bfloat16 head is multiplied by a gradient that is rounded to bfloat16 first.
    np.testing.assert_allclose(found_gradient, wanted_gradient, atol=1e-5 if dtype == "float32" else 1e-2)


@pytest.mark.parametrize(("chunk", "block_rows"), [(5, 61), (23, 60), (100, 20), (100, 1000)])
def test_chunks_and_blocks_of_any_size_give_the_same(chunk: int, block_rows: int) -> None:
    architecture, base = made("gemma2")
    found = chunked(architecture, base, HIDDEN, 0.5, chunk, block_rows)
    for one, other in zip(found, plain(architecture, base, HIDDEN, 0.5), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


@pytest.mark.parametrize("family", ["llama", "llama_tied"])
def test_a_head_that_is_trained_gets_its_gradient(family: str) -> None:
    architecture, base = made(family)

    def loss(function, base):
        logprobs, entropy = function(architecture, base, HIDDEN, 0.7)
        return jnp.sum(jnp.sin(logprobs)) + jnp.sum(jnp.cos(entropy))

    found, wanted = (quick_jit(jax.grad(functools.partial(loss, each)))(base) for each in (chunked, plain))
    name = "embedding" if architecture.tie_embeddings else "head"
    assert float(jnp.abs(getattr(wanted, name)).max()) > 0.1
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


def test_large_and_far_apart_logits_neither_overflow_nor_lose_the_target() -> None:
    architecture, base = made("llama")
    head = jnp.zeros((VOCAB, WIDTH)).at[3, 0].set(1.0).at[60, 0].set(-1.0)
    hidden = jnp.zeros((TOKENS, WIDTH)).at[0, 0].set(2000.0).at[1, 0].set(-2000.0)
    targets = jnp.zeros(TOKENS, int).at[0].set(60).at[1].set(60)
    logprobs, entropy = token_logprobs(
        architecture, dataclasses.replace(base, head=head), hidden, targets, block_rows=16
    )
    np.testing.assert_allclose(logprobs[:3], [-4000.0, 0.0, -np.log(VOCAB)], rtol=1e-6)
    np.testing.assert_allclose(entropy[:3], [0.0, 0.0, np.log(VOCAB)], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("kind", ["int8", "nf4_double"])
def test_logits_of_a_quantised_head_are_those_of_its_numbers(kind: Kind) -> None:
    architecture, base = made("gemma2", quantise=kind)
    numbers = dataclasses.replace(base, embedding=dense(base.embedding))
    np.testing.assert_allclose(logits(architecture, base, HIDDEN), logits(architecture, numbers, HIDDEN), atol=1e-6)


def large_base(kind: str) -> Base:
    """The shapes of a head of 256k tokens; nothing is made."""

    def make() -> Base:
        embedding = jnp.zeros((LARGE_VOCAB, LARGE_WIDTH), jnp.float32 if kind == "int8" else kind)
        base = Base(embedding=embedding, layers=(), final_norm=jnp.ones(LARGE_WIDTH))
        return quantise_tree(base, "int8", "float32") if kind == "int8" else base

    return jax.eval_shape(make)


@pytest.mark.parametrize("kind", ["float32", "bfloat16", "int8"])
def test_a_vocabulary_of_256k_is_never_held_for_all_tokens_nor_the_head_made_numbers(kind: str) -> None:
    architecture = dataclasses.replace(Architecture.from_huggingface(CONFIGS["gemma2"]), vocab_size=LARGE_VOCAB)
    hidden = jax.ShapeDtypeStruct((LARGE_TOKENS, LARGE_WIDTH), jnp.float32)
    targets = jax.ShapeDtypeStruct((LARGE_TOKENS,), jnp.int32)

    def loss(hidden, base, targets):
        logprobs, entropy = token_logprobs(architecture, base, hidden, targets)
        return jnp.sum(logprobs) + jnp.sum(entropy)

    compiled = jax.jit(jax.value_and_grad(loss)).lower(hidden, large_base(kind), targets).compile()
    temporaries = compiled.memory_analysis().temp_size_in_bytes
    assert temporaries < LARGE_TOKENS * LARGE_VOCAB * 4 / 100
    assert temporaries < LARGE_VOCAB * LARGE_WIDTH * 4, "the head as numbers"


def test_the_engines_logits_of_a_quantised_head_do_not_make_it_numbers() -> None:
    architecture = dataclasses.replace(Architecture.from_huggingface(CONFIGS["gemma2"]), vocab_size=LARGE_VOCAB)
    hidden = jax.ShapeDtypeStruct((8, LARGE_WIDTH), jnp.float32)
    compiled = jax.jit(functools.partial(logits, architecture)).lower(large_base("int8"), hidden).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < LARGE_VOCAB * LARGE_WIDTH * 4 / 3

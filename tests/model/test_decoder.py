"""One function of two pytrees: packing, caching, adapters and dtypes do not change what it computes."""

import functools
import gc

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from components.model.architecture import Architecture
from components.model.base import LINEAR_MODULES
from components.model.cache import copy_slot, init_cache
from components.model.decoder import forward, forward_cached, logits, matmul
from components.model.lora import LoraConfig, init_adapter
from components.model.weights import random_base
from tests.model.tiny import CONFIGS, merge, quick_jit

FAMILIES = ["qwen2", "gemma3", "gemma4_shared"]
ROW = 21
run_forward = quick_jit(forward, static_argnums=0)
run_cached = quick_jit(forward_cached, static_argnums=0)


@functools.cache
def tiny(name: str, dtype=jnp.float32):
    """A random model and an adapter that changes it."""
    architecture = Architecture.from_huggingface(CONFIGS[name])
    base = random_base(jax.random.key(0), architecture, dtype)
    adapter = init_adapter(jax.random.key(1), architecture, LoraConfig(rank=3, alpha=6.0))
    adapter = jax.tree.map(lambda leaf: leaf + 0.1 * jax.random.normal(jax.random.key(2), leaf.shape), adapter)
    return architecture, base, adapter


def alone(name: str, tokens, dtype=jnp.float32):
    """Hidden states of one sequence in a row of its own, as long as in every test, so that one program does."""
    architecture, base, adapter = tiny(name, dtype)
    ids, segments = (np.pad(row, (0, ROW - len(tokens)))[None] for row in (tokens, np.ones(len(tokens), int)))
    return run_forward(architecture, base, adapter, ids, np.arange(ROW)[None], segments)[0, : len(tokens)]


@pytest.mark.parametrize("name", FAMILIES)
def test_two_sequences_in_one_row_are_computed_as_if_alone(name: str) -> None:
    architecture, base, adapter = tiny(name)
    first, second = np.arange(5, 13), np.arange(20, 31)
    tokens = np.asarray([[*first, *second, 0, 0]])
    positions = np.asarray([[*range(8), *range(11), 0, 0]])
    segments = np.asarray([[1] * 8 + [2] * 11 + [0] * 2])
    packed = run_forward(architecture, base, adapter, tokens, positions, segments)[0]
    np.testing.assert_allclose(packed[:8], alone(name, first), atol=1e-5)
    np.testing.assert_allclose(packed[8:19], alone(name, second), atol=1e-5)
    assert jnp.isfinite(packed).all()


@pytest.mark.parametrize("name", FAMILIES)
def test_prefill_in_chunks_and_decode_equal_one_forward_pass(name: str) -> None:
    architecture, base, adapter = tiny(name)
    tokens = np.arange(4, 21)
    cache = init_cache(architecture, slots=3, capacity=24)
    hidden = []
    for start, stop in [(0, 6), (6, 12)]:
        # The second row is padding: its slot is the number of slots.
        rows = jnp.asarray([tokens[start:stop], np.zeros(6, int)])
        where = {"slots": jnp.asarray([1, 3]), "starts": jnp.asarray([start, 0])}
        out, cache = run_cached(architecture, base, adapter, rows, cache, **where)
        hidden.append(out[0])
    for position in range(12, 17):
        column = jnp.asarray([[9], [tokens[position]], [9]])
        starts = jnp.asarray([position, position, 24])
        out, cache = run_cached(architecture, base, adapter, column, cache, slots=None, starts=starts)
        hidden.append(out[1])
    np.testing.assert_allclose(jnp.concatenate(hidden), alone(name, tokens), atol=1e-5)


def test_tokens_that_pad_a_chunk_leave_no_trace() -> None:
    architecture, base, adapter = tiny("gemma3")
    tokens = np.arange(4, 10)
    cache = init_cache(architecture, slots=2, capacity=7)
    padded = jnp.asarray([[*tokens[:4], 50, 51, 52, 53]])
    _, cache = run_cached(architecture, base, adapter, padded, cache, slots=jnp.asarray([0]), starts=jnp.asarray([0]))
    for position in (4, 5):
        column = jnp.asarray([[tokens[position]], [0]])
        starts = jnp.asarray([position, 7])
        out, cache = run_cached(architecture, base, adapter, column, cache, slots=None, starts=starts)
    np.testing.assert_allclose(out[0, 0], alone("gemma3", tokens)[-1], atol=1e-5)
    assert not jnp.any(cache.keys[0][1])
    assert not jnp.any(cache.values[0][1])


def test_a_copied_slot_continues_like_its_source() -> None:
    architecture, base, adapter = tiny("llama")
    tokens = np.arange(4, 10)
    cache = init_cache(architecture, slots=2, capacity=8)
    rows = jnp.asarray(tokens[None, :5])
    _, cache = run_cached(architecture, base, adapter, rows, cache, slots=jnp.asarray([0]), starts=jnp.asarray([0]))
    cache = copy_slot(cache, 0, 1)
    column = jnp.full((2, 1), tokens[5])
    out, _ = run_cached(architecture, base, adapter, column, cache, slots=None, starts=jnp.asarray([5, 5]))
    np.testing.assert_array_equal(out[0], out[1])


def test_a_fresh_adapter_changes_nothing_and_a_merged_one_is_the_same_policy() -> None:
    architecture, base, adapter = tiny("gemma3")
    ids = jnp.arange(3, 15)[None]
    where = (jnp.arange(12)[None], jnp.ones_like(ids))
    fresh = init_adapter(jax.random.key(1), architecture, LoraConfig())
    reference = run_forward(architecture, base, None, ids, *where)
    np.testing.assert_array_equal(run_forward(architecture, base, fresh, ids, *where), reference)
    adapted = run_forward(architecture, base, adapter, ids, *where)
    assert jnp.abs(adapted - reference).max() > 0.1
    np.testing.assert_allclose(
        run_forward(architecture, merge(base, adapter), None, ids, *where), adapted, atol=1e-4, rtol=1e-4
    )


def test_a_bfloat16_base_gives_float32_logits_near_those_of_float32() -> None:
    architecture, base, _ = tiny("llama", jnp.bfloat16)
    assert base.layers[0].q_proj.weight.dtype == jnp.bfloat16
    scores = logits(architecture, base, alone("llama", np.arange(3, 4), jnp.bfloat16))
    exact = logits(architecture, tiny("llama")[1], alone("llama", np.arange(3, 4)))
    assert scores.dtype == jnp.float32
    assert 0 < jnp.abs(scores - exact).max() < 0.05


@pytest.mark.parametrize("name", ["llama", "gemma3"])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_every_pair_of_an_adapter_gets_a_finite_gradient_that_is_not_zero(name: str, dtype) -> None:
    architecture, base, adapter = tiny(name, dtype)
    ids = jnp.arange(3, 15)[None]

    def loss(adapter):
        hidden = forward(architecture, base, adapter, ids, jnp.arange(12)[None], jnp.ones_like(ids))
        return jnp.mean(jax.nn.log_softmax(logits(architecture, base, hidden))[..., 7])

    gradient = jax.jit(jax.grad(loss))(adapter)
    for pairs in gradient.layers:
        assert set(pairs) == set(LINEAR_MODULES)
        for pair in pairs.values():
            assert jnp.isfinite(pair.a).all()
            assert jnp.isfinite(pair.b).all()
            assert jnp.abs(pair.a).max() > 0
            assert jnp.abs(pair.b).max() > 0


@pytest.mark.parametrize("name", ["qwen2", "gemma4_shared"])
def test_the_gradient_of_an_adapter_follows_from_that_of_the_merged_weights(name: str) -> None:
    architecture, base, adapter = tiny(name)
    ids = jnp.arange(3, 15)[None]

    def loss(base, adapter):
        hidden = forward(architecture, base, adapter, ids, jnp.arange(12)[None], jnp.ones_like(ids))
        return jnp.mean(jax.nn.log_softmax(logits(architecture, base, hidden))[..., 7])

    got = quick_jit(jax.grad(loss, 1))(base, adapter)
    wanted = quick_jit(jax.grad(loss))(merge(base, adapter), None)
    for layer, pairs, gradients in zip(wanted.layers, adapter.layers, got.layers, strict=True):
        for module, pair in pairs.items():
            weight = pair.scale * vars(layer)[module].weight
            np.testing.assert_allclose(gradients[module].a, weight @ pair.b.T, atol=2e-5, err_msg=module)
            np.testing.assert_allclose(gradients[module].b, pair.a.T @ weight, atol=2e-5, err_msg=module)


@pytest.mark.parametrize("transposed", [False, True])
def test_the_product_has_the_derivatives_of_a_plain_product(transposed: bool) -> None:
    x = jax.random.normal(jax.random.key(0), (5, 3))
    weight = jax.random.normal(jax.random.key(1), (4, 3) if transposed else (3, 4))

    def plain(x, weight):
        return jnp.sum(jnp.sin(x @ (weight.T if transposed else weight)))

    def ours(x, weight):
        return jnp.sum(jnp.sin(matmul(x, weight, transposed)))

    for expected, got in zip(jax.grad(plain, (0, 1))(x, weight), jax.grad(ours, (0, 1))(x, weight), strict=True):
        np.testing.assert_allclose(got, expected, atol=1e-6)


def test_actor_reference_and_rollout_share_one_copy_of_the_base() -> None:
    sizes = {"vocab_size": 67, "hidden_size": 28, "intermediate_size": 44, "head_dim": 6}
    architecture = Architecture.from_huggingface({**CONFIGS["llama_tied"], **sizes})
    base = random_base(jax.random.key(0), architecture)
    adapter = init_adapter(jax.random.key(1), architecture, LoraConfig(rank=2))
    ids = jnp.arange(3, 11)[None]
    where = (jnp.arange(8)[None], jnp.ones_like(ids))

    @jax.jit
    def gradient(adapter, base):
        return jax.grad(lambda a: jnp.sum(forward(architecture, base, a, ids, *where)))(adapter)

    actor = gradient(adapter, base)
    reference = run_forward(architecture, base, None, ids, *where)
    cache = init_cache(architecture, slots=1, capacity=9)
    start = jnp.zeros(1, int)
    rollout = run_cached(architecture, base, adapter, ids, cache, slots=None, starts=start)
    jax.block_until_ready((actor, reference, rollout))
    gc.collect()
    live = [array.shape for array in jax.live_arrays()]
    assert live.count((67, 28)) == 1
    assert live.count((44, 28)) == architecture.n_layers
    assert live.count((28, 44)) == 2 * architecture.n_layers

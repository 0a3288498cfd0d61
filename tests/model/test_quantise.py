"""What a quantised weight is, number by number, and that everything that uses a base uses it as it is."""

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from components.errors import WeightsError
from components.export.run import export
from components.model.architecture import Architecture
from components.model.base import Base, random_base
from components.model.cache import Cache, init_cache
from components.model.decoder import forward, forward_cached, logits
from components.model.footprint import base_bytes
from components.model.lora import Adapter, LoraConfig, init_adapter
from components.model.quantise import Kind, dense, is_quantised, quantise_tree, to_int8, to_nf4
from components.model.remat import Remat
from components.rollout.prepare import write_tasks
from components.telemetry.run_files import read_run
from components.training.initialise import initialise
from components.training.replay import replay
from components.training.run import train
from tests import tiny_run
from tests.model.tiny import CONFIGS, dense_tree

ARCHITECTURE = Architecture.from_huggingface(CONFIGS["llama_tied"])
KINDS: tuple[Kind, ...] = ("int8", "nf4", "nf4_double")
SMOLLM2 = {
    "model_type": "llama",
    "vocab_size": 49152,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "tie_word_embeddings": True,
}


def adapter_of(seed: int) -> Adapter:
    adapter = init_adapter(jax.random.key(seed), ARCHITECTURE, LoraConfig(rank=2))
    return jax.tree.map(lambda leaf: leaf + 0.1, adapter)


def test_int8_keeps_the_nearest_multiples_of_a_127th_of_each_output_channels_largest_number() -> None:
    weight = jnp.array([[127.0, -0.5, 0.0], [-3.4, 0.25, 0.0], [2.6, 0.126, 0.0]])
    stored = to_int8(weight, -2, jnp.float32)
    np.testing.assert_allclose(stored.scales, [[1.0, 0.5 / 127, 0.0]])
    np.testing.assert_array_equal(stored.codes, [[127, -127, 0], [-3, 64, 0], [3, 32, 0]])
    np.testing.assert_allclose(
        dense(stored), [[127, -0.5, 0], [-3, 32 / 127, 0], [3, 16 / 127, 0]], rtol=1e-6, atol=1e-9
    )


def test_a_table_has_a_scale_for_every_row_so_that_rows_can_be_looked_up() -> None:
    stored = to_int8(jnp.array([[254.0, 127.0], [0.0, -127.0]]), -1, jnp.float32)
    np.testing.assert_array_equal(stored.scales, [[2.0], [1.0]])
    np.testing.assert_array_equal(stored.codes, [[127, 64], [0, -127]])  # 63.5 rounds to the even number
    row = jax.tree.map(lambda part: part[jnp.array([1])], stored)
    np.testing.assert_array_equal(dense(row), [[0.0, -127.0]])


def test_nf4_keeps_the_nearest_level_of_each_block_two_codes_in_a_byte() -> None:
    # One output channel of 4 inputs, which are one block. 1 / 2 lies between the levels 0.44 (12) and 0.56 (13), whose
    # middle is 0.502.
    stored = to_nf4(jnp.array([[2.0], [-2.0], [0.0], [1.0]]), jnp.float32)
    np.testing.assert_array_equal(stored.scales, [[[2.0]]])
    np.testing.assert_array_equal(stored.codes, [[[15 | 7 << 4], [0 | 12 << 4]]])
    np.testing.assert_allclose(dense(stored), [[2.0], [-2.0], [0.0], [2 * 0.44070982933044434]], rtol=1e-7)


def test_a_block_of_nf4_is_64_inputs_of_one_output_channel() -> None:
    weight = jnp.ones((128, 3)).at[70, 1].set(100.0)
    stored = to_nf4(weight, jnp.float32)
    np.testing.assert_array_equal(stored.scales[:, 0], [[1, 1, 1], [1, 100, 1]])
    restored = dense(stored)
    np.testing.assert_array_equal(restored[:64], 1.0)
    np.testing.assert_array_equal(restored[64:, 0], 1.0)
    assert restored[70, 1] == 100.0


def test_doubly_quantised_scales_are_multiples_of_a_127th_of_the_channels_largest() -> None:
    weight = jnp.concatenate([jnp.full((64, 1), 127.0), jnp.full((64, 1), 2.2)])
    stored = to_nf4(weight, jnp.float32, double=True)
    np.testing.assert_array_equal(stored.scales.codes[:, 0, 0], [127, 2])
    np.testing.assert_array_equal(dense(stored)[:, 0], [127.0] * 64 + [2.0] * 64)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(128, 7), (48, 5), (3, 64, 4)])
def test_no_number_is_further_off_than_half_a_step_of_its_scale(kind: Kind, shape: tuple[int, ...]) -> None:
    weight = jax.random.normal(jax.random.key(0), shape)
    if kind == "int8":
        bound = 0.5 * jnp.max(jnp.abs(weight), axis=-2, keepdims=True) / 127
        stored = to_int8(weight, -2, jnp.float32)
    else:
        # The widest gap between levels is that of -1 and -0.696. A scale that is off by a 254th of the channel's
        # largest number adds as much again to what it scales.
        size = min(64, shape[-2] & -shape[-2])
        blocks = jnp.max(jnp.abs(weight.reshape(*shape[:-2], -1, size, shape[-1])), axis=-2)
        bound = 0.152 * jnp.repeat(blocks, size, axis=-2)
        if kind == "nf4_double":
            bound += 1.2 * jnp.max(jnp.abs(weight), axis=-2, keepdims=True) / 254
        stored = to_nf4(weight, jnp.float32, double=kind == "nf4_double")
    error = jnp.abs(dense(stored) - weight)
    assert jnp.all(error <= bound * 1.0001)
    assert error.max() > 0


def test_an_odd_number_of_inputs_cannot_be_paired() -> None:
    with pytest.raises(WeightsError, match="7 inputs"):
        to_nf4(jnp.ones((7, 2)), jnp.float32)


@pytest.mark.parametrize("kind", KINDS)
def test_matrices_are_quantised_and_norms_and_biases_are_not(kind: Kind) -> None:
    architecture = Architecture.from_huggingface(CONFIGS["qwen2"])
    base = quantise_tree(random_base(jax.random.key(0), architecture), kind, "bfloat16")
    layer = base.layers[0]
    assert is_quantised(base.embedding)
    assert is_quantised(layer.q_proj.weight)
    assert is_quantised(layer.down_proj.weight)
    assert layer.q_proj.bias.dtype == layer.attention_norm.dtype == base.final_norm.dtype == jnp.float32
    assert dense(layer.q_proj.weight).dtype == dense(base.embedding).dtype == jnp.bfloat16


@pytest.mark.parametrize("kind", ["none", *KINDS])
def test_bytes_are_known_before_anything_is_loaded(kind: Kind) -> None:
    base = quantise_tree(random_base(jax.random.key(0), ARCHITECTURE), kind, jnp.float32)
    stored = sum(leaf.nbytes for leaf in jax.tree.leaves(base))
    assert base_bytes(ARCHITECTURE, dtype="float32", quantise=kind) == stored


@pytest.mark.parametrize(("kind", "share"), [("int8", 0.30), ("nf4", 0.17), ("nf4_double", 0.16)])
def test_smollm2_135m_embedding_and_all_takes_a_small_share_of_its_float32_bytes(kind: Kind, share: float) -> None:
    architecture = Architecture.from_huggingface(SMOLLM2)
    assert base_bytes(architecture, dtype="float32", quantise=kind) <= share * base_bytes(architecture, dtype="float32")


@pytest.mark.parametrize(("kind", "remat"), [("int8", "none"), *((kind, "full") for kind in KINDS)])
def test_logits_and_the_adapters_gradient_are_those_of_the_numbers_that_are_stored(kind: Kind, remat: Remat) -> None:
    quantised = quantise_tree(random_base(jax.random.key(0), ARCHITECTURE), kind, jnp.float32)
    plain, adapter = dense_tree(quantised), adapter_of(1)
    tokens = jnp.arange(14).reshape(2, 7)
    positions = jnp.broadcast_to(jnp.arange(7), (2, 7))

    @jax.jit
    def loss(adapter: Adapter, base: Base) -> jax.Array:
        hidden = forward(ARCHITECTURE, base, adapter, tokens, positions, positions * 0 + 1, remat=remat)
        return jnp.mean(jax.nn.log_softmax(logits(ARCHITECTURE, base, hidden))[..., 3])

    (value, gradient), (expected, expected_gradient) = (
        jax.value_and_grad(loss)(adapter, base) for base in (quantised, plain)
    )
    np.testing.assert_allclose(value, expected, rtol=1e-6)
    for found, wanted in zip(jax.tree.leaves(gradient), jax.tree.leaves(expected_gradient), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("family", ["gemma4_experts", "gemma4_shared"])
def test_experts_and_per_layer_embeddings_are_quantised_too(family: str) -> None:
    architecture = Architecture.from_huggingface(CONFIGS[family])
    quantised = quantise_tree(random_base(jax.random.key(0), architecture), "nf4", jnp.float32)
    matrices = [leaf for leaf in jax.tree.leaves(quantised) if leaf.dtype == jnp.float32 and leaf.ndim > 1]
    assert sum(leaf.nbytes for leaf in matrices) < base_bytes(architecture, dtype="float32") / 4
    tokens = jnp.arange(14).reshape(2, 7)
    positions = jnp.broadcast_to(jnp.arange(7), (2, 7))

    @jax.jit
    def read(base: Base) -> jax.Array:
        return logits(architecture, base, forward(architecture, base, None, tokens, positions, positions * 0 + 1))

    np.testing.assert_allclose(read(quantised), read(dense_tree(quantised)), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["int8", "nf4"])
def test_a_loop_of_decode_steps_does_not_keep_the_numbers_of_all_layers(kind: Kind) -> None:
    base = quantise_tree(random_base(jax.random.key(0), ARCHITECTURE), kind, jnp.float32)
    numbers = sum(leaf.nbytes for leaf in jax.tree.leaves(dense_tree(base)))

    def decode(base: Base, cache: Cache, tokens: jax.Array) -> jax.Array:
        def step(state: tuple[Cache, jax.Array, jax.Array], _: None) -> tuple[Any, jax.Array]:
            cache, tokens, starts = state
            hidden, cache = forward_cached(ARCHITECTURE, base, None, tokens[:, None], cache, slots=None, starts=starts)
            likeliest = logits(ARCHITECTURE, base, hidden[:, 0]).argmax(-1)
            return (cache, likeliest, starts + 1), likeliest

        return jax.lax.scan(step, (cache, tokens, tokens * 0), None, length=4)[1]

    cache = init_cache(ARCHITECTURE, 1, 8)
    memory = jax.jit(decode).lower(base, cache, jnp.zeros(1, jnp.int32)).compile().memory_analysis()
    assert memory.temp_size_in_bytes < numbers / 3


@pytest.mark.long
def test_a_run_on_a_quantised_base_is_proven_at_every_version_replayed_and_exported(tmp_path: Path) -> None:
    places = {name: str(tmp_path / name) for name in ("tasks", "base", "adapter")}
    world = json.dumps(tiny_run.ENVIRONMENT)
    write_tasks(section="{}", environment=world, seed=0, folder=places["tasks"])
    facts = initialise(section=json.dumps({**tiny_run.INIT, "quantise": "nf4"}), environment=world, seed=0, **places)
    assert facts["quantise"] == "nf4"
    run = str(tmp_path / "run")
    section = json.dumps({**tiny_run.TRAIN, "steps": 1})
    trained = str(tmp_path / "trained")
    summary = train(section=section, environment=world, seed=0, run_folder=run, trained=trained, **places)
    assert summary["steps"] == 1
    assert replay(run).steps == 1
    proof = export(
        section="{}",
        run_folder=run,
        tasks=places["tasks"],
        base=places["base"],
        trained=trained,
        adapter=str(tmp_path / "peft"),
        merged=str(tmp_path / "merged"),
    )
    assert proof["adapter"] == 0.0
    assert proof["merged"] < 1e-4
    assert proof["as_trained"]["quantise"] == "nf4"
    assert read_run(run).summary["proofs"]["export"] == proof

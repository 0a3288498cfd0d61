"""Claims about one model split over a mesh of eight devices; `test_sharding.py` starts them where there are eight."""

import functools
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from components.export import proof
from components.model import splash
from components.model.architecture import Architecture
from components.model.base import Base, random_base
from components.model.checkpoint_folder import write_checkpoint
from components.model.decoder import forward
from components.model.head import token_logprobs
from components.model.lora import Adapter, LoraConfig, init_adapter
from components.model.placement import MeshConfig, Placement, make_placements
from components.model.quantise import quantise_tree
from components.model.weights import load
from tests.export.made import LLAMA, make_run
from tests.model.tiny import CONFIGS, quick_jit

# What four devices divide evenly, where the family allows.
EVEN = {"vocab_size": 64, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 8, "num_hidden_layers": 2}
EVEN_WINDOWS = {"layer_types": ["sliding_attention", "full_attention"]}
EXPERTS = {"mlp_only_layers": [1], "moe_intermediate_size": 24}
MODELS = {
    "llama": EVEN,
    "llama_tied": {},  # 61 tokens and two key heads, which four devices do not divide
    "gemma2": EVEN | EVEN_WINDOWS,
    "qwen3_moe": EVEN | EXPERTS,
}
ROWS, TIME = 8, 8


@pytest.fixture(scope="module")
def mesh() -> Placement:
    return make_placements(MeshConfig(fsdp=2, tensor=4)).trainer


def model(name: str) -> tuple[Architecture, Base, Adapter]:
    """An architecture, its weights, and an adapter that changes what they do."""
    architecture = Architecture.from_huggingface(CONFIGS[name] | MODELS[name])
    base = random_base(jax.random.key(0), architecture)
    targets = (r".*\.self_attn\..*", r"model\.layers\.1\.mlp\.down_proj")
    adapter = init_adapter(jax.random.key(1), architecture, LoraConfig(rank=4, targets=targets))
    leaves, structure = jax.tree.flatten(adapter)
    keys = jax.random.split(jax.random.key(3), len(leaves))
    noise = [0.1 * jax.random.normal(key, leaf.shape) for key, leaf in zip(keys, leaves, strict=True)]
    return architecture, base, jax.tree.unflatten(structure, noise)


def loss_and_gradients(architecture: Architecture, base: Base, adapter: Adapter, rows: jax.Array):
    """Minus the mean log-prob of each next token, and its gradients."""

    @quick_jit
    def both(adapter: Adapter, base: Base, rows: jax.Array):
        def loss(adapter: Adapter) -> jax.Array:
            flat = _hidden(architecture, base, adapter, rows)[:, :-1].reshape(-1, architecture.d_model)
            return -jnp.mean(token_logprobs(architecture, base, flat, rows[:, 1:].reshape(-1), chunk=16)[0])

        return jax.value_and_grad(loss)(adapter)

    return both(adapter, base, rows)


def _hidden(architecture: Architecture, base: Base, adapter: Adapter, rows: jax.Array) -> jax.Array:
    positions = jnp.broadcast_to(jnp.arange(TIME), rows.shape)
    return forward(architecture, base, adapter, rows, positions, jnp.ones_like(rows))


hidden = quick_jit(_hidden, static_argnums=0)


def flat_vector(tree: Adapter) -> np.ndarray:
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)])


def some_rows(architecture: Architecture) -> jax.Array:
    return jax.random.randint(jax.random.key(2), (ROWS, TIME), 0, architecture.vocab_size)


@pytest.mark.parametrize("name", MODELS)
def test_loss_and_gradients_over_a_mesh_are_those_of_one_device(mesh, name):
    architecture, base, adapter = model(name)
    rows = some_rows(architecture)
    wanted, wanted_gradients = loss_and_gradients(architecture, base, adapter, rows)
    split = mesh.weights(base), mesh.weights(adapter), mesh.split({"rows": rows})["rows"]
    found, gradients = loss_and_gradients(architecture, *split)
    np.testing.assert_allclose(found, wanted, rtol=1e-5)
    one, other = flat_vector(wanted_gradients), flat_vector(gradients)
    assert np.linalg.norm(one - other) <= 1e-5 * np.linalg.norm(one)


@pytest.mark.parametrize("kind", ["int8", "nf4_double"])
def test_a_quantised_base_is_split_and_computes_the_same(mesh, kind):
    architecture, base, adapter = model("llama")
    base = quantise_tree(base, kind, jnp.float32)
    rows = some_rows(architecture)
    placed = mesh.weights(base)
    wanted, found = hidden(architecture, base, adapter, rows), hidden(architecture, placed, mesh.weights(adapter), rows)
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)
    assert placed.layers[0].q_proj.weight.codes.sharding.spec[-1] == "tensor"
    assert share_of_one_device(placed) < 0.35, "an eighth, and scales and norms"


def test_every_matrix_is_split_and_no_device_holds_more_than_its_share(mesh):
    _, base, adapter = model("llama")
    placed = mesh.weights(base)
    layer = placed.layers[0]
    assert layer.q_proj.weight.sharding.spec == P("fsdp", "tensor")
    assert layer.o_proj.weight.sharding.spec == P("tensor", "fsdp")
    assert layer.down_proj.weight.sharding.spec == P("tensor", "fsdp")
    assert placed.embedding.sharding.spec == P("tensor", "fsdp")
    assert layer.attention_norm.sharding.is_fully_replicated
    pair = mesh.weights(adapter).layers[0]["q_proj"]
    assert (pair.a.sharding.spec, pair.b.sharding.spec) == (P("fsdp", None), P(None, "tensor"))
    assert share_of_one_device(placed) < 0.15, "an eighth, and the norms"


def test_a_checkpoint_is_loaded_part_by_part_onto_the_mesh(mesh, tmp_path: Path):
    architecture, base, _ = model("qwen3_moe")
    write_checkpoint(tmp_path, architecture, base, dtype="float32")
    whole = load(str(tmp_path)).base
    split = load(str(tmp_path), placement=mesh).base
    for one, other in zip(jax.tree.leaves(whole), jax.tree.leaves(split), strict=True):
        np.testing.assert_array_equal(one, np.asarray(other))
        assert len(other.sharding.device_set) == 8
    assert share_of_one_device(split) < 0.2
    experts = split.layers[0].experts
    assert experts.gate_up.sharding.spec == P(None, "fsdp", "tensor")


def test_weights_are_gathered_and_rows_are_not(mesh):
    architecture, base, adapter = model("llama")
    placed, split, rows = mesh.weights(base), mesh.weights(adapter), some_rows(architecture)

    alone = hidden.lower(architecture, base, adapter, rows).compile()
    shared = hidden.lower(architecture, placed, split, mesh.split({"rows": rows})["rows"]).compile()
    assert shared.cost_analysis()["flops"] < 0.25 * alone.cost_analysis()["flops"]
    assert shared.output_shardings.spec[0] == "fsdp"


def test_the_kernel_for_tpus_is_run_by_each_device_on_its_rows_and_heads(mesh):
    architecture, _, _ = model("gemma2")
    shapes = ((ROWS, 128, 8, 8), (ROWS, 128, 4, 8), (ROWS, 128, 4, 8))
    operands = [jax.random.normal(jax.random.key(number), shape) for number, shape in enumerate(shapes)]
    segments = jnp.ones((ROWS, 128), jnp.int32)
    attend = quick_jit(functools.partial(splash.attend, architecture, window=None, interpret=True))
    placed = [mesh.put(each, ("rows", None, "heads", None)) for each in operands]
    found = attend(*placed, mesh.put(segments, ("rows", None)))
    assert found.addressable_shards[0].data.shape[:3] == (4, 128, 2)
    np.testing.assert_allclose(found, attend(*operands, segments), rtol=1e-5, atol=1e-6)


def share_of_one_device(tree: Base) -> float:
    """Bytes on the first device over the bytes of the whole."""
    leaves = jax.tree.leaves(tree)
    held = sum(leaf.addressable_shards[0].data.nbytes for leaf in leaves)
    return held / sum(leaf.nbytes for leaf in leaves)


def test_an_export_is_proven_by_models_that_are_split(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proof, "PEERS", ("no_such_library",))
    run = make_run(tmp_path, {**LLAMA, **EVEN})
    found = run.export(mesh={"fsdp": 2, "tensor": 4})
    assert found["adapter"] == 0.0
    assert 0.0 < found["merged"] < 1e-4

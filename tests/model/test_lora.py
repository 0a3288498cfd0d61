"""What an adapter binds, how strong it is, and how it is merged."""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from components.errors import ConfigError
from components.model.architecture import Architecture
from components.model.lora import Adapter, LoraConfig, LoraPair, bound_modules, init_adapter, merge, module_names
from components.model.lora import parameter_count as count
from components.model.weights import random_base
from tests.model.tiny import CONFIGS

SHARED = Path(__file__).resolve().parents[2].parent / "shared" / "cases" / "files" / "adapter_configs"
QWEN = Architecture.from_huggingface(CONFIGS["qwen3"])


@pytest.mark.parametrize(("name", "scale"), [("rank64-rslora", 8.0), ("rank64", None)])
def test_rslora_divides_alpha_by_the_root_of_the_rank(name: str, scale: float | None) -> None:
    path = SHARED / f"peft__lora__llama-3.2-3B-{name}.json"
    if not path.is_file():
        pytest.skip(f"the case bank is not beside the repository: no {path.name}")
    peft = json.loads(path.read_text())
    config = LoraConfig(rank=peft["r"], alpha=float(peft["lora_alpha"]), rslora=peft["use_rslora"])
    assert config.scale == (peft["lora_alpha"] / 64 if scale is None else scale)


def test_an_adapter_on_everything_binds_seven_modules_per_layer_under_their_huggingface_names() -> None:
    adapter = init_adapter(jax.random.key(0), QWEN, LoraConfig(rank=2))
    names = module_names(adapter)
    assert len(names) == 7 * QWEN.n_layers
    assert names[0] == "model.layers.0.self_attn.q_proj"
    assert names[-1] == "model.layers.2.mlp.down_proj"
    # q 32->48, k and v 32->24, o 48->32, gate and up 32->48, down 48->32; rank 2, three layers.
    assert count(adapter) == 3 * 2 * (80 + 56 + 56 + 80 + 80 + 80 + 80)


def test_a_starts_uniform_within_one_by_the_root_of_its_inputs_and_b_at_zero() -> None:
    pair = init_adapter(jax.random.key(0), QWEN, LoraConfig(rank=8)).layers[0]["down_proj"]
    assert pair.a.shape == (48, 8)
    assert 0.95 * 48**-0.5 < jnp.abs(pair.a).max() <= 48**-0.5
    assert pair.b.shape == (8, 32)
    assert not pair.b.any()


def test_a_bound_module_starts_the_same_whatever_else_is_bound() -> None:
    everything = init_adapter(jax.random.key(0), QWEN, LoraConfig(rank=2))
    some = init_adapter(jax.random.key(0), QWEN, LoraConfig(rank=2, targets=(r".*layers\.1\..*v_proj",)))
    assert module_names(some) == ("model.layers.1.self_attn.v_proj",)
    np.testing.assert_array_equal(some.layers[1]["v_proj"].a, everything.layers[1]["v_proj"].a)


def test_alternatives_that_bind_nothing_are_each_named() -> None:
    target = ".*q_einsum|.*kv_einsum|.*gate_proj|.*down_proj|.*up_proj|.*attn_vec_einsum"
    with pytest.raises(ConfigError) as raised:
        init_adapter(jax.random.key(0), QWEN, LoraConfig(targets=(target,)))
    assert [problem.value for problem in raised.value.problems] == [".*q_einsum", ".*kv_einsum", ".*attn_vec_einsum"]
    assert "model.layers.0.self_attn.q_proj" in str(raised.value)


@pytest.mark.parametrize("targets", [(".*does_not_exist",), (".*", ".*does_not_exist"), (), ("(",)])
def test_a_pattern_that_cannot_work_is_an_error_before_training(targets: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError, match="targets"):
        init_adapter(jax.random.key(0), QWEN, LoraConfig(targets=targets))


def test_bars_inside_brackets_do_not_split_a_pattern() -> None:
    pattern = r".*\.(q_proj|v_proj)|.*[k|x]_proj"
    bound = bound_modules(QWEN, LoraConfig(targets=(pattern,)))
    assert len(bound) == 3 * QWEN.n_layers
    assert bound["model.layers.0.self_attn.q_proj"] == (r".*\.(q_proj|v_proj)",)
    assert bound["model.layers.0.self_attn.k_proj"] == (".*[k|x]_proj",)


def test_merging_adds_scale_times_a_times_b_and_keeps_the_dtype() -> None:
    architecture = Architecture.from_huggingface(CONFIGS["llama_tied"])
    base = random_base(jax.random.key(0), architecture, jnp.bfloat16)
    pair = LoraPair(a=jnp.ones((32, 2)), b=2 * jnp.ones((2, 24)), scale=0.5)
    merged = merge(base, Adapter(layers=({"k_proj": pair}, {}, {})))
    before, after = base.layers[0].k_proj.weight, merged.layers[0].k_proj.weight
    # 0.5 * (1 * 2 + 1 * 2) = 2 on every weight.
    np.testing.assert_array_equal(after, (before.astype(jnp.float32) + 2.0).astype(jnp.bfloat16))
    assert merged.layers[1].k_proj.weight is base.layers[1].k_proj.weight
    assert merged.embedding is base.embedding

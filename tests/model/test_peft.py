"""A PEFT directory is read whole or refused by name, and written so that peft itself reads it."""

import json
from pathlib import Path

import jax
import numpy as np
import pytest

from components.errors import WeightsError
from components.model.architecture import Architecture
from components.model.lora import LoraConfig, init_adapter
from components.model.peft import CONFIG_FILE, load_adapter, read_config, save_adapter

CASES = Path(__file__).resolve().parents[2].parent / "shared" / "cases" / "files" / "adapter_configs"

ARCHITECTURE = Architecture.from_huggingface(
    {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": 17,
        "hidden_size": 8,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "intermediate_size": 12,
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": 64,
        "eos_token_id": 2,
    }
)


def random_adapter(config: LoraConfig):
    adapter = init_adapter(jax.random.key(0), ARCHITECTURE, config)
    leaves, tree = jax.tree.flatten(adapter)
    keys = jax.random.split(jax.random.key(1), len(leaves))
    return jax.tree.unflatten(
        tree, [jax.random.normal(key, leaf.shape) for key, leaf in zip(keys, leaves, strict=True)]
    )


@pytest.mark.parametrize(
    "config",
    [
        LoraConfig(rank=3, alpha=6.0),
        LoraConfig(rank=4, alpha=8.0, rslora=True),
        LoraConfig(rank=2, targets=(r"model\.layers\.1\..*",)),
    ],
)
def test_an_adapter_survives_the_disk_bit_for_bit_with_its_scale(tmp_path, config):
    adapter = random_adapter(config)
    save_adapter(tmp_path, adapter, config, base_name="tiny")
    again = load_adapter(tmp_path, ARCHITECTURE)
    assert jax.tree.structure(again) == jax.tree.structure(adapter)
    assert all(np.array_equal(a, b) for a, b in zip(jax.tree.leaves(adapter), jax.tree.leaves(again), strict=True))


@pytest.mark.parametrize(("name", "scale"), [("rank64-rslora", 8.0), ("rank64", 2.0)])
def test_the_scale_of_a_real_configuration_is_read(tmp_path, name, scale):
    source = CASES / f"peft__lora__llama-3.2-3B-{name}.json"
    if not source.exists():
        pytest.skip("the shared case bank does not lie beside this clone")
    (tmp_path / CONFIG_FILE).write_text(source.read_text())
    assert read_config(tmp_path).scale == scale


@pytest.mark.parametrize(
    ("field", "value"),
    [("use_dora", True), ("rank_pattern", {"q_proj": 4}), ("bias", "all"), ("kasa_config", {"beta": 1}), ("r", None)],
)
def test_what_would_be_half_read_is_refused_by_field_name(tmp_path, field, value):
    save_adapter(tmp_path, random_adapter(LoraConfig(rank=2)), LoraConfig(rank=2), base_name="tiny")
    settings = json.loads((tmp_path / CONFIG_FILE).read_text())
    settings[field] = value
    if value is None:
        del settings[field]
    (tmp_path / CONFIG_FILE).write_text(json.dumps(settings))
    with pytest.raises(WeightsError, match=f"{field}"):
        load_adapter(tmp_path, ARCHITECTURE)


def test_another_method_is_refused(tmp_path):
    (tmp_path / CONFIG_FILE).write_text(json.dumps({"peft_type": "ADALORA"}))
    with pytest.raises(WeightsError, match="ADALORA"):
        read_config(tmp_path)


def test_an_adapter_of_another_shape_names_the_tensor(tmp_path):
    save_adapter(tmp_path, random_adapter(LoraConfig(rank=2)), LoraConfig(rank=3), base_name="tiny")
    with pytest.raises(WeightsError, match=r"q_proj\.lora_A\.weight has shape \(2, 8\), and this model needs \(3, 8\)"):
        load_adapter(tmp_path, ARCHITECTURE)

"""Export: the two directories, their proof, and what others read from them."""

import json
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from components.config import dump
from components.errors import ProofError
from components.export.merged import write_merged
from components.export.proof import prove
from components.export.run import ExportConfig, export
from components.model import weights
from components.model.architecture import Architecture
from components.model.base import Base, random_base
from components.model.base_artifact import HERE, write_base
from components.model.lora import Adapter, LoraConfig, init_adapter, merge
from components.model.peft import load_adapter, read_config, save_adapter
from components.rollout.tokenizer import CharacterTokenizer
from components.telemetry.run_files import read_run, update_summary

ALPHABET = "0123456789+-="
PADDED_VOCABULARY = 24
"""More rows than the 14 tokens that the tokenizer knows."""

ARCHITECTURE = Architecture.from_huggingface(
    {
        "model_type": "llama",
        "vocab_size": PADDED_VOCABULARY,
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "intermediate_size": 32,
        "tie_word_embeddings": True,
        "max_position_embeddings": 64,
        "eos_token_id": 0,
    }
)


def trained_adapter(config: LoraConfig) -> Adapter:
    """An adapter whose B is not zero any more."""
    adapter = init_adapter(jax.random.key(1), ARCHITECTURE, config)
    keys = iter(jax.random.split(jax.random.key(2), 100))
    layers = tuple(
        {name: replace(pair, b=0.1 * jax.random.normal(next(keys), pair.b.shape)) for name, pair in layer.items()}
        for layer in adapter.layers
    )
    return Adapter(layers=layers)


@pytest.fixture
def run(tmp_path: Path) -> dict[str, str]:
    """What the steps before export leave behind."""
    base = random_base(jax.random.key(0), ARCHITECTURE)
    tokenizer = CharacterTokenizer(ALPHABET)
    write_merged(tmp_path / "base", ARCHITECTURE, base, tokenizer, dtype="float32", max_shard_bytes=10**9)
    write_base(tmp_path / "base", HERE, dtype="float32")
    lora = LoraConfig(rank=4, alpha=8.0, rslora=True)
    save_adapter(tmp_path / "trained", trained_adapter(lora), lora, base_name="base")
    (tmp_path / "tasks").mkdir()
    lines = [json.dumps({"id": str(i), "prompt": f"{i}+{i}="}) for i in range(4)]
    (tmp_path / "tasks" / "test.jsonl").write_text("\n".join(lines) + "\n")
    (tmp_path / "run").mkdir()
    update_summary(str(tmp_path / "run"), {"accuracy_before": 0.125, "accuracy_after": 0.875, "proofs": {"sync": 1}})
    names = {"run_folder": "run", "tasks": "tasks", "base": "base", "trained": "trained"}
    return {key: str(tmp_path / name) for key, name in {**names, "adapter": "adapter", "merged": "merged"}.items()}


def export_with(run: dict[str, str], **settings: object) -> dict[str, object]:
    return export(section=json.dumps({**dump(ExportConfig()), **settings}), **run)


def test_both_forms_give_the_logits_of_the_trained_policy(run: dict[str, str]) -> None:
    proof = export_with(run)
    assert proof["adapter"] == 0.0
    assert 0.0 < proof["merged"] < 1e-4
    assert proof["greedy_equal"] is True
    assert proof["prompts"] == 3
    assert read_run(run["run_folder"]).summary["proofs"] == {"sync": 1, "export": proof}


def test_transformers_and_peft_load_what_was_exported(run: dict[str, str]) -> None:
    pytest.importorskip("transformers")
    pytest.importorskip("peft")
    proof = export_with(run)
    assert proof["transformers"] < 1e-3
    assert proof["peft"] < 1e-3
    assert "skipped" not in proof


def test_the_exported_vocabulary_is_that_of_the_embedding_not_of_the_tokenizer(run: dict[str, str]) -> None:
    export_with(run)
    merged = Path(run["merged"])
    assert json.loads((merged / "config.json").read_text())["vocab_size"] == PADDED_VOCABULARY
    embedding = load_file(merged / "model.safetensors")["model.embed_tokens.weight"]
    assert embedding.shape == (PADDED_VOCABULARY, 16)
    assert CharacterTokenizer(ALPHABET).vocab_size == 14


def test_the_rule_of_the_scale_survives_the_round_trip(run: dict[str, str]) -> None:
    export_with(run)
    settings = json.loads(Path(run["adapter"], "adapter_config.json").read_text())
    assert settings["use_rslora"] is True
    assert (settings["r"], settings["lora_alpha"]) == (4, 8.0)
    assert read_config(Path(run["adapter"])).scale == 4.0  # 8 / sqrt(4)
    assert load_adapter(Path(run["adapter"]), ARCHITECTURE).layers[0]["q_proj"].scale == 4.0


def test_merged_weights_are_base_plus_scale_times_the_product(run: dict[str, str]) -> None:
    export_with(run)
    before = load_file(Path(run["base"], "model.safetensors"))
    after = load_file(Path(run["merged"], "model.safetensors"))
    pairs = load_file(Path(run["trained"], "adapter_model.safetensors"))
    name = "model.layers.1.mlp.down_proj"
    a, b = (pairs[f"base_model.model.{name}.lora_{side}.weight"] for side in "AB")
    np.testing.assert_allclose(after[f"{name}.weight"], before[f"{name}.weight"] + 4.0 * (b @ a), atol=1e-6)


def test_shards_have_an_index_that_names_every_tensor_once_and_load_back(run: dict[str, str]) -> None:
    export_with(run, max_shard_bytes=4000)
    merged = Path(run["merged"])
    index = json.loads((merged / "model.safetensors.index.json").read_text())
    files = sorted(merged.glob("model-*.safetensors"))
    assert len(files) > 1
    assert files[0].name == f"model-00001-of-{len(files):05d}.safetensors"
    held = {name: file.name for file in files for name in load_file(file)}
    assert index["weight_map"] == held
    assert index["metadata"]["total_size"] == sum(
        tensor.nbytes for file in files for tensor in load_file(file).values()
    )
    assert weights.load(str(merged)).architecture.vocab_size == PADDED_VOCABULARY


def test_bfloat16_rounds_the_weights_and_the_proof_says_how_much(run: dict[str, str]) -> None:
    proof = export_with(run, dtype="bfloat16")
    assert proof["merged"] > 1e-4
    assert load_file(Path(run["merged"], "model.safetensors"))["model.norm.weight"].dtype == jnp.bfloat16
    assert json.loads(Path(run["merged"], "config.json").read_text())["dtype"] == "bfloat16"


def test_weights_that_changed_after_they_were_written_fail_the_proof(run: dict[str, str], tmp_path: Path) -> None:
    base: Base = weights.load(run["base"]).base
    adapter = load_adapter(Path(run["trained"]), ARCHITECTURE)
    tokenizer = CharacterTokenizer(ALPHABET)
    write_merged(
        tmp_path / "bad", ARCHITECTURE, merge(base, adapter), tokenizer, dtype="float32", max_shard_bytes=10**9
    )
    tensors = load_file(tmp_path / "bad" / "model.safetensors")
    tensors["model.layers.0.mlp.up_proj.weight"] = tensors["model.layers.0.mlp.up_proj.weight"] + 0.1
    save_file(tensors, tmp_path / "bad" / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ProofError, match="read back as merged differs"):
        prove(
            ARCHITECTURE,
            base,
            adapter,
            Path(run["trained"]),
            tmp_path / "bad",
            [[1, 2, 3]],
            new_tokens=2,
            tolerance=1e-3,
        )


def test_the_card_says_only_what_was_measured(run: dict[str, str]) -> None:
    export_with(run)
    card = Path(run["merged"], "README.md").read_text()
    assert "0.875, before training 0.125" in card
    assert "rank 4, alpha 8, scale 4 (alpha / sqrt(rank))" in card
    Path(run["run_folder"], "summary.json").unlink()
    export_with(run)
    assert "Accuracy" not in Path(run["merged"], "README.md").read_text()

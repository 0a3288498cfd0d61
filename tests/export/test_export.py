"""Export: the two directories, their proof, and what others read from them."""

import json
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from components.errors import ConfigError, DataError, WeightsError
from components.export import proof as export_proof
from components.export import run as export_run
from components.export.merged import merged_tensors
from components.model import weights
from components.model.architecture import Architecture
from components.model.base_artifact import write_base
from components.model.checkpoint_folder import write_tensors
from components.model.layout import stored_shapes
from components.model.lora import LoraConfig
from components.model.peft import load_adapter, read_config
from components.model.source import Source, open_source
from components.model.stored import Stored
from components.rollout.tokenizer import CharacterTokenizer
from components.telemetry.run_files import read_run
from tests.export.made import ALPHABET, LLAMA, PADDED_VOCABULARY, Run, make_run, trained_adapter
from tests.model.tiny import CONFIGS

PEERS = ("peft", "transformers")


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, dict[str, Any]]:
    """A run that was exported, for tests that only look."""
    run = make_run(tmp_path_factory.mktemp("done"))
    return run, run.export(max_shard_bytes=4000)


def test_both_forms_give_the_logits_of_the_trained_policy(done: tuple[Run, dict[str, Any]]) -> None:
    run, proof = done
    assert proof["adapter"] == 0.0
    assert 0.0 < proof["merged"] < 1e-4
    assert proof["greedy_equal"] is True
    assert (proof["prompts"], proof["tokens"]) == (3, 24)
    assert proof["weights"]["changed"] == 14
    assert 0.0 < proof["weights"]["largest_error"] < 1e-6
    assert "as_trained" not in proof
    assert proof["base"]["fingerprint"] == run.exported.base.fingerprint


def test_the_proof_lies_beside_the_weights_and_in_the_run(done: tuple[Run, dict[str, Any]]) -> None:
    run, proof = done
    assert read_run(str(run.folder / "run")).summary["proofs"] == {"sync": 1, "export": proof}
    for folder in (run.adapter, run.merged):
        assert json.loads((folder / "proof.json").read_text()) == proof


@pytest.mark.parametrize("family", ["qwen2", "qwen3", "qwen3_moe", "gemma2", "gemma3"])
def test_transformers_and_peft_give_the_same_logits_of_each_family(family: str, tmp_path: Path) -> None:
    for peer in PEERS:
        pytest.importorskip(peer)
    targets = r".*\.self_attn\..*" if family == "qwen3_moe" else ".*"
    config = {**CONFIGS[family], "num_hidden_layers": 2}
    config = {**config, **({"layer_types": config["layer_types"][:2]} if "layer_types" in config else {})}
    proof = make_run(tmp_path, config, LoraConfig(rank=4, alpha=8.0, targets=(targets,))).export()
    assert max(proof[name] for name in (*PEERS, "merged")) < 1e-4
    assert proof["adapter"] == 0.0
    assert "skipped" not in proof


def test_the_language_model_of_a_multimodal_checkpoint_leaves_as_a_model_of_its_own(tmp_path: Path) -> None:
    for peer in PEERS:
        pytest.importorskip(peer)
    config = {**CONFIGS["gemma3"], "num_hidden_layers": 2, "layer_types": ["sliding_attention", "full_attention"]}
    run = make_run(tmp_path, config, LoraConfig(rank=4, alpha=8.0))
    base = tmp_path / "base"
    inner = json.loads((base / "config.json").read_text())
    (base / "config.json").write_text(json.dumps({"model_type": "gemma3", "text_config": inner}))
    tensors = load_file(base / "model.safetensors")
    renamed = {f"language_model.{name}": tensor for name, tensor in tensors.items()}
    save_file({**renamed, "vision_tower.patch.weight": np.zeros(3, np.float32)}, base / "model.safetensors")
    write_base(base, ".", dtype="float32")
    proof = run.export()
    assert max(proof[name] for name in (*PEERS, "merged")) < 1e-4
    assert json.loads((run.merged / "config.json").read_text())["model_type"] == "gemma3_text"
    assert open_source(str(run.merged)).tensors.keys() == tensors.keys()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["adapter", "base", "merged", "run", "tasks", "trained"]


def test_transformers_and_peft_load_what_was_exported(done: tuple[Run, dict[str, Any]]) -> None:
    for peer in PEERS:
        pytest.importorskip(peer)
    _, proof = done
    assert max(proof[name] for name in PEERS) < 1e-4


def test_the_exported_vocabulary_is_that_of_the_embedding_not_of_the_tokenizer(
    done: tuple[Run, dict[str, Any]],
) -> None:
    run, _ = done
    assert json.loads((run.merged / "config.json").read_text())["vocab_size"] == PADDED_VOCABULARY
    held = weights.load(str(run.merged))
    assert held.base.embedding.shape == (PADDED_VOCABULARY, 16)
    assert CharacterTokenizer(ALPHABET).vocab_size == 14


def test_a_tokenizer_of_another_model_is_refused(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    CharacterTokenizer("abcdefghijklmnopqrstuvwxyz" + ALPHABET).save(tmp_path / "base")
    write_base(tmp_path / "base", ".", dtype="float32")
    with pytest.raises(Exception, match="the tokenizer gives token 39, and the embedding has 24 rows"):
        run.export()


def test_the_rule_of_the_scale_survives_the_round_trip(done: tuple[Run, dict[str, Any]]) -> None:
    run, _ = done
    settings = json.loads((run.adapter / "adapter_config.json").read_text())
    assert settings["use_rslora"] is True
    assert (settings["r"], settings["lora_alpha"]) == (4, 8.0)
    assert read_config(run.adapter).scale == 4.0  # 8 / sqrt(4)
    assert load_adapter(run.adapter, run.architecture).layers[0]["q_proj"].scale == 4.0


def test_merged_weights_are_base_plus_scale_times_the_product(done: tuple[Run, dict[str, Any]]) -> None:
    run, _ = done
    before = load_file(run.folder / "base" / "model.safetensors")
    after = open_source(str(run.merged)).tensors
    pairs = load_file(run.folder / "trained" / "adapter_model.safetensors")
    name = "model.layers.1.mlp.down_proj"
    a, b = (pairs[f"base_model.model.{name}.lora_{side}.weight"] for side in "AB")
    np.testing.assert_allclose(after[f"{name}.weight"](), before[f"{name}.weight"] + 4.0 * (b @ a), atol=1e-6)
    for kept in ("model.embed_tokens.weight", "model.norm.weight"):
        np.testing.assert_array_equal(after[kept](), before[kept])
    assert "lm_head.weight" not in after


def test_shards_have_an_index_that_names_every_tensor_once_and_load_back(done: tuple[Run, dict[str, Any]]) -> None:
    run, _ = done
    index = json.loads((run.merged / "model.safetensors.index.json").read_text())
    files = sorted(run.merged.glob("model-*.safetensors"))
    assert len(files) > 1
    assert [file.name for file in files] == [
        f"model-{i + 1:05d}-of-{len(files):05d}.safetensors" for i in range(len(files))
    ]
    held = {name: file.name for file in files for name in load_file(file)}
    assert index["weight_map"] == held
    sizes = {file.name: sum(tensor.nbytes for tensor in load_file(file).values()) for file in files}
    assert index["metadata"]["total_size"] == sum(sizes.values())
    assert max(sizes.values()) <= 4000
    assert weights.load(str(run.merged)).architecture.vocab_size == PADDED_VOCABULARY


def test_bfloat16_rounds_the_weights_once_and_the_proof_says_how_far_that_goes(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    proof = run.export(dtype="bfloat16")
    assert 1e-4 < proof["merged"] == proof["rounding"]["logits"]
    assert 0.0 < proof["rounding"]["kl"] < 0.01
    assert load_file(run.merged / "model.safetensors")["model.norm.weight"].dtype == jnp.bfloat16
    assert json.loads((run.merged / "config.json").read_text())["dtype"] == "bfloat16"
    assert "Rounding the weights takes them from the policy" in (run.merged / "README.md").read_text()


@pytest.mark.parametrize(("quantise", "dtype"), [("nf4", "float32"), ("none", "bfloat16")])
def test_what_was_trained_on_other_numbers_leaves_on_the_original_ones_and_the_difference_is_told(
    quantise: Any, dtype: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_run(tmp_path, quantise=quantise, dtype=dtype)
    proof = run.export()
    held = proof["as_trained"]
    assert (held["quantise"], held["dtype"]) == (quantise, dtype)
    assert proof["adapter"] == 0.0
    assert proof["merged"] < 1e-4 < held["logits"]
    assert 0.0 < held["kl"] < 0.1
    assert 0.0 <= held["greedy_agreement"] <= 1.0
    before, after = (load_file(tmp_path / name / "model.safetensors") for name in ("base", "merged"))
    np.testing.assert_array_equal(after["model.embed_tokens.weight"], before["model.embed_tokens.weight"])
    told = f"{held['kl']:.2g} nats per token"
    assert told in capsys.readouterr().err
    for folder in (run.adapter, run.merged):
        assert told in (folder / "README.md").read_text()


def test_a_base_that_is_gone_or_changed_is_named_with_its_fingerprint(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    (tmp_path / "base").rename(tmp_path / "weights")
    write_base(tmp_path / "base", str(tmp_path / "weights"), dtype="float32")
    fingerprint = run.exported.base.fingerprint
    (tmp_path / "weights").rename(tmp_path / "elsewhere")
    with pytest.raises(WeightsError, match=rf"\(fingerprint {fingerprint}\) is no longer where it was.*weights"):
        run.export()
    (tmp_path / "elsewhere").rename(tmp_path / "weights")
    tensors = load_file(tmp_path / "weights" / "model.safetensors")
    save_file(
        {**tensors, "model.norm.weight": tensors["model.norm.weight"] + 1}, tmp_path / "weights" / "model.safetensors"
    )
    with pytest.raises(WeightsError, match=f"are not those that init_model saw .*{fingerprint}"):
        run.export()


def test_a_proof_without_the_other_libraries_says_which_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export_proof, "PEERS", ("torch", "no_such_library"))
    run = make_run(tmp_path)
    proof = run.export()
    assert proof["skipped"].endswith("no_such_library")
    assert proof["skipped"].startswith("not installed: ")
    assert proof.keys().isdisjoint(PEERS)
    assert "- others: not installed: " in (run.merged / "README.md").read_text()


def test_without_a_task_nothing_can_be_proven_and_it_is_said_before_anything_is_written(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    (tmp_path / "tasks" / "test.jsonl").write_text('{"id": "0", "prompt": ""}\n')
    with pytest.raises(DataError, match="no test task with a prompt"):
        run.export()
    assert not run.merged.exists()


def test_stop_strings_are_refused_as_engines_would_leave_them_unread() -> None:
    with pytest.raises(ConfigError, match=r"export\.sampling\.stop_strings"):
        export_run.from_json(export_run.ExportConfig, '{"sampling": {"stop_strings": ["x"]}}', where="export")


@contextmanager
def peak() -> Iterator[list[int]]:
    """The most bytes that numpy held within, besides what it held before."""
    found: list[int] = []
    tracemalloc.start()
    yield found
    found.append(tracemalloc.get_traced_memory()[1])
    tracemalloc.stop()


def test_a_merged_checkpoint_is_written_with_one_shard_in_memory(tmp_path: Path) -> None:
    sizes = {"hidden_size": 128, "intermediate_size": 512, "num_hidden_layers": 12, "vocab_size": 64}
    architecture = Architecture.from_huggingface({**LLAMA, **sizes})
    shapes = stored_shapes(architecture)
    total = 4 * sum(int(np.prod(shape)) for shape in shapes.values())

    def ones(shape: tuple[int, ...]) -> Stored:
        return Stored(shape, lambda start, stop: np.ones((stop - start, *shape[1:]), np.float32))

    source = Source(tmp_path, architecture, {name: ones(shape) for name, shape in shapes.items()})
    tensors = merged_tensors(source, trained_adapter(architecture))
    shard = 10 * 4 * 128 * 512  # ten of the largest tensors
    with peak() as held:
        write_tensors(tmp_path / "merged", architecture, tensors, dtype="float32", max_shard_bytes=shard)
    assert total > 4 * shard
    assert shard / 2 < held[0] < 1.5 * shard

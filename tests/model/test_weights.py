"""Folders that people have -> a base, or an error that names what is missing, unknown, doubled or misshapen."""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import save_file

from components.errors import WeightsError
from components.model.architecture import Architecture
from components.model.checkpoint_folder import write_checkpoint
from components.model.huggingface import huggingface_config, open_folder, to_huggingface_tensors
from components.model.weights import load, random_base
from tests.model.tiny import CONFIGS

Tensors = dict[str, np.ndarray]


def checkpoint(name: str = "llama", dtype=jnp.float32) -> tuple[dict, Tensors]:
    architecture = Architecture.from_huggingface(CONFIGS[name])
    base = random_base(jax.random.key(0), architecture, dtype)
    return huggingface_config(architecture), to_huggingface_tensors(architecture, base)


def write(folder: Path, config: dict, shards: dict[str, Tensors], *, index: dict[str, str] | None = None) -> str:
    (folder / "config.json").write_text(json.dumps(config))
    for name, tensors in shards.items():
        save_file(tensors, folder / name)
    if index is not None:
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    return str(folder)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3_moe", "gemma3", "gemma4_experts", "gemma4_shared"])
def test_what_is_written_is_read_back_bit_for_bit(name: str, dtype, tmp_path: Path) -> None:
    config, tensors = checkpoint(name, dtype)
    model = load(write(tmp_path, config, {"model.safetensors": tensors}), dtype=dtype)
    again = to_huggingface_tensors(model.architecture, model.base)
    assert again.keys() == tensors.keys()
    for key, tensor in tensors.items():
        assert again[key].dtype == tensor.dtype
        np.testing.assert_array_equal(again[key], tensor)


def test_shards_make_the_same_base_as_one_file(tmp_path: Path) -> None:
    config, tensors = checkpoint()
    first, second = dict(list(tensors.items())[:9]), dict(list(tensors.items())[9:])
    index = {**dict.fromkeys(first, "a.safetensors"), **dict.fromkeys(second, "b.safetensors")}
    model = load(write(tmp_path, config, {"a.safetensors": first, "b.safetensors": second}, index=index))
    again = to_huggingface_tensors(model.architecture, model.base)
    assert all(np.array_equal(again[key], tensors[key]) for key in tensors)


def test_missing_and_unexpected_tensors_are_named_with_their_number(tmp_path: Path) -> None:
    config, tensors = checkpoint()
    del tensors["model.layers.1.mlp.up_proj.weight"]
    tensors["model.layers.9.extra"] = np.zeros(2, np.float32)
    with pytest.raises(WeightsError) as raised:
        load(write(tmp_path, config, {"model.safetensors": tensors}))
    assert "1 missing (model.layers.1.mlp.up_proj.weight)" in str(raised.value)
    assert "1 unexpected (model.layers.9.extra)" in str(raised.value)


def test_two_names_for_one_weight_are_both_named_every_time(tmp_path: Path) -> None:
    both = {"lm_head.kernel": np.ones((2, 2), np.float32), "lm_head.weight": np.zeros((2, 2), np.float32)}
    write(tmp_path, {}, {"model.safetensors": both})
    for _ in range(50):
        with pytest.raises(WeightsError, match=r"1 weights have two .* \(lm_head\.kernel in .* and lm_head\.weight in"):
            open_folder(tmp_path)


def test_one_name_in_two_shards_names_both_files(tmp_path: Path) -> None:
    config, tensors = checkpoint()
    shards = {"a.safetensors": tensors, "b.safetensors": {"model.norm.weight": np.zeros(32, np.float32)}}
    write(tmp_path, config, shards)
    for _ in range(50):
        with pytest.raises(WeightsError, match=r"model\.norm\.weight in a\.safetensors and .* in b\.safetensors"):
            open_folder(tmp_path)


def test_an_index_that_names_what_no_file_holds_is_refused(tmp_path: Path) -> None:
    config, tensors = checkpoint()
    index = dict.fromkeys([*tensors, "ghost.weight"], "a.safetensors")
    with pytest.raises(WeightsError, match=r"no file of .* holds: ghost\.weight"):
        load(write(tmp_path, config, {"a.safetensors": tensors}, index=index))


def test_a_shard_that_is_not_there_is_named(tmp_path: Path) -> None:
    config, tensors = checkpoint()
    index = {**dict.fromkeys(tensors, "a.safetensors"), "lm_head.weight": "b.safetensors"}
    with pytest.raises(WeightsError, match=r"lacks b\.safetensors"):
        load(write(tmp_path, config, {"a.safetensors": tensors}, index=index))


def test_a_wrong_shape_is_named_with_both_shapes(tmp_path: Path) -> None:
    config, tensors = checkpoint()
    name = "model.layers.0.self_attn.q_proj.weight"
    tensors[name] = np.zeros((32, 32), np.float32)
    with pytest.raises(WeightsError, match=r"q_proj\.weight has shape \(32, 32\); its config asks for \(48, 32\)"):
        load(write(tmp_path, config, {"model.safetensors": tensors}))


def test_a_head_beside_tied_embeddings_must_equal_them(tmp_path: Path) -> None:
    config, tensors = checkpoint("llama_tied")
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].copy()
    assert load(write(tmp_path, config, {"model.safetensors": tensors})).base.head is None
    tensors["lm_head.weight"][3, 3] += 1
    with pytest.raises(WeightsError, match="although its config ties the two"):
        load(write(tmp_path, config, {"model.safetensors": tensors}))


def test_projections_of_layers_that_borrow_their_keys_are_left_unread(tmp_path: Path) -> None:
    config, tensors = checkpoint("gemma4_shared")
    extra = {f"model.layers.3.self_attn.{name}.weight": np.ones(2, np.float32) for name in ("k_proj", "v_proj")}
    model = load(write(tmp_path, config, {"model.safetensors": {**tensors, **extra}}))
    assert model.base.layers[3].k_proj is None
    assert to_huggingface_tensors(model.architecture, model.base).keys() == tensors.keys()


def test_a_missing_expert_is_named(tmp_path: Path) -> None:
    config, tensors = checkpoint("qwen3_moe")
    del tensors["model.layers.2.mlp.experts.4.up_proj.weight"]
    with pytest.raises(WeightsError, match=r"1 missing \(model\.layers\.2\.mlp\.experts\.4\.up_proj\.weight\)"):
        load(write(tmp_path, config, {"model.safetensors": tensors}))


def test_rows_that_pad_a_vocabulary_are_written_and_named_in_the_config(tmp_path: Path) -> None:
    sizes = {"vocab_size": 151_936, "hidden_size": 4, "intermediate_size": 4, "num_hidden_layers": 1}
    architecture = Architecture.from_huggingface({**CONFIGS["qwen2"], **sizes, "num_attention_heads": 2})
    write_checkpoint(tmp_path, architecture, random_base(jax.random.key(0), architecture), dtype="float32")
    assert json.loads((tmp_path / "config.json").read_text())["vocab_size"] == 151_936
    assert open_folder(tmp_path)["model.embed_tokens.weight"]().shape == (151_936, 4)


def test_the_language_model_inside_a_multimodal_checkpoint_is_found(tmp_path: Path) -> None:
    config, tensors = checkpoint("gemma3")
    inside = {key.replace("model.", "model.language_model.", 1): tensor for key, tensor in tensors.items()}
    inside["model.vision_tower.patch.weight"] = np.zeros(3, np.float32)
    outer = {"model_type": "gemma3", "text_config": config}
    base = load(write(tmp_path, outer, {"model.safetensors": inside})).base
    np.testing.assert_array_equal(base.embedding, tensors["model.embed_tokens.weight"])


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("no/such/folder", "there is no file or folder no/such/folder"),
        ("package:no_such_package", "no package 'no_such_package' is installed"),
        ("package:json", "holds no .gguf file"),
    ],
)
def test_a_source_that_is_not_there_is_named(source: str, message: str) -> None:
    with pytest.raises(WeightsError, match=message):
        load(source)


def test_a_folder_without_a_config_says_so(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match=r"holds no config\.json"):
        load(str(tmp_path))

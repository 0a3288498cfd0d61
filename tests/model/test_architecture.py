"""Configs that people have -> an architecture, or an error that names what is wrong."""

import json
from pathlib import Path

import numpy as np
import pytest

from components.errors import WeightsError
from components.model.architecture import Architecture
from components.model.attention import inverse_frequencies
from components.model.switches import GlobalHeads, Llama3Scaling, PartialRotation, Rope
from tests.model.tiny import CONFIGS

SHARED = Path(__file__).resolve().parents[2].parent / "shared" / "cases" / "files" / "hf_configs"


def published(name: str) -> Architecture:
    path = SHARED / f"{name}.config.json"
    if not path.is_file():
        pytest.skip(f"the case bank is not beside the repository: no {path.name}")
    return Architecture.from_huggingface(json.loads(path.read_text()))


@pytest.mark.parametrize(
    ("name", "layers", "width", "head_dim", "tied"),
    [
        ("llama-3.1-8b-instruct", 32, 4096, 128, False),
        ("llama-3.2-1b-instruct", 16, 2048, 64, True),
        ("qwen2.5-7b-instruct", 28, 3584, 128, False),
        ("qwen3-0.6b-sft", 28, 1024, 128, True),
        ("qwen3-8b", 36, 4096, 128, False),
    ],
)
def test_a_published_config_is_read(name: str, layers: int, width: int, head_dim: int, tied: bool) -> None:
    found = published(name)
    assert (found.n_layers, found.d_model, found.head_dim, found.tie_embeddings) == (layers, width, head_dim, tied)
    assert found.windows == (None,) * layers
    assert len(found.eos_token_ids) == (3 if found.family == "llama" else 1)


def test_a_head_size_in_the_config_wins_over_width_by_heads() -> None:
    qwen = published("qwen3-0.6b-sft")
    assert qwen.linear_shape("q_proj") == (1024, 2048)
    assert qwen.linear_shape("k_proj") == (1024, 1024)
    assert qwen.linear_shape("o_proj") == (2048, 1024)
    assert qwen.query_scale == pytest.approx(128**-0.5)


def test_a_head_size_that_is_not_given_is_width_by_heads() -> None:
    llama = published("llama-3.1-8b-instruct")
    assert llama.head_dim == 128
    assert llama.eos_token_ids == (128001, 128008, 128009)
    assert llama.rope == Rope(500_000.0, Llama3Scaling(8.0, 1.0, 4.0, 8192))
    assert not llama.tie_embeddings


def test_qwen2_has_biases_on_queries_keys_and_values_only() -> None:
    qwen = published("qwen2.5-7b-instruct")
    assert [module for module in ("q_proj", "k_proj", "v_proj", "o_proj", "up_proj") if qwen.biased(module)] == [
        "q_proj",
        "k_proj",
        "v_proj",
    ]


def test_llama3_scaling_divides_low_frequencies_and_keeps_high_ones() -> None:
    plain = inverse_frequencies(Rope(500_000.0), 128)
    scaled = inverse_frequencies(Rope(500_000.0, Llama3Scaling(8.0, 1.0, 4.0, 8192)), 128)
    np.testing.assert_allclose(scaled[0], plain[0])
    np.testing.assert_allclose(scaled[-1], plain[-1] / 8)


def test_partial_rotation_turns_the_first_planes_only() -> None:
    found = inverse_frequencies(Rope(1e6, PartialRotation(0.25, factor=2.0)), 16)
    np.testing.assert_allclose(found, [0.5, 0.5 * 1e6 ** (-2 / 16), 0, 0, 0, 0, 0, 0], rtol=1e-6)


def test_layers_have_the_modules_and_shapes_that_their_kind_has() -> None:
    gemma = Architecture.from_huggingface(CONFIGS["gemma4_shared"])
    assert [gemma.kv_owner(layer) for layer in range(4)] == [0, 1, 0, 1]
    assert gemma.linear_shapes(1)["k_proj"] == (32, 2 * 16)
    assert "k_proj" not in gemma.linear_shapes(3)
    assert [gemma.linear_shape("up_proj", layer)[1] for layer in range(4)] == [48, 48, 96, 96]
    with pytest.raises(WeightsError, match=r"q_proj of this gemma4_text model has several .*\(32, 48\), \(32, 64\)"):
        gemma.linear_shape("q_proj")


def test_a_module_that_is_a_mixture_in_some_layers_is_refused_by_name() -> None:
    qwen = Architecture.from_huggingface(CONFIGS["qwen3_moe"])
    assert qwen.linear_shape("gate_proj", 1) == (32, 48)
    with pytest.raises(WeightsError, match=r"no linear module gate_proj in layers 0, 2; its experts take no adapter"):
        qwen.linear_shape("gate_proj")


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ({"global_head_dim": 16, "num_global_key_value_heads": 1}, GlobalHeads(2, 16)),
        ({"global_head_dim": 16, "num_global_key_value_heads": 1, "attention_k_eq_v": True}, GlobalHeads(1, 16, False)),
        ({"per_layer_config": {"1": {"head_dim": 20}, "3": {"head_dim": 20}}}, GlobalHeads(2, 20)),
        ({}, GlobalHeads(2, 512)),
    ],
)
def test_heads_of_global_layers_are_read_in_both_spellings(sizes: dict, expected: GlobalHeads) -> None:
    config = {key: value for key, value in CONFIGS["gemma4_shared"].items() if key != "global_head_dim"}
    assert Architecture.from_huggingface({**config, **sizes}).global_heads == expected


def test_heads_that_differ_from_layer_to_layer_are_refused() -> None:
    with pytest.raises(WeightsError, match="per_layer_config"):
        Architecture.from_huggingface({**CONFIGS["gemma4_shared"], "per_layer_config": {"1": {"head_dim": 20}}})


def test_the_ends_of_a_multimodal_config_are_those_of_its_text_model() -> None:
    text = {**CONFIGS["gemma4_shared"], "eos_token_id": None}
    gemma = Architecture.from_huggingface({"model_type": "gemma4", "text_config": text, "eos_token_id": [1, 106]})
    assert gemma.eos_token_ids == (1, 106)


def test_an_unknown_architecture_is_named() -> None:
    with pytest.raises(WeightsError, match=r"'mamba' is not supported; known: .*llama"):
        Architecture.from_huggingface({"model_type": "mamba"})


def test_a_missing_key_is_named() -> None:
    config = {key: value for key, value in CONFIGS["llama"].items() if key != "intermediate_size"}
    with pytest.raises(WeightsError, match="lacks the key 'intermediate_size'"):
        Architecture.from_huggingface(config)


@pytest.mark.parametrize(
    ("family", "setting"),
    [
        ("llama", {"attention_bias": True}),
        ("llama", {"mlp_bias": True}),
        ("llama", {"hidden_act": "relu"}),
        ("qwen2", {"use_sliding_window": True}),
        ("gemma4_shared", {"use_bidirectional_attention": "all"}),
        ("gemma4_shared", {"num_kv_shared_layers": 3}),
    ],
)
def test_a_setting_that_would_change_the_numbers_is_refused(family: str, setting: dict[str, object]) -> None:
    with pytest.raises(WeightsError, match=next(iter(setting))):
        Architecture.from_huggingface({**CONFIGS[family], **setting})


def test_an_unknown_rope_scaling_is_named() -> None:
    with pytest.raises(WeightsError, match="rope scaling 'yarn' is not supported"):
        Architecture.from_huggingface({**CONFIGS["llama"], "rope_scaling": {"type": "yarn", "factor": 2.0}})


def test_the_text_model_of_a_multimodal_gemma_is_found_with_its_defaults() -> None:
    text = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 7, "sliding_window": 16}
    gemma = Architecture.from_huggingface({"model_type": "gemma3", "text_config": text, "vision_config": {}})
    assert gemma.windows == (16, 16, 16, 16, 16, None, 16)
    assert (gemma.vocab_size, gemma.n_heads, gemma.head_dim) == (262_208, 8, 256)
    assert gemma.local_rope == Rope(10_000.0)
    assert gemma.rope == Rope(1_000_000.0)

"""Configs that people have -> an architecture, or an error that names what is wrong."""

import json
from pathlib import Path

import numpy as np
import pytest

from components.errors import WeightsError
from components.model.architecture import Architecture
from components.model.attention import inverse_frequencies
from components.model.switches import Llama3Scaling, Rope
from tests.model.tiny import CONFIGS

SHARED = Path(__file__).resolve().parents[2].parent / "shared" / "cases" / "files" / "hf_configs"


def published(name: str) -> Architecture:
    path = SHARED / f"{name}.config.json"
    if not path.is_file():
        pytest.skip(f"the case bank is not beside the repository: no {path.name}")
    return Architecture.from_huggingface(json.loads(path.read_text()))


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

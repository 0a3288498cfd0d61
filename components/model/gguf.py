"""A GGUF file -> a config and tensors as Hugging Face would store them.

Undoes what the conversion to GGUF did: names, quantisation, the order of the rows of Llama's query and key weights
(GGUF rotates neighbouring numbers, Hugging Face halves), and the 1 that was added to Gemma's norm weights.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFReader, ReaderTensor, dequantize

from components.errors import WeightsError
from components.model.attention import inverse_frequencies
from components.model.layout import EMBEDDING, FINAL_NORM, HEAD
from components.model.stored import Stored, StoredTensors
from components.model.switches import Llama3Scaling, Rope

_FAMILIES = {"llama": "llama", "qwen2": "qwen2", "qwen3": "qwen3", "gemma2": "gemma2", "gemma3": "gemma3_text"}
_WHOLE = {"token_embd": EMBEDDING, "output_norm": FINAL_NORM, "output": HEAD}
_PARTS = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "ffn_norm": "post_attention_layernorm",
}
_SANDWICH = {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_GEMMA3_27B_LAYERS = 62
_FREQUENCIES = "rope_freqs.weight"


class PlainReader(GGUFReader):
    """A reader over a plain view of the mapped file: a vocabulary is a million slices, slow in a memmap."""

    @property
    def data(self) -> Any:
        """The bytes of the file."""
        return self._plain

    @data.setter
    def data(self, mapped: np.ndarray) -> None:
        self._plain = mapped.view(np.ndarray)


def open_gguf(path: Path) -> tuple[dict[str, Any], StoredTensors]:
    """The model's config with the keys of a `config.json`, and its tensors, dequantised to float32 when read.

    Raises WeightsError that names an unknown architecture or a tensor that has no place in it.
    """
    try:
        reader = PlainReader(path)
    except (ValueError, OSError) as error:
        raise WeightsError(f"{path} cannot be read as GGUF: {error}") from error
    config = _config(reader, path)
    gemma, llama = config["model_type"].startswith("gemma"), config["model_type"] == "llama"
    tensors: dict[str, Stored] = {}
    for tensor in reader.tensors:
        if tensor.name == _FREQUENCIES:
            continue
        name = _huggingface_name(tensor.name, gemma, path)
        heads = 0
        if llama and tensor.name.endswith(("attn_q.weight", "attn_k.weight")):
            heads = config["num_attention_heads" if "attn_q" in tensor.name else "num_key_value_heads"]
        tensors[name] = _stored(tensor, heads=heads, offset=1.0 if gemma and name.endswith("norm.weight") else 0.0)
    return config, tensors


def _config(reader: GGUFReader, path: Path) -> dict[str, Any]:
    architecture = _field(reader, "general.architecture")
    if architecture not in _FAMILIES:
        raise WeightsError(f"{path}: architecture {architecture!r} is not supported; known: {', '.join(_FAMILIES)}")

    def get(key: str, default: Any = None) -> Any:
        return _field(reader, f"{architecture}.{key}", default)

    names = {tensor.name: tensor for tensor in reader.tensors}
    heads, width, layers = get("attention.head_count"), get("embedding_length"), get("block_count")
    head_dim = get("attention.key_length", width // heads)
    config = {
        "model_type": _FAMILIES[architecture],
        "vocab_size": int(names["token_embd.weight"].shape[1]),
        "hidden_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": get("attention.head_count_kv", heads),
        "head_dim": head_dim,
        "intermediate_size": get("feed_forward_length"),
        # Written as float32; the digits that it was meant to have are the shortest that round to it.
        "rms_norm_eps": float(str(np.float32(get("attention.layer_norm_rms_epsilon")))),
        "max_position_embeddings": get("context_length"),
        "tie_word_embeddings": "output.weight" not in names,
        "rope_theta": get("rope.freq_base", 10_000.0),
        "rope_scaling": _scaling(get),
        "eos_token_id": _eos(reader),
        "bos_token_id": _field(reader, "tokenizer.ggml.bos_token_id"),
    }
    if _FREQUENCIES in names:
        config["rope_scaling"] = _llama3_scaling(names[_FREQUENCIES], config, path)
    if architecture.startswith("gemma"):
        # GGUF does not say how queries are scaled: by the size of a head, but in Gemma 3 27B by width / heads.
        wide = architecture == "gemma3" and layers == _GEMMA3_27B_LAYERS
        config["query_pre_attn_scalar"] = width // heads if wide else head_dim
        config["sliding_window"] = get("attention.sliding_window", 4096)
        config["rope_local_base_freq"] = get("rope.freq_base_swa", 10_000.0)
        config["attn_logit_softcapping"] = get("attn_logit_softcapping")
        config["final_logit_softcapping"] = get("final_logit_softcapping")
    return config


def _scaling(get: Callable[..., Any]) -> dict[str, Any] | None:
    kind = get("rope.scaling.type", "none")
    return None if kind == "none" else {"rope_type": kind, "factor": get("rope.scaling.factor")}


def _llama3_scaling(tensor: ReaderTensor, config: dict[str, Any], path: Path) -> dict[str, Any]:
    """The rule by whose frequencies those of plain rotation, divided by the tensor, are the file's."""
    divisors, theta = _stored(tensor, heads=0, offset=0.0)(), config["rope_theta"]
    factor = float(divisors.max())
    # Every Llama from 3.1 on was published with these; a file holds only what follows from them, and from the factor.
    rule = Llama3Scaling(factor, low_freq_factor=1.0, high_freq_factor=4.0, original_positions=8192)
    plain, scaled = (inverse_frequencies(Rope(theta, each), config["head_dim"]) for each in (None, rule))
    if divisors.shape != plain.shape or not np.allclose(plain / divisors, scaled, rtol=1e-4, atol=0.0):
        raise WeightsError(
            f"{path} divides its rotary frequencies by a tensor ({_FREQUENCIES}) that Llama 3's rule does not give; "
            "load the Hugging Face folder instead, whose config says by which rule"
        )
    return {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": rule.low_freq_factor,
        "high_freq_factor": rule.high_freq_factor,
        "original_max_position_embeddings": rule.original_positions,
    }


def _eos(reader: GGUFReader) -> list[int]:
    ends = [_field(reader, f"tokenizer.ggml.{key}_token_id") for key in ("eos", "eot", "eom")]
    return sorted({end for end in ends if end is not None})


def _field(reader: GGUFReader, key: str, default: Any = None) -> Any:
    field = reader.get_field(key)
    return default if field is None else field.contents()


def _huggingface_name(name: str, gemma: bool, path: Path) -> str:
    stem, _, kind = name.rpartition(".")
    if stem in _WHOLE and kind == "weight":
        return _WHOLE[stem]
    parts = {**_PARTS, **_SANDWICH} if gemma else _PARTS
    prefix, _, rest = stem.partition(".")
    index, _, part = rest.partition(".")
    if prefix != "blk" or part not in parts:
        raise WeightsError(f"{path} holds a tensor {name} that this decoder has no place for")
    return f"model.layers.{index}.{parts[part]}.{kind}"


def _stored(tensor: ReaderTensor, *, heads: int, offset: float) -> Stored:
    shape = tuple(int(size) for size in reversed(tensor.shape))
    # Rows of a head are turned among each other, so a head is read whole.
    step = shape[0] // heads if heads else 1

    def read(start: int, stop: int) -> np.ndarray:
        values = dequantize(tensor.data[start:stop], tensor.tensor_type)
        if heads:
            halves = values.reshape(-1, step // 2, 2, shape[1])
            return halves.swapaxes(1, 2).reshape(values.shape)
        return values - offset if offset else values

    return Stored(shape, read, step)

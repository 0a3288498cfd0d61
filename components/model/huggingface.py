"""Hugging Face names and layouts <-> a `Base`: the one naming that every source of weights is translated to.

In a Hugging Face checkpoint a linear weight is `[out, in]` and Gemma's norm weights have 1 subtracted. Here tensors
go one at a time, so that loading holds at most one of them twice.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from safetensors import safe_open

from components.errors import WeightsError
from components.model.architecture import Architecture, LinearScaling, Llama3Scaling, Rope
from components.model.base import LINEAR_MODULES, Base, Layer, Linear, module_name

Tensors = Mapping[str, Callable[[], np.ndarray]]

EMBEDDING, FINAL_NORM, HEAD = "model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"
_BUFFERS_AND_VISION = re.compile(r".*rotary_emb\.inv_freq|(model\.)?(vision_tower|multi_modal_projector)\..*")
_CLASSES = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "gemma2": "Gemma2ForCausalLM",
    "gemma3_text": "Gemma3ForCausalLM",
}


class _Norm(NamedTuple):
    """Where a norm weight stands in a `Layer`, in a checkpoint, and how many numbers it has."""

    field: str
    name: str
    width: int


def read_config(folder: Path) -> dict[str, Any]:
    """The folder's `config.json`."""
    path = folder / "config.json"
    if not path.is_file():
        raise WeightsError(f"{folder} holds no config.json; a Hugging Face folder has one beside its safetensors")
    return json.loads(path.read_text())


def open_folder(folder: Path) -> Tensors:
    """Every tensor of the folder's safetensors files, single or sharded, by its canonical name; read when called.

    Raises WeightsError where two names, or two files, hold the same tensor, and where the index and the files differ.
    """
    index = folder / "model.safetensors.index.json"
    placed: dict[str, str] = json.loads(index.read_text())["weight_map"] if index.is_file() else {}
    files = sorted({folder / name for name in placed.values()} if placed else folder.glob("*.safetensors"))
    lost = [path.name for path in files if not path.is_file()]
    if lost or not files:
        raise WeightsError(f"{folder} lacks {', '.join(lost) or 'any *.safetensors file'}")
    found = [(key, path) for path in files for key in _keys(path) if not _BUFFERS_AND_VISION.fullmatch(key)]
    unplaced = sorted(set(placed) - {key for key, _ in found})
    if any(not _BUFFERS_AND_VISION.fullmatch(key) for key in unplaced):
        raise WeightsError(f"{index.name} names tensors that no file of {folder} holds: {_listed(unplaced)}")
    _refuse_doubles(found)
    return {_canonical(key): _reader(path, key) for key, path in found}


def assemble(architecture: Architecture, tensors: Tensors, *, dtype: DTypeLike, where: str) -> Base:
    """Make a base of tensors in Hugging Face names and layouts.

    Raises WeightsError that names missing and unexpected tensors, with their number, and a wrong shape.
    """
    names = dict(_expected(architecture))
    spare = {HEAD} if architecture.tie_embeddings else set()
    missing, unexpected = sorted(names.keys() - tensors.keys()), sorted(tensors.keys() - names.keys() - spare)
    if missing or unexpected:
        raise WeightsError(
            f"{where} does not fit a {architecture.family} model of {architecture.n_layers} layers: "
            f"{len(missing)} missing ({_listed(missing)}), {len(unexpected)} unexpected ({_listed(unexpected)})"
        )

    def read(name: str) -> np.ndarray:
        tensor = tensors[name]()
        if tensor.shape != names[name]:
            raise WeightsError(f"{where}: {name} has shape {tensor.shape}; its config asks for {names[name]}")
        return tensor

    if architecture.tie_embeddings and HEAD in tensors and not np.array_equal(tensors[HEAD](), read(EMBEDDING)):
        raise WeightsError(f"{where}: {HEAD} differs from {EMBEDDING}, although its config ties the two")
    return Base(
        embedding=_device(read(EMBEDDING), dtype),
        layers=tuple(_read_layer(architecture, index, read, dtype) for index in range(architecture.n_layers)),
        final_norm=_device(read(FINAL_NORM), jnp.float32) + _offset(architecture),
        head=None if architecture.tie_embeddings else _device(read(HEAD), dtype),
    )


def to_huggingface_tensors(architecture: Architecture, base: Base) -> dict[str, np.ndarray]:
    """The base in Hugging Face names and layouts, every tensor contiguous and in the dtype of the embedding."""
    dtype, offset = base.embedding.dtype, _offset(architecture)
    tensors = {EMBEDDING: np.asarray(base.embedding), FINAL_NORM: np.asarray((base.final_norm - offset).astype(dtype))}
    if base.head is not None:
        tensors[HEAD] = np.asarray(base.head)
    for index, layer in enumerate(base.layers):
        for norm in _norms(architecture, index):
            tensors[norm.name] = np.asarray((vars(layer)[norm.field] - offset).astype(dtype))
        for module in LINEAR_MODULES:
            linear: Linear = vars(layer)[module]
            tensors[f"{module_name(index, module)}.weight"] = np.ascontiguousarray(np.asarray(linear.weight).T)
            if linear.bias is not None:
                tensors[f"{module_name(index, module)}.bias"] = np.asarray(linear.bias.astype(dtype))
    return tensors


def huggingface_config(architecture: Architecture) -> dict[str, Any]:
    """The `config.json` that transformers 4 and 5 read as this architecture (without a dtype)."""
    gemma = architecture.unit_offset_norms
    config = {
        "architectures": [_CLASSES[architecture.family]],
        "model_type": architecture.family,
        "vocab_size": architecture.vocab_size,
        "hidden_size": architecture.d_model,
        "num_hidden_layers": architecture.n_layers,
        "num_attention_heads": architecture.n_heads,
        "num_key_value_heads": architecture.n_kv_heads,
        "head_dim": architecture.head_dim,
        "intermediate_size": architecture.d_ff,
        "rms_norm_eps": architecture.norm_eps,
        "max_position_embeddings": architecture.max_positions,
        "tie_word_embeddings": architecture.tie_embeddings,
        "rope_theta": architecture.rope.theta,
        "rope_scaling": _scaling(architecture.rope),
        "attention_bias": False,
        "eos_token_id": list(architecture.eos_token_ids) or None,
        "bos_token_id": architecture.bos_token_id,
        "hidden_activation" if gemma else "hidden_act": "gelu_pytorch_tanh" if gemma else "silu",
    }
    return {**config, **(_gemma_config(architecture) if gemma else {})}


def _gemma_config(architecture: Architecture) -> dict[str, Any]:
    windows = [window for window in architecture.windows if window is not None]
    local = {} if architecture.local_rope is None else {"rope_local_base_freq": architecture.local_rope.theta}
    return {
        **local,
        "query_pre_attn_scalar": round(architecture.query_scale**-2),
        "attn_logit_softcapping": architecture.attention_softcap,
        "final_logit_softcapping": architecture.final_softcap,
        "layer_types": ["full_attention" if window is None else "sliding_attention" for window in architecture.windows],
        "sliding_window": windows[0] if windows else None,
    }


def _scaling(rope: Rope) -> dict[str, Any] | None:
    match rope.scaling:
        case LinearScaling(factor):
            return {"rope_type": "linear", "factor": factor}
        case Llama3Scaling(factor, low, high, original):
            return {
                "rope_type": "llama3",
                "factor": factor,
                "low_freq_factor": low,
                "high_freq_factor": high,
                "original_max_position_embeddings": original,
            }
    return None


def _offset(architecture: Architecture) -> float:
    return 1.0 if architecture.unit_offset_norms else 0.0


def _norms(architecture: Architecture, index: int) -> list[_Norm]:
    layer, width = f"model.layers.{index}", architecture.d_model
    norms = [_Norm("attention_norm", f"{layer}.input_layernorm.weight", width)]
    if architecture.sandwich_norms:
        norms += [
            _Norm("post_attention_norm", f"{layer}.post_attention_layernorm.weight", width),
            _Norm("mlp_norm", f"{layer}.pre_feedforward_layernorm.weight", width),
            _Norm("post_mlp_norm", f"{layer}.post_feedforward_layernorm.weight", width),
        ]
    else:
        norms.append(_Norm("mlp_norm", f"{layer}.post_attention_layernorm.weight", width))
    if architecture.qk_norm:
        heads = [(f"{part}_norm", f"{layer}.self_attn.{part}_norm.weight") for part in "qk"]
        norms += [_Norm(field, name, architecture.head_dim) for field, name in heads]
    return norms


def _expected(architecture: Architecture) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Name and shape of every tensor of a checkpoint."""
    matrix = (architecture.vocab_size, architecture.d_model)
    yield EMBEDDING, matrix
    yield FINAL_NORM, (architecture.d_model,)
    if not architecture.tie_embeddings:
        yield HEAD, matrix
    for index in range(architecture.n_layers):
        yield from ((norm.name, (norm.width,)) for norm in _norms(architecture, index))
        for module in LINEAR_MODULES:
            inputs, outputs = architecture.linear_shape(module)
            yield f"{module_name(index, module)}.weight", (outputs, inputs)
            if architecture.biased(module):
                yield f"{module_name(index, module)}.bias", (outputs,)


def _read_layer(architecture: Architecture, index: int, read: Callable[[str], np.ndarray], dtype: DTypeLike) -> Layer:
    offset = _offset(architecture)
    fields: dict[str, Any] = {
        norm.field: _device(read(norm.name), jnp.float32) + offset for norm in _norms(architecture, index)
    }
    for module in LINEAR_MODULES:
        name = module_name(index, module)
        bias = _device(read(f"{name}.bias"), jnp.float32) if architecture.biased(module) else None
        fields[module] = Linear(weight=_device(read(f"{name}.weight").T, dtype), bias=bias)
    return Layer(**fields)


def _device(tensor: np.ndarray, dtype: DTypeLike) -> jax.Array:
    # Cast before the copy to the device, so that a large float32 tensor never stands there beside its bfloat16 self.
    return jnp.array(np.ascontiguousarray(tensor.astype(dtype, copy=False)))


def _keys(path: Path) -> list[str]:
    with safe_open(path, framework="numpy") as file:
        return list(file.keys())


def _reader(path: Path, key: str) -> Callable[[], np.ndarray]:
    def read() -> np.ndarray:
        with safe_open(path, framework="numpy") as file:
            return file.get_tensor(key)

    return read


def _canonical(key: str) -> str:
    """The name without the prefix under which a multimodal checkpoint keeps its language model."""
    key = re.sub(r"^(model\.language_model|language_model\.model)\.", "model.", key)
    return key.removeprefix("language_model.")


def _refuse_doubles(found: list[tuple[str, Path]]) -> None:
    places: dict[str, list[str]] = {}
    for key, path in found:
        target = re.sub(r"\.kernel$", ".weight", _canonical(key))
        places.setdefault(target, []).append(f"{key} in {path.name}")
    doubles = [f"{target} ({' and '.join(held)})" for target, held in sorted(places.items()) if len(held) > 1]
    if doubles:
        raise WeightsError(f"{len(doubles)} weights have two sources; keep one of each: {_listed(doubles)}")


def _listed(names: list[str], limit: int = 8) -> str:
    more = f", and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more if names else "none"

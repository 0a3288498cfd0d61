"""Hugging Face names and layouts <-> a `Base`: the one naming that every source of weights is translated to.

In a Hugging Face checkpoint a linear weight is `[out, in]` and Gemma's norm weights have 1 subtracted. Each tensor
goes some rows at a time from its file to the memory where it stays, so that loading holds the model and little else.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from functools import partial
from itertools import chain
from operator import attrgetter
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from safetensors import safe_open

from components.errors import WeightsError
from components.model.architecture import Architecture
from components.model.base import LINEAR_MODULES, Base, Beside, Experts, Layer, LayerInput, Linear, SecondEmbedding
from components.model.layout import EMBEDDING, HEAD, Place, layer_places, top_places
from components.model.placement import HERE, Placement
from components.model.quantise import Kind, Matrix, is_table, store
from components.model.sharding import Axes, logical_axes
from components.model.stored import Stored, StoredTensors, room, to_device
from components.model.switches import LinearScaling, Llama3Scaling, PartialRotation, Rope

Tensors = Mapping[str, Callable[[], np.ndarray]]

_BUFFERS_AND_SENSES = re.compile(
    r".*rotary_emb\.inv_freq|(model\.)?(vision_tower|multi_modal_projector|audio_tower|embed_vision|embed_audio)\..*"
)
_CLASSES = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
    "gemma2": "Gemma2ForCausalLM",
    "gemma3_text": "Gemma3ForCausalLM",
    "gemma4_text": "Gemma4ForCausalLM",
}
_RECORDS: dict[str, Callable[..., Any]] = {
    **dict.fromkeys((*LINEAR_MODULES, "gate", "projection"), Linear),
    "experts": Experts,
    "beside": Beside,
    "layer_input": LayerInput,
    "second_embedding": SecondEmbedding,
}


def read_config(folder: Path) -> dict[str, Any]:
    """The folder's `config.json`."""
    path = folder / "config.json"
    if not path.is_file():
        raise WeightsError(f"{folder} holds no config.json; a Hugging Face folder has one beside its safetensors")
    return json.loads(path.read_text())


def open_folder(folder: Path) -> StoredTensors:
    """Every tensor of the folder's safetensors files, single or sharded, by its canonical name; read when asked for.

    Raises WeightsError where two names, or two files, hold the same tensor, and where the index and the files differ.
    """
    index = folder / "model.safetensors.index.json"
    placed: dict[str, str] = json.loads(index.read_text())["weight_map"] if index.is_file() else {}
    files = sorted({folder / name for name in placed.values()} if placed else folder.glob("*.safetensors"))
    lost = [path.name for path in files if not path.is_file()]
    if lost or not files:
        raise WeightsError(f"{folder} lacks {', '.join(lost) or 'any *.safetensors file'}")
    shapes = {path: _shapes(path) for path in files}
    found = [(key, path) for path in files for key in shapes[path] if not _BUFFERS_AND_SENSES.fullmatch(key)]
    unplaced = sorted(set(placed) - {key for key, _ in found})
    if any(not _BUFFERS_AND_SENSES.fullmatch(key) for key in unplaced):
        raise WeightsError(f"{index.name} names tensors that no file of {folder} holds: {_listed(unplaced)}")
    _refuse_doubles(found)
    return {_canonical(key): Stored(shapes[path][key], partial(_rows, path, key)) for key, path in found}


def assemble(
    architecture: Architecture,
    tensors: StoredTensors,
    *,
    dtype: DTypeLike,
    where: str,
    quantise: Kind = "none",
    placement: Placement = HERE,
) -> Base:
    """Make a base of tensors in Hugging Face names and layouts, each placed and quantised before the next one is read.

    Raises WeightsError that names missing and unexpected tensors, with their number, and a wrong shape.
    """
    places = [*top_places(architecture)]
    layers = [[*layer_places(architecture, index)] for index in range(architecture.n_layers)]
    expected = {name: place.shape for place in chain(places, *layers) for name in place.names}
    _refuse_misfits(architecture, expected.keys(), tensors.keys(), where)
    for name, shape in expected.items():
        if tensors[name].shape != shape:
            raise WeightsError(f"{where}: {name} has shape {tensors[name].shape}; its config asks for {shape}")
    if architecture.tie_embeddings and HEAD in tensors and not tensors[HEAD].equals(tensors[EMBEDDING]):
        raise WeightsError(f"{where}: {HEAD} differs from {EMBEDDING}, although its config ties the two")

    def array(place: Place) -> Matrix | jax.Array:
        held = [tensors[name] for name in place.names]
        if quantise != "none" and is_table(place.field):
            return placement.weights(_stored_rows(place, held[0], quantise, dtype), place.field)
        # What is quantised is so from float32: it would be another matrix if it were rounded first.
        whole = _whole(place, held, dtype if quantise == "none" else jnp.float32, _offset(architecture))
        on_device = to_device(whole) if placement.mesh is None else placement.put(whole, _axes(place, whole))
        if quantise == "none":
            return on_device
        stored = store(place.field, on_device, quantise, dtype)
        # Or the numbers of many layers would wait for their turn.
        return jax.block_until_ready(placement.weights(stored, place.field))

    return Base(
        layers=tuple(Layer(**_nest({place.field: array(place) for place in each})) for each in layers),
        **_nest({place.field: array(place) for place in places}),
    )


def to_huggingface_tensors(architecture: Architecture, base: Base) -> dict[str, np.ndarray]:
    """The base in Hugging Face names and layouts, every tensor contiguous and in the dtype of the embedding."""
    tensors = dict(_tensors(architecture, base, top_places(architecture), base.embedding.dtype))
    for index, layer in enumerate(base.layers):
        tensors.update(_tensors(architecture, layer, layer_places(architecture, index), base.embedding.dtype))
    return tensors


def huggingface_config(architecture: Architecture) -> dict[str, Any]:
    """The `config.json` that transformers 4 and 5 read as this architecture (without a dtype)."""
    gemma = architecture.activation == "gelu_tanh"
    config: dict[str, Any] = {
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
        "attention_bias": False,
        "eos_token_id": list(architecture.eos_token_ids) or None,
        "bos_token_id": architecture.bos_token_id,
        "hidden_activation" if gemma else "hidden_act": "gelu_pytorch_tanh" if gemma else "silu",
    }
    windows = [window for window in architecture.windows if window is not None]
    if windows:
        kinds = ["full_attention" if window is None else "sliding_attention" for window in architecture.windows]
        config |= {"layer_types": kinds, "sliding_window": windows[0]}
    if architecture.value_norm:
        return config | _gemma4_config(architecture)
    config |= {"rope_theta": architecture.rope.theta, "rope_scaling": _scaling(architecture.rope)}
    if gemma:
        return config | _gemma_config(architecture)
    return config | _mixture_config(architecture)


def _gemma_config(architecture: Architecture) -> dict[str, Any]:
    local = {} if architecture.local_rope is None else {"rope_local_base_freq": architecture.local_rope.theta}
    return {
        **local,
        "query_pre_attn_scalar": round(architecture.query_scale**-2),
        "attn_logit_softcapping": architecture.attention_softcap,
        "final_logit_softcapping": architecture.final_softcap,
    }


def _gemma4_config(architecture: Architecture) -> dict[str, Any]:
    heads, second, mixture = architecture.global_heads, architecture.layer_embedding, architecture.mixture
    assert heads is not None
    assert architecture.local_rope is not None
    experts = {} if mixture is None else {"num_experts": mixture.count, "top_k_experts": mixture.per_token}
    return {
        **experts,
        "rope_parameters": {
            "full_attention": {"rope_theta": architecture.rope.theta, **(_scaling(architecture.rope) or {})},
            "sliding_attention": {"rope_theta": architecture.local_rope.theta, "rope_type": "default"},
        },
        "final_logit_softcapping": architecture.final_softcap,
        "global_head_dim": heads.head_dim,
        "num_global_key_value_heads": heads.n_kv_heads,
        "attention_k_eq_v": not heads.values,
        "num_kv_shared_layers": architecture.borrowing,
        "use_double_wide_mlp": architecture.borrower_d_ff is not None,
        "hidden_size_per_layer_input": 0 if second is None else second.width,
        "vocab_size_per_layer_input": architecture.vocab_size if second is None else second.vocab_size,
        "enable_moe_block": mixture is not None,
        "moe_intermediate_size": None if mixture is None else mixture.d_ff,
    }


def _mixture_config(architecture: Architecture) -> dict[str, Any]:
    mixture = architecture.mixture
    if mixture is None:
        return {}
    return {
        "num_experts": mixture.count,
        "num_experts_per_tok": mixture.per_token,
        "moe_intermediate_size": mixture.d_ff,
        "norm_topk_prob": mixture.normalised,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [layer for layer in range(architecture.n_layers) if layer not in mixture.layers],
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
        case PartialRotation(fraction, factor):
            return {"rope_type": "proportional", "partial_rotary_factor": fraction, "factor": factor}
    return None


def _offset(architecture: Architecture) -> float:
    return 1.0 if architecture.unit_offset_norms else 0.0


def _refuse_misfits(architecture: Architecture, expected: Set[str], found: Set[str], where: str) -> None:
    spare = {HEAD} if architecture.tie_embeddings else set()
    for layer in range(architecture.n_layers - architecture.borrowing, architecture.n_layers):
        # Layers that borrow their keys and values are published with projections that nothing reads.
        spare |= {f"model.layers.{layer}.self_attn.{name}.weight" for name in ("k_proj", "v_proj", "k_norm")}
    missing, unexpected = sorted(expected - found), sorted(found - expected - spare)
    if missing or unexpected:
        raise WeightsError(
            f"{where} does not fit a {architecture.family} model of {architecture.n_layers} layers: "
            f"{len(missing)} missing ({_listed(missing)}), {len(unexpected)} unexpected ({_listed(unexpected)})"
        )


def _axes(place: Place, array: np.ndarray) -> Axes:
    return logical_axes(place.field, array.ndim)


def _whole(place: Place, held: Sequence[Stored], dtype: DTypeLike, offset: float) -> np.ndarray:
    """The array of a place, as a base has it."""
    match place.kind:
        case "matrix":
            array = room(place.shape[::-1], dtype)
            held[0].into(array.T)
        case "experts":
            array = _experts(place, held, dtype)
        case "norm" | "vector":
            array = room(place.shape, np.float32)
            held[0].into(array)
            array += offset if place.kind == "norm" else 0.0
        case _:
            array = room(place.shape, dtype)
            held[0].into(array)
    return array


def _experts(place: Place, held: Sequence[Stored], dtype: DTypeLike) -> np.ndarray:
    """[experts, inputs, outputs] of what a checkpoint keeps in one tensor, or in one or two for each expert."""
    if len(held) == 1:
        count, outputs, inputs = place.shape
        array = room((count, inputs, outputs), dtype)
        held[0].into(array.swapaxes(1, 2))
        return array
    parts = 2 if place.field == "experts.gate_up" else 1
    outputs, inputs = place.shape
    array = room((len(held) // parts, inputs, parts * outputs), dtype)
    for number, each in enumerate(held):
        expert, part = divmod(number, parts)
        each.into(array[expert, :, part * outputs : (part + 1) * outputs].T)
    return array


def _stored_rows(place: Place, held: Stored, quantise: Kind, dtype: DTypeLike) -> Matrix:
    """A table as `quantise` stores it, block by block: a row's codes and scale depend on that row alone."""
    rows = jax.ShapeDtypeStruct(place.shape, jnp.float32)
    shapes = jax.eval_shape(lambda table: store(place.field, table, quantise, dtype), rows)
    arrays = jax.tree.map(lambda leaf: room(leaf.shape, leaf.dtype), shapes)
    for block, numbers in held.blocks():
        part = store(place.field, jnp.asarray(numbers, jnp.float32), quantise, dtype)
        for whole, leaf in zip(jax.tree.leaves(arrays), jax.tree.leaves(part), strict=True):
            whole[block] = leaf
    return jax.tree.map(to_device, arrays)


def _tensors(
    architecture: Architecture, record: Base | Layer, places: Iterator[Place], dtype: DTypeLike
) -> Iterator[tuple[str, np.ndarray]]:
    for place in places:
        array = attrgetter(place.field)(record)
        match place.kind:
            case "matrix":
                yield place.names[0], np.ascontiguousarray(np.asarray(array.astype(dtype)).T)
            case "experts":
                whole = np.ascontiguousarray(np.asarray(array.astype(dtype)).swapaxes(1, 2))
                yield from zip(place.names, whole.reshape(-1, *place.shape), strict=True)
            case "norm":
                yield place.names[0], np.asarray((array - _offset(architecture)).astype(dtype))
            case _:
                yield place.names[0], np.asarray(array.astype(dtype))


def _nest(arrays: Mapping[str, Any]) -> dict[str, Any]:
    """Arrays by dotted path -> the fields of a record, records inside it made."""
    fields: dict[str, Any] = {}
    inner: dict[str, dict[str, Any]] = {}
    for path, array in arrays.items():
        first, _, rest = path.partition(".")
        if rest:
            inner.setdefault(first, {})[rest] = array
        else:
            fields[first] = array
    return fields | {name: _RECORDS[name](**_nest(held)) for name, held in inner.items()}


def _shapes(path: Path) -> dict[str, tuple[int, ...]]:
    with safe_open(path, framework="numpy") as file:
        return {key: tuple(file.get_slice(key).get_shape()) for key in list(file.keys())}


def _rows(path: Path, key: str, start: int, stop: int) -> np.ndarray:
    # The file is opened for each block: while it is, the pages that were read count as this process's memory.
    with safe_open(path, framework="numpy") as file:
        return file.get_slice(key)[start:stop]


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

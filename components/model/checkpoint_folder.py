"""Tensors -> a Hugging Face folder: sharded safetensors, generation config, config; the tokenizer comes from others.

Tensors are asked for one after another and written shard by shard, so that one shard is in memory and never the model.
"""

import json
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from components.model.architecture import Architecture
from components.model.base import Base
from components.model.huggingface import Tensors, huggingface_config, to_huggingface_tensors
from components.model.layout import stored_shapes

MAX_SHARD_BYTES = 2_000_000_000
GENERATION_FILE = "generation_config.json"


def write_checkpoint(
    folder: Path, architecture: Architecture, base: Base, *, dtype: str, max_shard_bytes: int = MAX_SHARD_BYTES
) -> None:
    """`write_tensors` of a base that is in memory."""
    held = to_huggingface_tensors(architecture, base)
    tensors = {name: partial(held.__getitem__, name) for name in held}
    write_tensors(folder, architecture, tensors, dtype=dtype, max_shard_bytes=max_shard_bytes)


def write_tensors(
    folder: Path,
    architecture: Architecture,
    tensors: Tensors,
    *,
    dtype: str,
    max_shard_bytes: int = MAX_SHARD_BYTES,
    generation: Mapping[str, Any] | None = None,
) -> None:
    """Write the folder, all tensors cast to `dtype`; `config.json` comes last, so that a folder that has one is whole.

    The vocabulary is that of the embedding, padding included: an engine expects the rows that the config names, however
    many of them the tokenizer uses. `generation` is how to generate; without it the tokens that begin and end a text.
    """
    folder.mkdir(parents=True, exist_ok=True)
    _write_shards(folder, tensors, stored_shapes(architecture), np.dtype(dtype), max_shard_bytes)
    write_json(folder / GENERATION_FILE, ends_of_text(architecture) if generation is None else generation)
    write_json(folder / "config.json", {**huggingface_config(architecture), "dtype": dtype, "torch_dtype": dtype})


def write_json(path: Path, values: Mapping[str, Any]) -> None:
    """Write a settings file as people expect to read it."""
    path.write_text(json.dumps(values, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def ends_of_text(architecture: Architecture) -> dict[str, Any]:
    """A generation config that knows of no sampling rule."""
    ids = {"bos_token_id": architecture.bos_token_id, "eos_token_id": list(architecture.eos_token_ids) or None}
    return {key: value for key, value in ids.items() if value is not None}


def own_generation(folder: Path) -> dict[str, Any]:
    """The generation config that a checkpoint brings; empty where it brings none."""
    path = folder / GENERATION_FILE
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return found


def own_ends(folder: Path, architecture: Architecture) -> tuple[int, ...]:
    """Every token that ends a text, as the checkpoint names them: in its generation config, then in its config."""
    ends = own_generation(folder).get("eos_token_id") or []
    return tuple(dict.fromkeys([*([ends] if isinstance(ends, int) else ends), *architecture.eos_token_ids]))


def _write_shards(
    folder: Path, tensors: Tensors, shapes: Mapping[str, tuple[int, ...]], dtype: np.dtype[Any], max_bytes: int
) -> None:
    """One file where it all fits, else files named as transformers names them, with an index."""
    sizes = {name: int(np.prod(shape)) * dtype.itemsize for name, shape in shapes.items()}
    shards = [*_shards(sizes, max_bytes)]
    placed = {}
    for number, names in enumerate(shards, start=1):
        many = len(shards) > 1
        file = f"model-{number:05d}-of-{len(shards):05d}.safetensors" if many else "model.safetensors"
        _write_shard(folder / file, {name: tensors[name] for name in names}, dtype)
        placed.update(dict.fromkeys(names, file))
    if len(shards) > 1:
        index = {"metadata": {"total_size": sum(sizes.values())}, "weight_map": placed}
        write_json(folder / "model.safetensors.index.json", index)


def _write_shard(path: Path, tensors: Tensors, dtype: np.dtype[Any]) -> None:
    # The writer copies memory as it lies: what is not contiguous would come out in another order.
    held = {name: np.ascontiguousarray(read().astype(dtype, copy=False)) for name, read in tensors.items()}
    save_file(held, path, metadata={"format": "pt"})


def _shards(sizes: Mapping[str, int], max_bytes: int) -> Iterator[list[str]]:
    """Names in their order, as many together as fit; what is larger than a shard may be has one of its own."""
    names: list[str] = []
    held = 0
    for name, size in sizes.items():
        if names and held + size > max_bytes:
            yield names
            names, held = [], 0
        names.append(name)
        held += size
    yield names

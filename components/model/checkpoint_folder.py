"""A base -> a Hugging Face folder: sharded safetensors, generation config, config; the tokenizer comes from others."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from components.model.architecture import Architecture
from components.model.base import Base
from components.model.huggingface import huggingface_config, to_huggingface_tensors

MAX_SHARD_BYTES = 2_000_000_000


def write_checkpoint(
    folder: Path, architecture: Architecture, base: Base, *, dtype: str, max_shard_bytes: int = MAX_SHARD_BYTES
) -> None:
    """Write the folder; `config.json` comes last, so that a folder that has one is whole.

    The vocabulary is that of the embedding, padding included: an engine expects the rows that the config names, however
    many of them the tokenizer uses.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {
        name: tensor.astype(np.dtype(dtype), copy=False)
        for name, tensor in to_huggingface_tensors(architecture, base).items()
    }
    _write_shards(folder, tensors, max_shard_bytes)
    write_json(folder / "generation_config.json", _generation_config(architecture))
    write_json(folder / "config.json", {**huggingface_config(architecture), "dtype": dtype, "torch_dtype": dtype})


def write_json(path: Path, values: Mapping[str, Any]) -> None:
    """Write a settings file as people expect to read it."""
    path.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")


def _write_shards(folder: Path, tensors: Mapping[str, np.ndarray], max_bytes: int) -> None:
    """One file where it all fits, else files named as transformers names them, with an index."""
    shards: list[dict[str, np.ndarray]] = [{}]
    for name, tensor in tensors.items():
        held = sum(each.nbytes for each in shards[-1].values())
        if shards[-1] and held + tensor.nbytes > max_bytes:
            shards.append({})
        shards[-1][name] = tensor
    if len(shards) == 1:
        save_file(shards[0], folder / "model.safetensors", metadata={"format": "pt"})
        return
    placed = {}
    for number, shard in enumerate(shards, start=1):
        file = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        save_file(shard, folder / file, metadata={"format": "pt"})
        placed.update(dict.fromkeys(shard, file))
    total = sum(tensor.nbytes for tensor in tensors.values())
    write_json(folder / "model.safetensors.index.json", {"metadata": {"total_size": total}, "weight_map": placed})


def _generation_config(architecture: Architecture) -> dict[str, Any]:
    """Without a sampling rule: how to sample is said where the model is served."""
    ids = {"bos_token_id": architecture.bos_token_id, "eos_token_id": list(architecture.eos_token_ids) or None}
    return {key: value for key, value in ids.items() if value is not None}

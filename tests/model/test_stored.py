"""Tensors go from their files to where they stay in blocks, and nothing of them is held besides."""

import json
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import save_file

from components.model import stored
from components.model.architecture import Architecture
from components.model.huggingface import huggingface_config, to_huggingface_tensors
from components.model.quantise import quantise_tree
from components.model.stored import Stored, room, to_device
from components.model.weights import load, random_base
from tests.model.gguf_files import write_gguf
from tests.model.tiny import CONFIGS

WIDE = Architecture.from_huggingface(
    {**CONFIGS["llama_tied"], "vocab_size": 40_000, "eos_token_id": [2], "bos_token_id": None}
)
BLOCK_BYTES = 4 * 2**14


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored, "BLOCK_SIZE", BLOCK_BYTES // 4)


@contextmanager
def peak() -> Iterator[list[int]]:
    """The most bytes that numpy held within, besides what it held before."""
    found: list[int] = []
    tracemalloc.start()
    yield found
    found.append(tracemalloc.get_traced_memory()[1])
    tracemalloc.stop()


def write_safetensors(folder: Path, architecture: Architecture, dtype=jnp.bfloat16) -> str:
    tensors = to_huggingface_tensors(architecture, random_base(jax.random.key(0), architecture, dtype))
    (folder / "config.json").write_text(json.dumps(huggingface_config(architecture)))
    save_file(tensors, folder / "model.safetensors")
    return str(folder)


@pytest.mark.parametrize("kind", ["safetensors", "gguf"])
def test_loading_holds_the_model_and_a_few_blocks(kind: str, tmp_path: Path) -> None:
    if kind == "gguf":
        tensors = to_huggingface_tensors(WIDE, random_base(jax.random.key(0), WIDE))
        source = str(write_gguf(tmp_path / "model.gguf", "llama", WIDE, tensors))
    else:
        source = write_safetensors(tmp_path, WIDE)
    load(source)  # what is imported and compiled once
    with peak() as held:
        model = load(source)
    tree = sum(leaf.nbytes for leaf in jax.tree.leaves(model.base))
    assert tree > 50 * BLOCK_BYTES
    assert tree < held[0] < 1.1 * tree + 4 * BLOCK_BYTES


@pytest.mark.parametrize("kind", ["int8", "nf4"])
def test_a_table_quantised_block_by_block_is_the_table_quantised_whole(kind, tmp_path: Path) -> None:
    source = write_safetensors(tmp_path, WIDE)
    expected = quantise_tree(load(source).base, kind, jnp.float32)
    got = load(source, quantise=kind).base
    assert jax.tree.structure(got) == jax.tree.structure(expected)
    for ours, whole in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        np.testing.assert_array_equal(ours, whole)


def test_blocks_are_whole_steps_and_all_rows() -> None:
    rows = np.arange(10 * 2**12).reshape(10, -1)
    tensor = Stored(rows.shape, lambda start, stop: rows[start:stop], step=2)
    assert [(part.start, part.stop) for part, _ in tensor.blocks()] == [(0, 4), (4, 8), (8, 10)]
    turned = np.zeros(rows.shape[::-1], np.float32)
    tensor.into(turned.T)
    assert np.array_equal(turned, rows.T)
    assert np.array_equal(tensor(), rows)


def test_tensors_are_equal_only_when_their_last_block_is() -> None:
    rows = np.zeros((10, 2**12))
    other = rows.copy()
    tensors = [Stored(rows.shape, lambda start, stop, held=held: held[start:stop]) for held in (rows, other)]
    assert tensors[0].equals(tensors[1])
    other[-1, -1] = 1
    assert not tensors[0].equals(tensors[1])


@pytest.mark.parametrize("dtype", [np.float32, jnp.bfloat16])
def test_an_array_in_a_room_is_not_copied_to_a_cpu(dtype) -> None:
    array = room((7, 5), dtype)
    array[:] = 1
    assert to_device(array).unsafe_buffer_pointer() == array.ctypes.data

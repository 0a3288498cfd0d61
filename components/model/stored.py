"""A tensor as a file holds it -> the memory it is meant for, some rows at a time.

What is read lies in memory twice only for one block of it: a vocabulary's embedding is the largest tensor of a small
model, and reading it whole, casting it and copying it to its device would hold it three times.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.typing import DTypeLike

BLOCK_SIZE = 2**20
"""Numbers in a block: reading is as fast as with larger ones, and a block is nothing beside a model."""
_ALIGNMENT = 64
"""Bytes. From here on a CPU device takes an array as its own, without a copy."""


@dataclass(frozen=True, slots=True)
class Stored:
    """One tensor of `shape`. `read(start, stop)` gives these rows (along the first axis, of which there is one).

    Rows come in multiples of `step`, where several of them are stored as one.
    """

    shape: tuple[int, ...]
    read: Callable[[int, int], np.ndarray]
    step: int = 1

    def __call__(self) -> np.ndarray:
        """The whole tensor, in the dtype of its file."""
        return self.read(0, self.shape[0])

    def blocks(self) -> Iterator[tuple[slice, np.ndarray]]:
        """Which rows, and these rows, from the first to the last."""
        a_row = max(1, math.prod(self.shape[1:]))
        rows = self.step * max(1, BLOCK_SIZE // (a_row * self.step))
        for start in range(0, self.shape[0], rows):
            stop = min(start + rows, self.shape[0])
            yield slice(start, stop), self.read(start, stop)

    def into(self, target: np.ndarray) -> None:
        """Copy to `target`, of the same shape, cast to its dtype."""
        for rows, block in self.blocks():
            # Cast first: casting and turning in one go takes ten times as long.
            target[rows] = block.astype(target.dtype, copy=False)

    def equals(self, other: "Stored") -> bool:
        """Whether both hold the same numbers."""
        if self.shape != other.shape:
            return False
        return all(np.array_equal(block, other.read(rows.start, rows.stop)) for rows, block in self.blocks())


StoredTensors = Mapping[str, Stored]


def room(shape: tuple[int, ...], dtype: DTypeLike) -> np.ndarray:
    """Memory for an array, not yet filled, that becomes a device's own on a CPU."""
    kind: np.dtype[Any] = np.dtype(dtype)
    size = math.prod(shape) * kind.itemsize
    held = np.empty(size + _ALIGNMENT, np.uint8)
    start = -held.ctypes.data % _ALIGNMENT
    return held[start : start + size].view(kind).reshape(shape)


def to_device(array: np.ndarray) -> jax.Array:
    """The array on the default device; nobody may write to it from here on, as it may be the same memory."""
    return jax.device_put(array, may_alias=True)

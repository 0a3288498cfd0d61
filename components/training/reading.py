"""Samples as they come -> what a forward pass says at each of their sampled tokens, before they are trained on.

Samples are packed as they are for training, so what is read of one depends on the samples beside it in its last bits
only, and a run that is computed again reads the same bits.
"""

from collections.abc import Callable, Sequence

import numpy as np

from components.training.packing import Microbatch, Packer, PackingConfig
from components.types import Sample

Read = Callable[[Microbatch], Sequence[np.ndarray]]
"""A few flat arrays over the sampled tokens of a micro-batch, padding included."""


class Reading:
    """Takes samples with at least one sampled token each; a full micro-batch is read at once. Not thread-safe."""

    def __init__(self, packing: PackingConfig, read: Read) -> None:
        self._packer = Packer(packing, lambda length: 1.0)
        self._read = read
        self._lengths: list[int] = []
        self._parts: list[list[np.ndarray]] = []

    def add(self, samples: Sequence[Sample]) -> None:
        """Take some more."""
        for sample in samples:
            self._lengths.append(sum(sample.completion_mask))
            self._take(self._packer.add(sample))

    def finish(self) -> list[list[np.ndarray]]:
        """Per array that was read, the part of each sample, in the order in which they came. Then it is empty."""
        self._take(self._packer.flush())
        ends, parts = np.cumsum(self._lengths)[:-1], self._parts
        self._lengths, self._parts = [], []
        # A packer lays tokens out in the order of the samples.
        return [np.split(np.concatenate(part), ends) for part in zip(*parts, strict=True)]

    def _take(self, microbatch: Microbatch | None) -> None:
        if microbatch is None:
            return
        mask = np.asarray(microbatch.sampled.mask)
        self._parts.append([np.asarray(flat, np.float64)[mask] for flat in self._read(microbatch)])

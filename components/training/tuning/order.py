"""Numbered rows -> the order in which they are learnt from, as a function of the seed and of a position in rows.

Every epoch has an order of its own. A position counts rows since the start of the run, so it means the same after any
number of resumes and for any number of rows per step.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

_HELD_OUT = 1 << 32
"""Where an epoch's number stands in a seed; no epoch has this one."""


@dataclass
class RowOrder:
    """The rows `training`, in an order that `seed` and the epoch give."""

    training: Sequence[int]
    seed: int
    _known: dict[int, np.ndarray] = field(default_factory=dict)

    def take(self, position: int, count: int, end: int) -> list[int]:
        """The rows from `position` on: `count` of them, or fewer before `end`. A step may reach into the next epoch."""
        return [self._row(place) for place in range(position, min(position + count, end))]

    def _row(self, position: int) -> int:
        epoch, place = divmod(position, len(self.training))
        if epoch not in self._known:
            self._known = {epoch: np.random.default_rng([self.seed, epoch]).permutation(len(self.training))}
        return self.training[int(self._known[epoch][place])]


def split_held_out(rows: int, share: float, seed: int) -> tuple[list[int], list[int]]:
    """(rows to train on, rows to measure): the same ones for a seed. A share above 0 holds out one at least.

    At least one row is left to train on.
    """
    count = min(max(round(share * rows), 1), rows - 1) if share and rows > 1 else 0
    order = np.random.default_rng([seed, _HELD_OUT]).permutation(rows)
    return sorted(int(row) for row in order[count:]), sorted(int(row) for row in order[:count])

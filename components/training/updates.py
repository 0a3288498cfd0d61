"""What came of each update of an optimizer step -> the numbers of the step."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from components.algorithms.objective import mean_statistics

_OF_ONE_VERSION = ("same_version", "mismatch_kl")
"""Sums over the tokens of the policy's own version, which it is before the first update alone."""


@dataclass(frozen=True)
class Update:
    """One update that was made: sums over its micro-batches, what divided them, and what became of the weights."""

    statistics: Mapping[str, float]
    denominator: float
    applied: Mapping[str, float]
    microbatches: int

    def had_no_effect(self, key: str = "skipped") -> bool:
        """True when there was something to learn from, and it was not finite."""
        return bool(self.applied.get(key)) and self.denominator > 0


def pass_kl(updates: Iterable[Update]) -> float:
    """KL (nats per token) of the policy that sampled against the one that trains, over one pass; 0 without tokens."""
    sums = _added([update.statistics for update in updates])
    return sums["behavior_kl"] / sums["tokens"] if sums.get("tokens") else 0.0


def step_numbers(passes: Sequence[Sequence[Update]]) -> dict[str, float]:
    """Means over all updates of an optimizer step, each with its weight; `skipped` and `microbatches` are amounts.

    Tokens count once, however many passes were made over them. With several updates there are also their number
    (`updates`), that of the passes (`epochs`) and the KL of each pass (`epoch_kl_1`, ...).
    """
    updates = [update for each in passes for update in each]
    first, others = updates[0], updates[1:]
    later = [
        {key: update.statistics[key] for key in update.statistics if key not in _OF_ONE_VERSION} for update in others
    ]
    sums = _added([first.statistics, *later])
    means = mean_statistics(sums, sum(update.denominator for update in updates))
    means["trained_tokens"] /= len(passes)
    if others:
        at_first = mean_statistics(first.statistics, first.denominator)
        means |= {key: at_first[key] for key in ("same_version_share", "mismatch_kl") if key in at_first}
        means |= {"updates": len(updates), "epochs": len(passes)}
        means |= {f"epoch_kl_{number}": pass_kl(each) for number, each in enumerate(passes, start=1)}
    applied = {key: float(np.mean([update.applied[key] for update in updates])) for key in first.applied}
    amounts = {key: sum(update.applied[key] for update in updates) for key in applied if key.endswith("skipped")}
    return means | applied | amounts | {"microbatches": sum(update.microbatches for update in updates)}


def _added(parts: Sequence[Mapping[str, float]]) -> dict[str, float]:
    sums: dict[str, float] = {}
    for part in parts:
        for key, value in part.items():
            sums[key] = max(sums.get(key, 0.0), value) if key.endswith("_max") else sums.get(key, 0.0) + value
    return sums

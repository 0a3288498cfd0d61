"""Seconds that something took, many times over -> quantiles and a histogram, which add up from step to step."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

QUANTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99, "max": 1.0}

BOUNDS = tuple(digit * 10.0**power for power in range(-3, 3) for digit in (1, 2, 5))
"""Upper bounds of a histogram's buckets, in seconds, from a millisecond to 500 s; what took longer is in one more."""


def latency_numbers(seconds: Iterable[float]) -> dict[str, Any]:
    """{p50, p95, p99, max, seconds, histogram} of at least one measurement; `seconds` is their sum.

    `histogram` has the measurements of each bucket of BOUNDS, up to the last bucket that has any.
    """
    ordered = sorted(seconds)
    return {
        **{name: quantile(ordered, share) for name, share in QUANTILES.items()},
        "seconds": sum(ordered),
        "histogram": histogram(ordered),
    }


def quantile(ordered: Sequence[float], share: float) -> float:
    """The smallest of the ordered values that `share` of them do not exceed."""
    return ordered[max(math.ceil(share * len(ordered)), 1) - 1]


def histogram(seconds: Iterable[float]) -> list[int]:
    """How many are in each bucket, up to the last that has any: [0, 2] for 0.0015 and 0.002."""
    counts = Counter(next((at for at, bound in enumerate(BOUNDS) if each <= bound), len(BOUNDS)) for each in seconds)
    return [counts[at] for at in range(max(counts, default=-1) + 1)]


def merged(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The numbers of all parts together: p50, p95, p99 and max.

    A quantile is found in the sum of the histograms, and may be off by as much as its bucket is wide. Where a part has
    no histogram it is the mean of those of the parts, weighted by `calls`.
    """
    longest = max((part["max"] for part in parts if part.get("max") is not None), default=None)
    found: dict[str, float | None]
    whole = summed([part.get("histogram") or [] for part in parts])
    if longest is not None and all(part.get("histogram") for part in parts):
        found = {key: _estimated(whole, share, longest) for key, share in QUANTILES.items() if key != "max"}
    else:
        found = {key: _weighted_mean(parts, key) for key in QUANTILES if key != "max"}
    return {**found, "max": longest}


def summed(histograms: Sequence[Sequence[int]]) -> list[int]:
    """One histogram of several."""
    length = max(map(len, histograms), default=0)
    return [sum(each[at] for each in histograms if at < len(each)) for at in range(length)]


def _estimated(counts: Sequence[int], share: float, longest: float) -> float:
    """A quantile of a histogram: as far into its bucket as its rank is into the bucket's measurements."""
    rank, before = share * sum(counts), 0
    for at, count in enumerate(counts):
        if count and before + count >= rank:
            low = BOUNDS[at - 1] if at else 0.0
            high = min(BOUNDS[at], longest) if at < len(BOUNDS) else longest
            return low + (high - low) * (rank - before) / count
        before += count
    return longest


def _weighted_mean(parts: Sequence[Mapping[str, Any]], key: str) -> float | None:
    known = [(part[key], part.get("calls", 0)) for part in parts if part.get(key) is not None]
    weight = sum(calls for _, calls in known)
    return sum(value * calls for value, calls in known) / weight if weight else None

"""Calls of tools -> how often each was called, how that ended, and how long it took."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

QUANTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99, "max": 1.0}


def tool_numbers(calls: Iterable[tuple[str, str, float]]) -> dict[str, dict[str, Any]]:
    """Of (tool, outcome, seconds): per tool the number of calls, errors by kind, and quantiles of its seconds."""
    by_tool: dict[str, list[tuple[str, float]]] = {}
    for tool, outcome, seconds in calls:
        by_tool.setdefault(tool, []).append((outcome, seconds))
    return {tool: _numbers(members) for tool, members in sorted(by_tool.items())}


def quantile(ordered: Sequence[float], share: float) -> float:
    """The smallest of the ordered values that `share` of them do not exceed."""
    return ordered[max(math.ceil(share * len(ordered)), 1) - 1]


def _numbers(members: Sequence[tuple[str, float]]) -> dict[str, Any]:
    ordered = sorted(seconds for _, seconds in members)
    errors = Counter(outcome for outcome, _ in members if outcome != "ok")
    return {
        "calls": len(members),
        "errors": dict(errors),
        **{name: quantile(ordered, share) for name, share in QUANTILES.items()},
    }

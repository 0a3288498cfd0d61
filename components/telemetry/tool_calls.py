"""Calls of tools, and acts of environments -> how often there were such, how that ended, and how long it took."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from components.telemetry.latency import latency_numbers, merged
from components.telemetry.timeline import CLOSE, RESET, REWARD, STEP

ACTS = {RESET: "reset", STEP: "step", REWARD: "grade", CLOSE: "close"}
"""What an environment does in each phase of an episode; the other phase is the policy's."""


def tool_numbers(calls: Iterable[tuple[str, str, float]]) -> dict[str, dict[str, Any]]:
    """Of (tool, outcome, seconds): per tool the number of calls, errors by kind, and how long they took."""
    by_tool: dict[str, list[tuple[str, float]]] = {}
    for tool, outcome, seconds in calls:
        by_tool.setdefault(tool, []).append((outcome, seconds))
    return {tool: _numbers(members) for tool, members in sorted(by_tool.items())}


def environment_numbers(
    spent: Mapping[str, Sequence[float]], endings: Mapping[str | None, int]
) -> dict[str, dict[str, Any] | int]:
    """{episodes, errors: {kind: n}, acts: {reset: {calls, p50, ...}, step: ..., grade: ..., close: ...}}.

    `spent` are the seconds of each visit to a phase; `endings` counts episodes by what broke them, None where nothing.
    """
    return {
        "episodes": sum(endings.values()),
        "errors": {kind: count for kind, count in sorted(endings.items(), key=str) if kind is not None},
        "acts": {
            act: {"calls": len(spent[phase]), **latency_numbers(spent[phase])}
            for phase, act in ACTS.items()
            if spent.get(phase)
        },
    }


def merged_calls(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """{calls, errors: {kind: n}, p50, p95, p99, max} of all parts together."""
    calls = sum(part.get("calls", 0) for part in parts)
    return {"calls": calls, "errors": summed_errors(parts), **merged(parts)}


def summed_errors(parts: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """{kind: n} of all parts together."""
    errors: Counter[str] = Counter()
    for part in parts:
        errors.update(part.get("errors") or {})
    return dict(errors)


def _numbers(members: Sequence[tuple[str, float]]) -> dict[str, Any]:
    errors = Counter(outcome for outcome, _ in members if outcome != "ok")
    return {
        "calls": len(members),
        "errors": dict(errors),
        **latency_numbers(seconds for _, seconds in members),
    }

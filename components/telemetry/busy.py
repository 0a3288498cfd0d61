"""Where the time of a run went -> its waterfall by role and cause, bars of every step, and how long each tool took."""

from collections.abc import Mapping
from typing import Any

from markupsafe import Markup

from components.telemetry import formatting, plots
from components.telemetry.charts import pictures, trend
from components.telemetry.clock import STARTING, idle_share, is_waiting
from components.telemetry.latency import QUANTILES
from components.telemetry.palette import PAGE, page_colors, state_colors
from components.telemetry.run_files import RunRecord
from components.telemetry.tool_calls import merged_calls

ROLES = {"trainer": "Trainer", "engine": "Engine"}

_MOST_TOOLS = 6  # lines in one chart


def roles(run: RunRecord) -> list[dict[str, Any]]:
    """Every role of which seconds are known."""
    return [_role(run, role) for role in ROLES if run.seconds(role)]


def tools(run: RunRecord) -> dict[str, Any] | None:
    """Calls, errors and latency of each tool over the run, and the p95 of its steps; None where no tool was called."""
    totals = tool_totals(run)
    if not totals:
        return None
    by_calls = sorted(totals, key=lambda name: (-totals[name]["calls"], name))
    series = {name: run.series("tools", name, "p95") for name in by_calls[:_MOST_TOOLS]}
    return {
        "rows": [_tool_row(name, totals[name]) for name in by_calls],
        "trend": trend("Tool latency", "The p95 of each step, in seconds.", series),
    }


def times(numbers: Mapping[str, Any]) -> list[str]:
    """p50, p95, p99 and the longest, as texts."""
    return [formatting.seconds(numbers.get(key)) for key in QUANTILES]


def tool_totals(run: RunRecord) -> dict[str, dict[str, Any]]:
    """{tool: {calls, errors: {kind: n}, p50, p95, p99, max}} of the run: the summary's, or gathered from its steps.

    Quantiles of steps are put together as `telemetry.latency.merged` does.
    """
    if run.summary.get("tools"):
        return dict(run.summary["tools"])
    parts: dict[str, list[Mapping[str, Any]]] = {}
    for line in run.metrics:
        for name, numbers in (line.get("tools") or {}).items():
            parts.setdefault(name, []).append(numbers)
    return {name: merged_calls(numbers) for name, numbers in parts.items()}


def _tool_row(name: str, totals: Mapping[str, Any]) -> dict[str, Any]:
    errors = totals.get("errors") or {}
    failed, calls = sum(errors.values()), totals.get("calls", 0)
    return {
        "name": name,
        "calls": formatting.number(calls),
        "errors": formatting.percent(failed / calls) if calls else formatting.ABSENT,
        "kinds": ", ".join(f"{kind} {formatting.number(count)}" for kind, count in sorted(errors.items())),
        "times": times(totals),
    }


def _role(run: RunRecord, role: str) -> dict[str, Any]:
    """One role's waterfall and bars per step."""
    totals = run.seconds(role)
    colors = state_colors(sorted(totals, key=lambda state: -totals[state]), PAGE)
    steps = [(line["step"], line[f"{role}_seconds"]) for line in run.metrics if line.get(f"{role}_seconds")]
    drawn = pictures(
        role,
        f"Seconds of each optimizer step by state of the {role}",
        lambda size: plots.stacked_bars(steps, colors, unit="seconds", palette=PAGE, size=size),
        height=1.6,
    )
    return {
        "name": ROLES[role],
        "wide": drawn["wide"] if steps else None,
        "narrow": drawn["narrow"] if steps else None,
        "idle": formatting.percent(run.summary.get(f"{role}_idle_share", idle_share(totals))),
        "whole": formatting.seconds(sum(totals.values())),
        "states": _waterfall(totals, page_colors(colors)),
    }


def _waterfall(totals: Mapping[str, int | float], css: Mapping[str, str]) -> list[dict[str, Any]]:
    """One row a state: each bar begins where the one above ends. The start, then work, then waiting, the most first."""
    whole = sum(totals.values()) or 1.0
    order = sorted(totals, key=lambda state: (state != STARTING, is_waiting(state), -totals[state]))
    rows = []
    spent = 0.0
    for state in order:
        rows.append(
            {
                "name": state,
                "color": Markup(css[state]),
                "seconds": formatting.seconds(totals[state]),
                "share": formatting.percent(totals[state] / whole),
                "left": 100 * spent / whole,
                "width": 100 * totals[state] / whole,
                "waiting": is_waiting(state),
            }
        )
        spent += totals[state]
    return rows

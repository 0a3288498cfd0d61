"""The summary of a run -> the plain table that ends it on the terminal."""

from collections.abc import Mapping
from typing import Any

from components.telemetry.clock import is_waiting
from components.telemetry.formatting import number, percent, seconds
from components.telemetry.run_files import FATES, tokens_unaccounted

_INDENT = "  "


def format_table(summary: Mapping[str, Any]) -> str:
    """Reward and accuracy before and after, tokens by fate, seconds waiting by cause, and the path of the report.

    Keys are those of run_files.SUMMARY_KEYS; what is absent is left out.
    """
    sections = [
        ("Result", _result(summary)),
        ("Tokens", _tokens(summary.get("tokens", {}))),
        ("Waiting", [row for role in ("trainer", "engine") for row in _waiting(role, summary)]),
        ("Run", _run(summary)),
    ]
    width = max((len(label) for _, rows in sections for label, _ in rows), default=0)
    lines = []
    for title, rows in sections:
        if rows:
            lines += [title, *(f"{_INDENT}{label:<{width}}  {text}" for label, text in rows)]
    return "\n".join(lines).replace("\u202f", " ")


def _result(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    rows = []
    if "reward_after" in summary:
        rows.append(("reward", f"{number(summary.get('reward_before'))} -> {number(summary['reward_after'])}"))
    if "accuracy_after" in summary:
        text = f"{percent(summary.get('accuracy_before'))} -> {percent(summary['accuracy_after'])}"
        if interval := summary.get("accuracy_after_interval"):
            text += f"  (95 % interval {percent(interval[0])} to {percent(interval[1])})"
        rows.append(("accuracy", text))
    if summary.get("promotion"):
        rows.append(("promotion", str(summary["promotion"])))
    return rows


def _tokens(tokens: Mapping[str, int | float]) -> list[tuple[str, str]]:
    if not tokens:
        return []
    whole = tokens.get("generated", 0)
    amounts = {"generated": whole} | {fate: tokens.get(fate, 0) for fate in FATES}
    width = max(len(number(amount)) for amount in amounts.values())
    rows = [
        (name.replace("_", " "), f"{number(amount):>{width}}  {percent(amount / whole) if whole else '':>6}".rstrip())
        for name, amount in amounts.items()
    ]
    missing = tokens_unaccounted(tokens)
    return [*rows, ("NOT ACCOUNTED FOR", number(missing))] if missing else rows


def _waiting(role: str, summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    totals = summary.get(f"{role}_seconds", {})
    causes = {state: spent for state, spent in totals.items() if is_waiting(state) and spent > 0}
    rows = [
        (f"{role}, {state.removeprefix('waiting').strip() or 'waiting'}", seconds(spent))
        for state, spent in sorted(causes.items(), key=lambda cause: -cause[1])
    ]
    share = summary.get(f"{role}_idle_share")
    return rows if share is None else [(f"{role} idle", percent(share)), *rows]


def _run(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    rows = []
    if "steps" in summary and "wall_seconds" in summary:
        rows.append(("time", f"{number(summary['steps'])} steps in {seconds(summary['wall_seconds'])}"))
    if "peak_memory_gib" in summary:
        rows.append(("peak memory", f"{summary['peak_memory_gib']:.2f} GiB"))
    return rows + [
        (label, str(summary[key]))
        for label, key in (
            ("report", "report_html"),
            ("adapter", "adapter_dir"),
            ("merged model", "merged_dir"),
        )
        if summary.get(key)
    ]

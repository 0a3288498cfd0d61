"""A run folder -> one HTML file that says whether the run learned, what it spent, and where time went.

The file holds everything it shows; see components.telemetry.page.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from markupsafe import Markup
from matplotlib.figure import Figure

from components import storage
from components.telemetry import formatting, plots
from components.telemetry.clock import idle_share, is_waiting
from components.telemetry.page import render_page
from components.telemetry.run_files import (
    FATES,
    REPORT,
    STEP_KEYS,
    RunRecord,
    read_run,
    tokens_unaccounted,
)

_EXAMPLES = 12
_LONGEST_TEXT = 4_000  # characters of one text of a message
_LONGEST_TALK = 20_000  # characters of one trajectory, so that the page stays under a megabyte
_WIDE, _NARROW = (8.6, 3.0), (4.3, 2.8)  # inches; the page shows the one that fits
_SIGNALS = (
    "loss",
    "entropy",
    "reference_kl",
    "behavior_kl",
    "mismatch_kl",
    "importance_weight_max",
    "gradient_norm",
    "staleness_mean",
    "episode_seconds",
    "tool_error_rate",
)
_NAMES = ("recipe", "model", "environment")
_ROLES = {"trainer": "Trainer", "engine": "Engine"}


def write_report(folder: str, uri: str | None = None) -> str:
    """Read a run folder and write its report, by default into the folder. Returns where it was written."""
    target = uri or storage.join(folder, REPORT)
    storage.write_text(target, render_report(read_run(folder)))
    return target


def render_report(run: RunRecord) -> str:
    """The whole HTML page. Sections of which nothing is known are left out."""
    return render_page(
        "report.html",
        title=run.summary.get("recipe") or "Run report",
        subtitle=" · ".join(str(run.summary[key]) for key in _NAMES if run.summary.get(key)),
        objective=run.summary.get("objective"),
        headline=_headline(run),
        measures=[_measure(each) for each in run.measures],
        tiles=_tiles(run),
        alerts=alerts(run),
        curve=_curve(run.metrics),
        roles=[_role(run, role) for role in _ROLES if run.seconds(role)],
        tokens=_tokens(run),
        trends=[trend for trend in (_selection(run), _sample_size(run)) if trend],
        signals=[_signal(key, run.series(key)) for key in _SIGNALS if run.series(key)],
        examples=[_example(each) for each in choose_examples(run.trajectories)],
        facts=_facts(run.summary),
    )


def alerts(run: RunRecord) -> list[str]:
    """The run's own alerts, and what its numbers give away: tokens without a fate, metrics that were not finite."""
    found = [str(each) for each in run.summary.get("alerts", [])]
    missing = tokens_unaccounted(run.tokens)
    if missing:
        found.append(f"{formatting.number(missing)} generated tokens have no fate: the books do not balance.")
    steps: dict[str, list[int]] = {}
    for line in run.metrics:
        for key in line.get("not_finite", []):
            steps.setdefault(key, []).append(line["step"])
    found += [f"{key} was not finite at {_listed('step', numbers)}." for key, numbers in steps.items()]
    return found


def choose_examples(trajectories: Sequence[Mapping[str, Any]], count: int = _EXAMPLES) -> list[Mapping[str, Any]]:
    """At most `count` trajectories, spread evenly over the run by step, the first and the last among them."""
    ordered = sorted(trajectories, key=lambda each: each.get("step") or 0)
    if len(ordered) <= count:
        return ordered
    return [ordered[round(index)] for index in np.linspace(0, len(ordered) - 1, count)]


def _headline(run: RunRecord) -> dict[str, Any] | None:
    """The one sentence: the first measure where there was an evaluation, the reward where there was none."""
    if run.measures:
        return _measure(run.measures[0])
    rewards = run.series("reward_mean")
    if not rewards:
        return None
    before, after = rewards[0][1], rewards[-1][1]
    return {
        "name": "mean reward, first and last step",
        "before": {"text": formatting.number(before)},
        "after": {"text": formatting.number(after)},
        "change": None,
        "bars": [],
    }


def _measure(measure: Mapping[str, Any]) -> dict[str, Any]:
    """A measure with its numbers as text, and its interval as positions on a line from 0 to 100."""
    before, after, paired = (measure.get(key) for key in ("before", "after", "paired"))
    whole = all(each["low"] >= 0 and each["high"] <= 1 for each in (before, after) if each)
    text = formatting.percent if whole else formatting.number
    bars = [
        {"name": name, "text": text(each["value"]), "low": 100 * each["low"], "high": 100 * each["high"]}
        | {"value": 100 * each["value"], "interval": _interval(each, text)}
        for name, each in (("before", before), ("after", after))
        if each and whole
    ]
    return {
        "name": measure["name"],
        "before": before and {"text": text(before["value"]), "interval": _interval(before, text)},
        "after": after and {"text": text(after["value"]), "interval": _interval(after, text), "count": after["count"]},
        "change": paired and _change(paired, whole),
        "bars": bars,
    }


def _change(paired: Mapping[str, Any], whole: bool) -> dict[str, str]:
    scale, unit = (100, " points") if whole else (1, "")
    difference = paired["difference"]
    value, low, high = (f"{scale * difference[key]:+.3g}".replace("-", "−") for key in ("value", "low", "high"))
    return {
        "value": f"{value}{unit}",
        "interval": f"{low} to {high}",
        "p_value": formatting.p_value(paired["p_value"]),
        "tasks": f"better on {paired['better']} tasks, worse on {paired['worse']}, equal on {paired['equal']}",
    }


def _interval(estimate: Mapping[str, Any], text: Any) -> str:
    return f"{text(estimate['low'])} to {text(estimate['high'])}"


def _tiles(run: RunRecord) -> list[tuple[str, str]]:
    """Name and text of the few numbers that stand below the headline."""
    summary, tokens = run.summary, run.tokens
    steps = summary.get("steps", len(run.metrics) or None)
    idle = {
        role: summary.get(f"{role}_idle_share", idle_share(run.seconds(role)) if run.seconds(role) else None)
        for role in _ROLES
    }
    memory = summary.get("peak_memory_gib")
    tiles = [
        ("optimizer steps", formatting.number(steps)),
        ("wall time", formatting.seconds(summary.get("wall_seconds"))),
        ("tokens generated", formatting.number(tokens.get("generated"))),
        ("trainer waiting", formatting.percent(idle["trainer"])),
        ("engine waiting", formatting.percent(idle["engine"])),
        ("peak memory", formatting.ABSENT if memory is None else f"{memory:.2f} GiB"),
    ]
    return [(name, text) for name, text in tiles if text != formatting.ABSENT]


def _curve(metrics: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    if not any(line.get("reward_mean") is not None for line in metrics):
        return None
    return {
        **_pictures(
            "curve",
            "Mean reward of each optimizer step",
            lambda size: plots.learning_curve(metrics, palette=plots.PAGE, size=size),
        ),
        "evaluated": any(line.get("accuracy") is not None for line in metrics),
    }


def _pictures(
    name: str, title: str, draw: Callable[[tuple[float, float]], Figure], height: float | None = None
) -> dict[str, Markup]:
    """One figure in the two sizes that the page chooses from."""
    sizes = {"wide": _WIDE, "narrow": _NARROW}
    return {
        key: Markup(plots.page_svg(draw((width, height or tall)), title=title, name=f"{name}-{key}"))
        for key, (width, tall) in sizes.items()
    }


def _role(run: RunRecord, role: str) -> dict[str, Any]:
    """One role's bars per step, and its legend with totals."""
    totals = run.seconds(role)
    colors = plots.state_colors(sorted(totals, key=lambda state: -totals[state]), plots.PAGE)
    whole = sum(totals.values()) or 1.0
    steps = [(line["step"], line[f"{role}_seconds"]) for line in run.metrics if line.get(f"{role}_seconds")]
    pictures = _pictures(
        role,
        f"Seconds of each optimizer step by state of the {role}",
        lambda size: plots.stacked_bars(steps, colors, unit="seconds", palette=plots.PAGE, size=size),
        height=1.6,
    )
    return {
        "name": _ROLES[role],
        "wide": pictures["wide"] if steps else None,
        "narrow": pictures["narrow"] if steps else None,
        "idle": formatting.percent(run.summary.get(f"{role}_idle_share", idle_share(totals))),
        "states": [
            {
                "name": state,
                "color": Markup(color),
                "seconds": formatting.seconds(totals[state]),
                "share": formatting.percent(totals[state] / whole),
                "width": 100 * totals[state] / whole,
                "waiting": is_waiting(state),
            }
            for state, color in plots.page_colors(colors).items()
        ],
    }


def _tokens(run: RunRecord) -> dict[str, Any] | None:
    tokens = run.tokens
    if not tokens:
        return None
    generated = tokens.get("generated", 0)
    return {
        "generated": formatting.number(generated),
        "balanced": tokens_unaccounted(tokens) == 0,
        "by_version": _by_version(list(run.tokens_by_version.items())),
        "rows": [
            {
                "name": fate.replace("_", " "),
                "fate": fate,
                "meaning": meaning,
                "amount": formatting.number(tokens.get(fate, 0)),
                "share": formatting.percent(tokens.get(fate, 0) / generated if generated else None),
                "width": 100 * tokens.get(fate, 0) / generated if generated else 0,
            }
            for fate, meaning in FATES.items()
        ],
    }


def _by_version(amounts: Sequence[tuple[int, Mapping[str, int | float]]]) -> dict[str, Markup] | None:
    if not amounts:
        return None
    colors = plots.fate_colors(plots.PAGE)
    return _pictures(
        "versions",
        "Tokens by fate of each policy version",
        lambda size: plots.stacked_bars(
            amounts, colors, unit="tokens", across="policy version", palette=plots.PAGE, size=size
        ),
        height=2.0,
    )


def _selection(run: RunRecord) -> dict[str, Any] | None:
    names = {"tokens": "sampled tokens", "turns": "turns", "seconds": "seconds"}
    series = {text: run.series("selection", key, "ratio") for key, text in names.items()}
    meaning = "Mean of the episodes trained over that of all played, so far. Below 1, long or slow ones are starved."
    return _trend("Trained against played", meaning, series, level=1.0)


def _sample_size(run: RunRecord) -> dict[str, Any] | None:
    meaning = (
        "As many evenly weighed tokens would say as much, as a share of all. Below one half, few outweigh the rest."
    )
    return _trend("Effective sample size", meaning, {"share": run.series("effective_sample_size")}, level=0.5)


def _trend(
    name: str, meaning: str, series: Mapping[str, Sequence[tuple[int, float]]], *, level: float
) -> dict[str, Any] | None:
    """A small chart of lines that have points, with their last values; None when there are none."""
    drawn = {key: points for key, points in series.items() if points}
    if not drawn:
        return None
    page = plots.PAGE
    colors = dict(zip(series, (page.accent, page.second, page.surplus), strict=False))
    figure = plots.lines(drawn, colors, level=level, palette=page)
    css = plots.page_colors(colors)
    return {
        "name": name,
        "meaning": meaning,
        "picture": Markup(plots.page_svg(figure, title=name, name=name.lower().replace(" ", "-"))),
        "legend": [(key, Markup(css[key]), formatting.number(points[-1][1])) for key, points in drawn.items()],
    }


def _signal(key: str, series: Sequence[tuple[int, float]]) -> dict[str, Any]:
    """A small line without axes: a polyline on a field of 100 x 30, with its first, last, lowest and highest number."""
    values = np.array([value for _, value in series])
    if len(values) > 200:
        values = np.array([part.mean() for part in np.array_split(values, 200)])
    low, high = float(values.min()), float(values.max())
    across = np.linspace(1, 99, len(values)) if len(values) > 1 else np.array([50.0])
    down = 27 - 24 * (values - low) / (high - low) if high > low else np.full(len(values), 15.0)
    return {
        "name": key.replace("_", " ").removesuffix(" mean"),
        "meaning": STEP_KEYS[key],
        "points": " ".join(f"{x:.1f},{y:.1f}" for x, y in zip(across, down, strict=True)),
        "first": formatting.number(series[0][1], digits=2),
        "last": formatting.number(series[-1][1], digits=2),
        "range": f"{formatting.number(low)} to {formatting.number(high)}",
    }


def _example(trajectory: Mapping[str, Any]) -> dict[str, Any]:
    messages = list(trajectory.get("messages", []))
    shown = _up_to(_LONGEST_TALK, [_message(each) for each in messages])
    reward = trajectory.get("reward")
    failure = trajectory.get("failure") or {}
    outcome = str(trajectory.get("outcome", ""))
    prompt = next((message["content"] for message in messages if message["role"] == "user"), "")
    return {
        "step": trajectory.get("step"),
        "task": trajectory.get("task_id", ""),
        "prompt": " ".join(prompt.split())[:160],
        "reward": formatting.number(reward),
        "tone": "none" if reward is None else "good" if reward > 0.5 else "poor",
        "outcome": f"cut by {trajectory['cut_by']}" if trajectory.get("cut_by") else outcome,
        "failure": f"{failure.get('kind', 'failure')}: {failure.get('message', '')}" if failure else "",
        "parts": [(name, formatting.number(part)) for name, part in trajectory.get("reward_parts", {}).items()],
        "reasons": [_shortened(f"{name}: {why}") for name, why in trajectory.get("reward_reasons", {}).items()],
        "messages": shown,
        "left_out": len(messages) - len(shown),
    }


def _message(message: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "role": str(message["role"]),
        "name": message.get("name") or "",
        "content": _shortened(str(message.get("content") or "")),
        "calls": [
            {"name": call["name"], "arguments": _shortened(json.dumps(call["arguments"], ensure_ascii=False))}
            for call in message.get("tool_calls", ())
        ],
        "malformed": [
            {"text": _shortened(call["text"]), "reason": call["reason"]} for call in message.get("malformed_calls", ())
        ],
    }


def _up_to(characters: int, messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The first messages that together hold at most so many characters."""
    sizes = np.cumsum([len(json.dumps(each, ensure_ascii=False)) for each in messages])
    return list(messages[: int(np.searchsorted(sizes, characters, side="right"))])


def _facts(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    named = (*_NAMES, "run_dir", "adapter_dir", "merged_dir")
    facts = [(key.removesuffix("_dir").replace("_", " "), str(summary[key])) for key in named if summary.get(key)]
    facts += [(str(key), str(value)) for key, value in summary.get("facts", {}).items()]
    versions = summary.get("versions", {})
    if versions:
        facts.append(("versions", ", ".join(f"{name} {version}" for name, version in versions.items())))
    return facts


def _shortened(text: str) -> str:
    if len(text) <= _LONGEST_TEXT:
        return text
    return f"{text[:_LONGEST_TEXT]}… ({formatting.number(len(text) - _LONGEST_TEXT)} more characters)"


def _listed(noun: str, numbers: Iterable[int], most: int = 8) -> str:
    texts = [str(number) for number in numbers]
    tail = f" and {len(texts) - most} more" if len(texts) > most else ""
    return f"{noun}{'s' if len(texts) > 1 else ''} {', '.join(texts[:most])}{tail}"

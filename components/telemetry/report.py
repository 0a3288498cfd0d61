"""A run folder -> one HTML file that says whether the run learned, is correct, is busy and loses nothing, and shows its
trajectories.

It can be made at any time of a run. The file holds everything it shows; see components.telemetry.page.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import numpy as np
from markupsafe import Markup

from components import storage
from components.telemetry import busy, formatting, health, plots, viewer
from components.telemetry.charts import links_to_steps, pictures, signal
from components.telemetry.clock import idle_share
from components.telemetry.page import render_page
from components.telemetry.palette import PAGE
from components.telemetry.run_files import REPORT, RunRecord, failure_of, read_run, tokens_unaccounted

_EXAMPLES = 6  # trajectories for a browser that may run no script
_SIGNALS = (
    "loss",
    "entropy",
    "reference_kl",
    "behavior_kl",
    "importance_weight_max",
    "gradient_norm",
    "value_loss",
    "explained_variance",
    "episode_seconds",
    "tool_error_rate",
)
_NAMES = ("recipe", "model", "environment")


def write_report(folder: str, uri: str | None = None) -> str:
    """Read a run folder and write its report, by default into the folder. Returns where it was written."""
    target = uri or storage.join(folder, REPORT)
    page = render_report(read_run(folder), made=f"{datetime.now(UTC):%F %R} UTC")
    # What a model wrote may hold half of a surrogate pair, which no file of UTF-8 can.
    storage.write_bytes(target, page.encode("utf-8", "replace"))
    return target


def render_report(run: RunRecord, *, made: str = "") -> str:
    """The whole HTML page. Sections of which nothing is known are left out; `made` says when it was."""
    played = sum(int(line.get("episodes") or 0) for line in run.metrics)
    sample = viewer.choose(run.trajectories, played=max(played, len(run.trajectories)) or None)
    return render_page(
        "report.html",
        script="viewer.js" if sample.records else None,
        title=run.summary.get("recipe") or "Run report",
        subtitle=" · ".join(
            [*(str(run.summary[key]) for key in _NAMES if run.summary.get(key)), *filter(None, [made])]
        ),
        objective=run.summary.get("objective"),
        failure=failure_of(run.summary),
        headline=_headline(run),
        measures=[_measure(each) for each in run.measures],
        tiles=_tiles(run),
        alerts=alerts(run),
        curve=_curve(run.metrics),
        signals=[signal(key, run.series(key)) for key in _SIGNALS if run.series(key)],
        correctness=health.correctness(run),
        roles=busy.roles(run),
        tools=busy.tools(run),
        tokens=health.tokens(run),
        environments=health.environments(run),
        outliers=_outliers(sample),
        trajectories=_trajectories(sample) if sample.records else None,
        examples=[_example(each) for each in choose_examples(sample.records)],
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
        for role in busy.ROLES
    }
    memory = summary.get("peak_memory_gib")
    wall = summary.get("wall_seconds", sum(value for _, value in run.series("seconds")) or None)
    tiles = [
        ("optimizer steps", formatting.number(steps)),
        ("wall time", formatting.seconds(wall)),
        ("tokens generated", formatting.number(tokens.get("generated"))),
        ("trainer waiting", formatting.percent(idle["trainer"])),
        ("engine waiting", formatting.percent(idle["engine"])),
        ("peak memory", formatting.ABSENT if memory is None else f"{memory:.2f} GiB"),
    ]
    return [(name, text) for name, text in tiles if text != formatting.ABSENT]


def _curve(metrics: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    rewards = [(line["step"], line["reward_mean"]) for line in metrics if line.get("reward_mean") is not None]
    if not rewards:
        return None
    marked = links_to_steps(rewards, "mean reward")
    drawn = pictures(
        "curve",
        "Mean reward of each optimizer step",
        lambda size: plots.learning_curve(metrics, marked=marked, palette=PAGE, size=size),
        marked=marked,
    )
    return {**drawn, "evaluated": any(line.get("accuracy") is not None for line in metrics), "marked": bool(marked)}


def _outliers(sample: viewer.Sample) -> list[dict[str, Any]]:
    """A picture for each measure of trajectories that is known and not the same everywhere."""
    found = []
    for measure in viewer.MEASURES:
        points = viewer.points(sample, measure)
        extremes = viewer.extremes(points, measure)
        if extremes:
            figure = plots.scatter(points, color=PAGE.accent, palette=PAGE)
            picture = plots.page_svg(figure, title=measure.name, name=f"outliers-{measure.key}", marked=points)
            found.append(
                {"name": measure.name, "meaning": measure.meaning, "picture": Markup(picture), "extremes": extremes}
            )
    return found


def _trajectories(sample: viewer.Sample) -> dict[str, Any]:
    return {
        "json": viewer.viewer_json(sample),
        "shown": formatting.number(len(sample.records)),
        "written": formatting.number(sample.written),
        "played": formatting.number(sample.played),
        "has_gaps": any(each["gap"] is not None for each in sample.talks),
        "has_drift": any(each["drift"] is not None for each in sample.talks),
        "has_tokens": any(each["turns"] for each in sample.talks),
    }


def _example(trajectory: Mapping[str, Any]) -> dict[str, Any]:
    """A trajectory as plain elements."""
    messages = list(trajectory.get("messages", []))
    shown = viewer.up_to(viewer.LONGEST_TALK, messages)
    reward = trajectory.get("reward")
    failure = trajectory.get("failure") or {}
    outcome = str(trajectory.get("outcome", ""))
    prompt = next((said["content"] for said in shown if said["role"] == "user"), "")
    reasons = trajectory.get("reward_reasons", {})
    return {
        "step": trajectory.get("step"),
        "task": trajectory.get("task_id", ""),
        "prompt": " ".join(prompt.split())[:160],
        "reward": formatting.number(reward),
        "tone": "none" if reward is None else "good" if reward > 0.5 else "poor",
        "outcome": f"cut by {trajectory['cut_by']}" if trajectory.get("cut_by") else outcome,
        "failure": f"{failure.get('kind', 'failure')}: {failure.get('message', '')}" if failure else "",
        "parts": [(name, formatting.number(part)) for name, part in trajectory.get("reward_parts", {}).items()],
        "reasons": [viewer.shortened(f"{name}: {why}") for name, why in reasons.items()],
        "messages": shown,
        "left_out": len(messages) - len(shown),
    }


def _facts(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    named = (*_NAMES, "renderer", "run_dir", "adapter_dir", "merged_dir")
    facts = [(key.removesuffix("_dir").replace("_", " "), str(summary[key])) for key in named if summary.get(key)]
    facts += [(str(key), str(value)) for key, value in summary.get("facts", {}).items()]
    versions = summary.get("versions", {})
    if versions:
        facts.append(("versions", ", ".join(f"{name} {version}" for name, version in versions.items())))
    return facts


def _listed(noun: str, numbers: Iterable[int], most: int = 8) -> str:
    texts = [str(number) for number in numbers]
    tail = f" and {len(texts) - most} more" if len(texts) > most else ""
    return f"{noun}{'s' if len(texts) > 1 else ''} {', '.join(texts[:most])}{tail}"

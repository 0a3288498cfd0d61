"""Several runs -> what differs between their settings, what came of each, and one page that shows both.

runs = [ComparedRun("a", read_run("runs/a"), parameters={"train.steps": 10}), ComparedRun("b", ...)]
differing_parameters(runs) == {"train.steps": {"a": 10, "b": 20}}
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from markupsafe import Markup

from components import storage
from components.telemetry import formatting, plots
from components.telemetry.page import render_page
from components.telemetry.palette import PAGE, page_colors, run_colors
from components.telemetry.run_files import FATES, STEP_KEYS, RunRecord

_SIGNALS = ("accuracy", "entropy", "reference_kl", "loss", "gradient_norm", "episode_seconds", "tool_error_rate")
_SHARES = frozenset({"accuracy", "share", "rate", "pass"})
_LOWER_IS_BETTER = frozenset({"seconds", "memory", "idle", "failed", "stale"})
_NO_RANKING = frozenset({"before", "tasks", "steps", "tokens", "seed", "value"})
"""Words in the names of metrics: which are shares of one, which are better when lower, and which are neither."""

_LONGEST_VALUE = 120

AXES = {"steps": "optimizer step", "tokens": "tokens generated", "seconds": "seconds"}
"""What curves are drawn over, and how a picture calls it."""

_MADE_OF = ("image", "code.commit", "data", "base.fingerprint", "hardware")
"""Parameters that say what a run was made of: these names, and all below them."""


@dataclass(frozen=True, slots=True)
class ComparedRun:
    """A run under the name that it was asked for by.

    `parameters` are all its settings under dotted names, or, where `whole` is false, only those that were sent with it.
    """

    name: str
    record: RunRecord
    parameters: Mapping[str, Any] = field(default_factory=dict)
    whole: bool = True
    title: str = ""
    state: str = ""
    place: str = ""

    @property
    def label(self) -> str:
        """What the page calls it."""
        return self.title or self.name.rstrip("/").rpartition("/")[2]


def flattened(value: Any, path: str = "") -> dict[str, Any]:
    """Nested mappings as one, its keys joined by dots. Lists are values."""
    if not isinstance(value, Mapping):
        return {path: value}
    return {
        key: each
        for name, below in value.items()
        for key, each in flattened(below, f"{path}.{name}" if path else str(name)).items()
    }


def differing_parameters(runs: Sequence[ComparedRun]) -> dict[str, dict[str, Any]]:
    """{parameter: {run: value}} of those that are not the same in all runs that tell them; None where one does not.

    A run of which only the sent parameters are known differs by what it tells, never by what it leaves out.
    """
    names = sorted({name for run in runs for name in run.parameters})
    found: dict[str, dict[str, Any]] = {}
    for name in names:
        told = [run.parameters.get(name) for run in runs if run.whole or name in run.parameters]
        if any(each != told[0] for each in told):
            found[name] = {run.name: run.parameters.get(name) for run in runs}
    return found


def scalar_metrics(runs: Sequence[ComparedRun]) -> dict[str, dict[str, int | float | None]]:
    """{metric: {run: number}} of every number in the runs' summaries; None where a run has none."""
    numbers = {run.name: _numbers(run.record) for run in runs}
    names = list(dict.fromkeys(name for each in numbers.values() for name in each))
    return {name: {run.name: numbers[run.name].get(name) for run in runs} for name in names}


def intervals(runs: Sequence[ComparedRun]) -> dict[str, dict[str, list[int | float] | None]]:
    """{metric: {run: [low, high]}} of every metric whose bounds are in the summaries; None where a run has none."""
    bounds = {run.name: _bounds(run.record) for run in runs}
    names = dict.fromkeys(name for each in bounds.values() for name in each)
    return {name: {run: each.get(name) for run, each in bounds.items()} for name in names}


def made_of(runs: Sequence[ComparedRun]) -> dict[str, dict[str, Any]]:
    """{what: {run: value}} of the data, image, code, base and hardware, also where they are the same."""
    names = sorted({name for run in runs for name in run.parameters})
    chosen = [name for what in _MADE_OF for name in names if name == what or name.startswith(f"{what}.")]
    return {name: {run.name: run.parameters.get(name) for run in runs} for name in chosen}


def write_comparison(runs: Sequence[ComparedRun], uri: str) -> str:
    """Write the page to a local path or gs:// URI, and give it back."""
    storage.write_text(uri, render_comparison(runs))
    return uri


def render_comparison(runs: Sequence[ComparedRun]) -> str:
    """The whole HTML page. Sections of which nothing is known are left out."""
    names = [run.name for run in runs]
    marks = run_colors(names, PAGE)
    colors = page_colors(marks)
    parameters, bounds = differing_parameters(runs), intervals(runs)
    return render_page(
        "comparison.html",
        title=f"{len(runs)} runs compared",
        subtitle=" · ".join(run.label for run in runs),
        runs=[_run(run, Markup(colors[run.name])) for run in runs],
        partly=[run.label for run in runs if not run.whole],
        results=[result for name in ("accuracy", "reward") if (result := _ranges(name, runs, colors))],
        parameters=[(name, [_text(values[run]) for run in names]) for name, values in parameters.items()],
        same=len({name for run in runs for name in run.parameters}) - len(parameters),
        metrics=[
            _metric(name, [values[run] for run in names], [bounds.get(name, {}).get(run) for run in names])
            for name, values in scalar_metrics(runs).items()
            if not {"low", "high"} & set(name.split("_"))  # bounds stand beside their metric
        ],
        made_of=[_made_of(name, [values[run] for run in names]) for name, values in made_of(runs).items()],
        axes=[axis for axis in AXES if any(run.record.across(axis) for run in runs)],
        curve=_curve(runs, marks),
        signals=[signal for key in _SIGNALS if (signal := _signal(key, runs, marks))],
    )


def _numbers(record: RunRecord) -> dict[str, int | float]:
    """The finite numbers of a summary; of nested ones the tokens by fate, which is what a run is worth."""
    found = {
        key: value
        for key, value in record.summary.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    }
    tokens = record.tokens
    return found | {f"tokens_{fate}": tokens[fate] for fate in ("generated", *FATES) if fate in tokens}


def _bounds(record: RunRecord) -> dict[str, list[int | float]]:
    """{metric: [low, high]} of a summary that has METRIC_interval, or METRIC_low and METRIC_high."""
    told = {
        name.removesuffix("_interval"): value for name, value in record.summary.items() if name.endswith("_interval")
    }
    numbers = _numbers(record)
    found = {name: [float(low), float(high)] for name, (low, high) in told.items()}
    for name in numbers:
        metric = name.removesuffix("_low")
        if metric != name and f"{metric}_high" in numbers:
            found[metric] = [numbers[name], numbers[f"{metric}_high"]]
    return found


def _run(run: ComparedRun, color: Markup) -> dict[str, Any]:
    summary = run.record.summary
    return {
        "label": run.label,
        "color": color,
        "state": run.state.lower(),
        "place": run.place,
        # Of an environment that is named as module:Class, the class says enough here.
        "what": " · ".join(
            str(summary[key]).rpartition(":")[2] for key in ("recipe", "model", "environment") if summary.get(key)
        ),
        "steps": formatting.number(summary.get("steps", len(run.record.metrics) or None)),
        "time": formatting.seconds(summary.get("wall_seconds")),
    }


def _ranges(name: str, runs: Sequence[ComparedRun], colors: Mapping[str, str]) -> dict[str, Any] | None:
    """An evaluated measure of every run as a value and its interval on a line from 0 to 1."""
    rows = []
    for run in runs:
        measure = next((each for each in run.record.measures if each["name"].split("@")[0].endswith(name)), None)
        after = measure["after"] if measure else None
        if after and after["low"] >= 0 and after["high"] <= 1:
            rows.append(
                {
                    "label": run.label,
                    "color": Markup(colors[run.name]),
                    "value": 100 * after["value"],
                    "low": 100 * after["low"],
                    "high": 100 * after["high"],
                    "text": formatting.percent(after["value"]),
                    "interval": f"{formatting.percent(after['low'])} to {formatting.percent(after['high'])}",
                }
            )
    return {"name": name, "rows": rows} if rows else None


def _metric(
    name: str, values: Sequence[int | float | None], bounds: Sequence[Sequence[int | float] | None]
) -> dict[str, Any]:
    words = set(name.split("_"))
    text: Callable[[int | float | None], str] = formatting.number
    if words & _SHARES:
        text = formatting.percent
    elif "seconds" in words:
        text = formatting.seconds
    known = [value for value in values if value is not None]
    best = None
    if len(set(known)) > 1 and not words & _NO_RANKING:
        best = min(known) if words & _LOWER_IS_BETTER else max(known)
    return {
        "name": name.replace("_", " ").replace("gib", "GiB").replace("seconds", "time"),
        "cells": [
            {
                "text": text(value),
                "interval": f"{text(interval[0])} to {text(interval[1])}" if interval else "",
                "best": best is not None and value == best,
            }
            for value, interval in zip(values, bounds, strict=True)
        ],
    }


def _made_of(name: str, values: Sequence[Any]) -> dict[str, Any]:
    return {
        "name": name,
        "values": [_text(value) for value in values],
        "same": all(each == values[0] for each in values),
    }


def _over(runs: Sequence[ComparedRun], key: str, axis: str) -> dict[str, list[tuple[int | float, float]]]:
    """A metric of every run that knows both it and how far it was."""
    found = {}
    for run in runs:
        across = run.record.across(axis)
        points = [(across[step], value) for step, value in run.record.series(key) if step in across]
        if points:
            found[run.name] = points
    return found


def _curve(runs: Sequence[ComparedRun], marks: Mapping[str, str]) -> list[tuple[str, dict[str, Markup]]]:
    """The rewards over each axis, in two sizes."""
    sizes = {"wide": (8.6, 3.4), "narrow": (4.3, 3.0)}
    drawn = []
    for axis, across in AXES.items():
        if rewards := _over(runs, "reward_mean", axis):
            pictures = {
                key: plots.page_svg(
                    plots.curves(rewards, marks, unit="reward", share=True, across=across, palette=PAGE, size=size),
                    title=f"Mean reward of every run over its {axis}",
                    name=f"curve-{axis}-{key}",
                )
                for key, size in sizes.items()
            }
            drawn.append((axis, {key: Markup(svg) for key, svg in pictures.items()}))
    return drawn


def _signal(key: str, runs: Sequence[ComparedRun], marks: Mapping[str, str]) -> dict[str, Any] | None:
    name = key.replace("_", " ").removesuffix(" mean")
    pictures = []
    for axis, across in AXES.items():
        if series := _over(runs, key, axis):
            is_share = key == "accuracy"
            size = (4.3, 2.2)
            figure = plots.curves(series, marks, unit="", share=is_share, across=across, palette=PAGE, size=size)
            title = f"{name} of every run over its {axis}"
            pictures.append((axis, Markup(plots.page_svg(figure, title=title, name=f"{key.replace('_', '-')}-{axis}"))))
    return {"name": name, "meaning": STEP_KEYS[key], "pictures": pictures} if pictures else None


def _text(value: Any) -> str:
    text = formatting.ABSENT if value is None else value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]}…"

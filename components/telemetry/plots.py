"""Metrics of a run -> pictures: matplotlib figures for files, and SVG text whose colours follow the page around it."""

import io
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, fields
from typing import Any

import matplotlib
import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from components.telemetry.clock import STARTING, is_waiting

_MOST_BARS = 48  # more steps than this share bars, so that a long run's picture stays light and legible
_MOST_POINTS = 400


@dataclass(frozen=True, slots=True)
class Palette:
    """Colours by their use. Work is what a role should do, waiting is what it should not; then fates of tokens."""

    ink: str
    muted: str
    grid: str
    accent: str
    accent_soft: str
    second: str
    start: str
    work_1: str
    work_2: str
    work_3: str
    wait_1: str
    wait_2: str
    wait_3: str
    stale: str
    filtered: str
    failed: str
    surplus: str
    flight: str
    page: str


LIGHT = Palette(
    ink="#14232b",
    muted="#5d6f79",
    grid="#dfe6ea",
    accent="#0b7285",
    accent_soft="#74b9c6",
    second="#c2410c",
    start="#c3ced4",
    work_1="#0b7285",
    work_2="#3a9aab",
    work_3="#7cc0cc",
    wait_1="#f0a13c",
    wait_2="#f6c888",
    wait_3="#d9733a",
    stale="#b98a52",
    filtered="#9fb3bd",
    failed="#c2410c",
    surplus="#7f8fc9",
    flight="#c9d5db",
    page="#ffffff",
)
DARK = Palette(
    ink="#e6eef2",
    muted="#93a5b0",
    grid="#24343e",
    accent="#4cc2d6",
    accent_soft="#2c7f90",
    second="#fb923c",
    start="#455863",
    work_1="#3bb3c8",
    work_2="#2b8294",
    work_3="#1f5c69",
    wait_1="#e59a35",
    wait_2="#a8742f",
    wait_3="#c2602c",
    stale="#c79a62",
    filtered="#5d727d",
    failed="#ea6a34",
    surplus="#8593d6",
    flight="#33454f",
    page="#101a20",
)
_NAMES = [field.name for field in fields(Palette)]
# Colours that no picture would choose, to be told apart in the SVG and replaced by the page's own variables.
_MARKS = Palette(*(f"#0102{number:02x}" for number in range(len(_NAMES))))


def css_variables(palette: Palette) -> str:
    """The palette as CSS custom properties, which `page_svg` refers to."""
    return " ".join(
        f"--{name.replace('_', '-')}: {color};" for name, color in zip(_NAMES, astuple(palette), strict=True)
    )


def learning_curve(
    metrics: Sequence[Mapping[str, Any]], *, palette: Palette = LIGHT, size: tuple[float, float] = (8.6, 3.0)
) -> Figure:
    """Mean reward of each optimizer step as points, with a smoothed line; evaluations as diamonds where there are any.

    `metrics` are lines of metrics.jsonl, `size` is in inches. Save it with `figure.savefig("curve.png", dpi=160)`.
    """
    figure, axes = _figure(size, palette)
    rewards = _thinned([(line["step"], line["reward_mean"]) for line in metrics if line.get("reward_mean") is not None])
    scores = [(line["step"], line["accuracy"]) for line in metrics if line.get("accuracy") is not None]
    if len(rewards):
        at = np.linspace(0, len(rewards) - 1, max(200, len(rewards)))
        axes.plot(rewards[:, 0], rewards[:, 1], "o", color=palette.accent_soft, markersize=_point_size(len(rewards)))
        steps = np.interp(at, np.arange(len(rewards)), rewards[:, 0])
        axes.plot(steps, smoothed(rewards[:, 1], at), color=palette.accent, linewidth=2.4, solid_capstyle="round")
    if scores:
        axes.plot(*zip(*scores, strict=True), "D", color=palette.second, markersize=5.5)
    values = [*rewards[:, 1], *(score for _, score in scores)]
    _unit_range(axes, values)
    axes.set_xlabel("optimizer step")
    axes.set_ylabel("reward")
    axes.grid(axis="y", color=palette.grid, linewidth=0.8)
    return figure


def stacked_bars(
    amounts: Sequence[tuple[int, Mapping[str, int | float]]],
    colors: Mapping[str, str],
    *,
    unit: str,
    across: str = "",
    palette: Palette = LIGHT,
    size: tuple[float, float] = (8.6, 1.6),
) -> Figure:
    """A bar for each (step, {name: amount}), stacked in the order of `colors`; of many, neighbours share one.

    Its height is then their mean. `unit` is of the amounts, `across` is what the steps are.
    """
    figure, axes = _figure(size, palette)
    bars = np.array_split(np.arange(len(amounts)), min(len(amounts), _MOST_BARS)) if amounts else []
    middles = [float(np.mean([amounts[index][0] for index in bar])) for bar in bars]
    widths = [0.82 * len(bar) for bar in bars]
    base = np.zeros(len(bars))
    for name, color in colors.items():
        heights = np.array([np.mean([amounts[index][1].get(name, 0.0) for index in bar]) for bar in bars])
        axes.bar(middles, heights, widths, base, color=color, linewidth=0)
        base += heights
    if amounts:
        axes.set_xlim(amounts[0][0] - 0.6, amounts[-1][0] + 0.6)
    axes.set_xlabel(across)
    axes.set_ylabel(unit)
    axes.yaxis.set_major_locator(MaxNLocator(3))
    axes.grid(axis="y", color=palette.grid, linewidth=0.8)
    return figure


def lines(
    series: Mapping[str, Sequence[tuple[int, float]]],
    colors: Mapping[str, str],
    *,
    level: float,
    palette: Palette = LIGHT,
    size: tuple[float, float] = (4.3, 2.2),
) -> Figure:
    """A line over optimizer steps for each name, from 0 upwards, beside a dashed one at `level`."""
    figure, axes = _figure(size, palette)
    axes.axhline(level, color=palette.muted, linewidth=1.0, linestyle=(0, (4, 3)))
    for name, points in series.items():
        thinned = _thinned(points)
        axes.plot(thinned[:, 0], thinned[:, 1], color=colors[name], linewidth=2.0, solid_capstyle="round")
    highest = max((value for points in series.values() for _, value in points), default=1.0)
    axes.set_ylim(0, 1.08 * max(highest, level, 1.0))
    axes.yaxis.set_major_locator(MaxNLocator(4, steps=[1, 2.5, 5, 10]))
    axes.set_xlabel("optimizer step")
    axes.grid(axis="y", color=palette.grid, linewidth=0.8)
    return figure


def curves(
    series: Mapping[str, Sequence[tuple[int, float]]],
    colors: Mapping[str, str],
    *,
    unit: str,
    share: bool,
    palette: Palette = LIGHT,
    size: tuple[float, float] = (8.6, 3.4),
) -> Figure:
    """A smoothed line over optimizer steps for each run, over its own values as faint points.

    `share` says that values between 0 and 1 are shown on the whole of that range.
    """
    figure, axes = _figure(size, palette)
    for name, points in series.items():
        thinned = _thinned(points)
        at = np.linspace(0, len(thinned) - 1, max(200, len(thinned)))
        steps = np.interp(at, np.arange(len(thinned)), thinned[:, 0])
        axes.plot(thinned[:, 0], thinned[:, 1], "o", color=colors[name], markersize=2.2, alpha=0.35)
        axes.plot(steps, smoothed(thinned[:, 1], at), color=colors[name], linewidth=2.0, solid_capstyle="round")
    if share:
        _unit_range(axes, [value for points in series.values() for _, value in points])
    axes.set_xlabel("optimizer step")
    axes.set_ylabel(unit)
    axes.grid(axis="y", color=palette.grid, linewidth=0.8)
    return figure


def run_colors(runs: Sequence[str], palette: Palette = LIGHT) -> dict[str, str]:
    """A colour for each of several runs; after ten they come again."""
    known = (
        palette.accent,
        palette.second,
        palette.surplus,
        palette.wait_1,
        palette.ink,
        palette.stale,
        palette.work_3,
        palette.wait_3,
        palette.filtered,
        palette.muted,
    )
    return _cycled(runs, known)


def state_colors(states: Iterable[str], palette: Palette = LIGHT) -> dict[str, str]:
    """A colour for each state: one family for work, another for waiting. Work comes first, the start last."""
    known = list(dict.fromkeys(states))
    work = [state for state in known if not is_waiting(state) and state != STARTING]
    waits = [state for state in known if is_waiting(state)]
    starts = [state for state in known if state == STARTING]
    return (
        _cycled(work, (palette.work_1, palette.work_2, palette.work_3))
        | _cycled(waits, (palette.wait_1, palette.wait_2, palette.wait_3))
        | _cycled(starts, (palette.start,))
    )


def fate_colors(palette: Palette = LIGHT) -> dict[str, str]:
    """A colour for each fate of a token, in the order of `run_files.FATES`."""
    return {
        "trained": palette.accent,
        "stale": palette.stale,
        "filtered": palette.filtered,
        "failed": palette.failed,
        "surplus": palette.surplus,
        "in_flight": palette.flight,
    }


def page_colors(colors: Mapping[str, str]) -> dict[str, str]:
    """Colours of the page palette as CSS `var(...)`, for legends."""
    return {state: _as_variables(color) for state, color in colors.items()}


PAGE = _MARKS
"""The palette of figures that are meant for `page_svg`."""


def page_svg(figure: Figure, *, title: str, name: str) -> str:
    """The figure as an `<svg>` element for a page that holds the palette's CSS variables. Text stays text.

    `title` is read out to people who cannot see it; `name` keeps its ids apart from those of other figures.
    """
    text = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": name}):
        figure.savefig(text, format="svg", transparent=True, metadata={"Date": None, "Title": title})
    svg = text.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{name}-", svg)
    return _as_variables(svg.replace("<svg ", '<svg role="img" ', 1))


def smoothed(values: Float[np.ndarray, "steps"], at: Float[np.ndarray, "points"]) -> Float[np.ndarray, "points"]:
    """A Gaussian-weighted mean of the values around each position `at` (an index, may lie between two steps).

    The weights are 1/25 of the run wide and at least 0.7 steps. It does not lag behind, as a running mean does.
    """
    width = max(0.7, len(values) / 25)
    weights = np.exp(-0.5 * ((at[:, None] - np.arange(len(values))[None, :]) / width) ** 2)
    return weights @ values / weights.sum(axis=1)


def _figure(size: tuple[float, float], palette: Palette) -> tuple[Figure, Axes]:
    figure = Figure(figsize=size, facecolor=palette.page, layout="constrained")
    axes = figure.add_subplot(facecolor="none")
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(palette.muted)
    axes.tick_params(colors=palette.muted, length=0, labelsize=9.5)
    axes.xaxis.label.set(color=palette.muted, size=10)
    axes.yaxis.label.set(color=palette.muted, size=10)
    axes.xaxis.set_major_locator(MaxNLocator(8, integer=True))
    axes.set_axisbelow(True)
    return figure, axes


def _unit_range(axes: Axes, values: Sequence[float]) -> None:
    """A reward between 0 and 1 is shown on the whole of that range, so that pictures of two runs compare."""
    if all(0 <= value <= 1 for value in values):
        axes.set_ylim(-0.04, 1.06)
        axes.set_yticks([0, 0.25, 0.5, 0.75, 1])


def _thinned(points: Sequence[tuple[int, float]]) -> Float[np.ndarray, "points 2"]:
    """At most _MOST_POINTS points: neighbours are averaged."""
    array = np.array(points, dtype=np.float64).reshape(-1, 2)
    if len(array) <= _MOST_POINTS:
        return array
    return np.stack([part.mean(axis=0) for part in np.array_split(array, _MOST_POINTS)])


def _point_size(count: int) -> float:
    return float(np.clip(60 / np.sqrt(max(count, 1)), 2.0, 7.0))


def _cycled(states: Sequence[str], colors: Sequence[str]) -> dict[str, str]:
    return {state: colors[index % len(colors)] for index, state in enumerate(states)}


def _as_variables(text: str) -> str:
    for name, mark in zip(_NAMES, astuple(_MARKS), strict=True):
        text = text.replace(mark, f"var(--{name.replace('_', '-')})")
    return text

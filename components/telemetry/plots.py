"""Metrics of a run -> pictures: matplotlib figures for files, and SVG text whose colours follow the page around it."""

import io
import re
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
import numpy as np
from jaxtyping import Float
from markupsafe import escape
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import PathPatch
from matplotlib.path import Path
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from components.telemetry import formatting
from components.telemetry.palette import LIGHT, Palette, as_variables

Points = Sequence[tuple[int | float, int | float]]
Marked = Sequence[tuple[int | float, int | float, str, str]]
"""Points that lead somewhere: across, up, the link, and what is read out of it."""

_MOST_BARS = 48  # more steps than this share bars, so that a long run's picture stays light and legible
_MOST_POINTS = 400
_PLACES = "(?:trajectory|step)-"  # parts of the page that links of a picture lead to


def learning_curve(
    metrics: Sequence[Mapping[str, Any]],
    *,
    marked: Marked = (),
    palette: Palette = LIGHT,
    size: tuple[float, float] = (8.6, 3.0),
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
    _mark(axes, marked, palette)
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
    middles = np.array([np.mean([amounts[index][0] for index in bar]) for bar in bars])
    widths = np.array([0.82 * len(bar) for bar in bars])
    base = np.zeros(len(bars))
    for name, color in colors.items():
        heights = np.array([np.mean([amounts[index][1].get(name, 0.0) for index in bar]) for bar in bars])
        axes.add_patch(PathPatch(_boxes(middles, widths, base, base + heights), facecolor=color, linewidth=0))
        base += heights
    if amounts:
        axes.set_xlim(amounts[0][0] - 0.6, amounts[-1][0] + 0.6)
        axes.set_ylim(0, 1.04 * float(base.max()) or 1.0)
    axes.set_xlabel(across)
    axes.set_ylabel(unit)
    axes.yaxis.set_major_locator(MaxNLocator(3))
    axes.grid(axis="y", color=palette.grid, linewidth=0.8)
    return figure


def lines(
    series: Mapping[str, Points],
    colors: Mapping[str, str],
    *,
    level: int | float | None = None,
    marked: Marked = (),
    decades: bool = False,
    palette: Palette = LIGHT,
    size: tuple[float, float] = (4.3, 2.2),
) -> Figure:
    """A line over optimizer steps for each name, from 0 upwards or over `decades`, beside a dashed one at `level`."""
    figure, axes = _figure(size, palette)
    if level is not None:
        axes.axhline(level, color=palette.muted, linewidth=1.0, linestyle=(0, (4, 3)))
    for name, points in series.items():
        thinned = _thinned(points)
        axes.plot(thinned[:, 0], thinned[:, 1], color=colors[name], linewidth=2.0, solid_capstyle="round")
    values = [value for points in series.values() for _, value in points]
    if decades and min(values, default=0.0) > 0:
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(numticks=5))
        axes.yaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: formatting.number(value, digits=1)))
        # A range within one decade would have no label.
        low, high = np.log10(min(values)), np.log10(max(values))
        axes.set_ylim(10.0 ** np.floor(low - 0.05), 10.0 ** np.ceil(high + 0.05))
    else:
        highest = max([*values, level or 0.0])
        axes.set_ylim(min(0.0, *values, 0.0), 1.08 * highest if highest > 0 else 1.0)
        axes.yaxis.set_major_locator(MaxNLocator(4, steps=[1, 2.5, 5, 10]))
    _mark(axes, marked, palette)
    axes.set_xlabel("optimizer step")
    axes.grid(axis="y", color=palette.grid, linewidth=0.8)
    return figure


def scatter(
    points: Marked, *, color: str, unit: str = "", palette: Palette = LIGHT, size: tuple[float, float] = (4.3, 2.2)
) -> Figure:
    """A point over its optimizer step for each of them, all of which lead somewhere."""
    figure, axes = _figure(size, palette)
    across, up = [point[0] for point in points], [point[1] for point in points]
    axes.scatter(across, up, s=16, c=color, alpha=0.55, linewidths=0, urls=[point[2] for point in points])
    axes.yaxis.set_major_locator(MaxNLocator(4))
    axes.set_xlabel("optimizer step")
    axes.set_ylabel(unit)
    axes.grid(axis="y", color=palette.grid, linewidth=0.8)
    return figure


def curves(
    series: Mapping[str, Points],
    colors: Mapping[str, str],
    *,
    unit: str,
    share: bool,
    across: str = "optimizer step",
    palette: Palette = LIGHT,
    size: tuple[float, float] = (8.6, 3.4),
) -> Figure:
    """A smoothed line for each run, over optimizer steps or what `across` says, over its own values as faint points.

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
    axes.set_xlabel(across)
    axes.set_ylabel(unit)
    axes.grid(axis="y", color=palette.grid, linewidth=0.8)
    return figure


def page_svg(figure: Figure, *, title: str, name: str, marked: Marked = ()) -> str:
    """The figure as an `<svg>` element for a page that holds the palette's CSS variables. Text stays text.

    `title` is read out to people who cannot see it; `name` keeps its ids apart from those of other figures. What the
    points of `marked` say is the text of their links.
    """
    text = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": name}):
        figure.savefig(text, format="svg", transparent=True, metadata={"Date": None, "Title": title})
    svg = text.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(rf'(\bid="|href="#(?!{_PLACES})|url\(#)', rf"\g<1>{name}-", svg)
    labels = {link: escape(label) for _, _, link, label in marked}
    svg = re.sub(
        r'<a xlink:href="([^"]*)"( target="[^"]*")?>',
        lambda found: f'<a href="{found[1]}" aria-label="{labels[found[1]]}"><title>{labels[found[1]]}</title>',
        svg,
    )
    # What holds links is no single picture to those who have it read out.
    return as_variables(svg.replace("<svg ", f'<svg role="{"group" if labels else "img"}" ', 1))


def standing_out(values: Sequence[int | float], most: int = 6) -> list[int]:
    """Which of the values lie far from the median of those around them: five times as far as is usual.

    At most so many, in their order.
    """
    if len(values) < 8:
        return []
    array = np.asarray(values, np.float64)
    around = np.lib.stride_tricks.sliding_window_view(np.pad(array, 3, mode="reflect"), 7)
    away = np.abs(array - np.median(around, axis=1))
    # What differs by less than a hundredth of the largest value is noise of the arithmetic.
    least = max(5 * float(np.median(away)), 0.01 * float(np.abs(array).max()))
    far = [int(at) for at in np.argsort(-away)[:most] if away[at] > least]
    return sorted(far)


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


def _boxes(
    middles: Float[np.ndarray, "bars"],
    widths: Float[np.ndarray, "bars"],
    low: Float[np.ndarray, "bars"],
    high: Float[np.ndarray, "bars"],
) -> Path:
    """All bars of one colour as one shape, which is drawn many times faster than so many shapes."""
    left, right = middles - widths / 2, middles + widths / 2
    corners = [np.stack(corner, axis=1) for corner in ((left, low), (left, high), (right, high), (right, low))]
    return Path.make_compound_path_from_polys(np.stack(corners, axis=1))


def _mark(axes: Axes, marked: Marked, palette: Palette) -> None:
    if marked:
        links = [point[2] for point in marked]
        across, up = [point[0] for point in marked], [point[1] for point in marked]
        axes.scatter(
            across, up, s=46, facecolors="none", edgecolors=palette.second, linewidths=1.4, urls=links, zorder=5
        )


def _unit_range(axes: Axes, values: Sequence[int | float]) -> None:
    """A reward between 0 and 1 is shown on the whole of that range, so that pictures of two runs compare."""
    if all(0 <= value <= 1 for value in values):
        axes.set_ylim(-0.04, 1.06)
        axes.set_yticks([0, 0.25, 0.5, 0.75, 1])


def _thinned(points: Points) -> Float[np.ndarray, "points 2"]:
    """At most _MOST_POINTS points: neighbours are averaged."""
    array = np.array(points, dtype=np.float64).reshape(-1, 2)
    if len(array) <= _MOST_POINTS:
        return array
    return np.stack([part.mean(axis=0) for part in np.array_split(array, _MOST_POINTS)])


def _point_size(count: int) -> float:
    return float(np.clip(60 / np.sqrt(max(count, 1)), 2.0, 7.0))

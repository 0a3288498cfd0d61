"""Numbers of a run -> charts as a page shows them: pictures in two sizes, with legends, and links from what stands out.

A point that leads to a step lists the trajectories of that step in the report's viewer.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from markupsafe import Markup
from matplotlib.figure import Figure

from components.telemetry import formatting, plots
from components.telemetry.palette import PAGE, page_colors
from components.telemetry.run_files import STEP_KEYS

WIDE, NARROW = (8.6, 3.0), (4.3, 2.8)
"""Inches; the page shows the one that fits."""

Points = Sequence[tuple[int, int | float]]
Size = tuple[float, float]

_COLORS = (PAGE.accent, PAGE.second, PAGE.surplus, PAGE.wait_1, PAGE.work_4, PAGE.stale)


def pictures(
    name: str,
    title: str,
    draw: Callable[[Size], Figure],
    *,
    height: float | None = None,
    marked: plots.Marked = (),
) -> dict[str, Markup]:
    """One figure in the two sizes that the page chooses from."""
    sizes = {"wide": WIDE, "narrow": NARROW}
    return {
        key: Markup(plots.page_svg(draw((width, height or tall)), title=title, name=f"{name}-{key}", marked=marked))
        for key, (width, tall) in sizes.items()
    }


def trend(
    name: str,
    meaning: str,
    series: Mapping[str, Points],
    *,
    level: int | float | None = None,
    decades: bool = False,
) -> dict[str, Any] | None:
    """A small chart of lines that have points, with their last values; None where there are none."""
    drawn = {key: points for key, points in series.items() if points}
    if not drawn:
        return None
    marked = [point for key, points in drawn.items() for point in links_to_steps(points, key)]
    colors = {key: _COLORS[at % len(_COLORS)] for at, key in enumerate(series)}
    figure = plots.lines(drawn, colors, level=level, marked=marked, decades=decades, palette=PAGE)
    css = page_colors(colors)
    picture = plots.page_svg(figure, title=name, name=name.lower().replace(" ", "-"), marked=marked)
    return {
        "name": name,
        "meaning": meaning,
        "picture": Markup(picture),
        "legend": [(key, Markup(css[key]), formatting.number(points[-1][1])) for key, points in drawn.items()],
    }


def links_to_steps(
    points: Points, name: str, values: Sequence[int | float] | None = None
) -> list[tuple[int | float, int | float, str, str]]:
    """The points that stand out, by their own values or by `values`, each with a link to its step."""
    far = plots.standing_out(values if values is not None else [value for _, value in points])
    return [(points[at][0], points[at][1], f"#step-{points[at][0]}", _label(name, *points[at])) for at in far]


def signal(key: str, series: Points) -> dict[str, Any]:
    """A small line without axes: a polyline on a field of 100 x 30, with its first, last, lowest and highest number."""
    values = np.array([value for _, value in series])
    if len(values) > 200:
        values = np.array([part.mean() for part in np.array_split(values, 200)])
    low, high = float(values.min()), float(values.max())
    across = np.linspace(1, 99, len(values)) if len(values) > 1 else np.array([50.0])
    down = 27 - 24 * (values - low) / (high - low) if high > low else np.full(len(values), 15.0)
    return {
        "name": key.replace("_", " ").removesuffix(" mean"),
        "meaning": STEP_KEYS.get(key, ""),
        "points": " ".join(f"{x:.1f},{y:.1f}" for x, y in zip(across, down, strict=True)),
        "first": formatting.number(series[0][1], digits=2),
        "last": formatting.number(series[-1][1], digits=2),
        "range": f"{formatting.number(low)} to {formatting.number(high)}",
    }


def _label(name: str, step: int, value: int | float) -> str:
    return f"step {step}: {name} {formatting.number(value)}"

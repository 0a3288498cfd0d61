"""`headrace compare RUN RUN ...`: what differs between runs, and what came of each."""

import argparse
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pipeline.commands.cluster import add_connection, connection_of
from pipeline.commands.command import OK, Command, add_json

if TYPE_CHECKING:
    from pipeline.connection import Client, Connection

_HEADLINES = ("accuracy_before", "accuracy_after", "reward_after", "steps", "wall_seconds")
_SHOWN = ("image", "data.sha256", "code.commit")
"""Of what the runs were made of; a row that stands among what differs is not told again."""


def compare(options: argparse.Namespace) -> int:
    """Compare runs: folders, gs:// folders, or ids of runs on the cluster. Writes a page."""
    from components.telemetry.comparison import write_comparison  # with it comes matplotlib
    from pipeline.comparing import compared_runs, comparison_record, default_page

    def connect() -> tuple["Client", "Connection"]:
        from pipeline.connection import connect

        connection = connection_of(options)
        return connect(connection), connection

    runs = compared_runs(options.runs, connect)
    record = comparison_record(runs, write_comparison(runs, options.output or default_page(runs)))
    print(json.dumps(record, default=str) if options.json else _text(record))
    return OK


def _text(record: dict[str, Any]) -> str:
    """The runs as columns below each other: what differs, then the headlines."""
    names = [run["run"] for run in record["runs"]]
    rows = [("", [run["name"] for run in record["runs"]])]
    rows += [(key, [_cell(values[name]) for name in names]) for key, values in record["parameters_that_differ"].items()]
    metrics = record["metrics"]
    shown = [what for what in _SHOWN if what not in record["parameters_that_differ"]]
    rows += [
        (key, [_cell(metrics[key][name]) + _interval(metrics.get(f"{key}_interval", {}).get(name)) for name in names])
        for key in _HEADLINES
        if key in metrics
    ]
    rows += [
        (what, [_cell(values[name]) for name in names]) for what, values in record["made_of"].items() if what in shown
    ]
    first = max(len(key) for key, _ in rows)
    widths = [max(len(cells[column]) for _, cells in rows) for column in range(len(names))]
    lines = [
        "  ".join([f"{key:<{first}}", *(f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True))])
        for key, cells in rows
    ]
    return "\n".join([*lines, "", f"page: {record['report_html']}"])


def _interval(bounds: Sequence[int | float] | None) -> str:
    return f" ({bounds[0]:.3g} to {bounds[1]:.3g})" if bounds else ""


def _cell(value: Any) -> str:
    text = "-" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs", nargs="+", metavar="RUN", help="a run's folder, local or gs://, or a run's id")
    help_text = "the page (default: comparison.html beside the runs; in this folder where they do not lie together)"
    parser.add_argument("-o", "--output", metavar="FILE", help=help_text)
    add_json(parser)
    parser.epilog = (
        "keys of --json: runs; parameters_that_differ, {parameter: {run: value}}; made_of, the same of data, image, "
        "code, base and hardware, also where they do not differ; metrics, {metric: {run: number}}, and with an "
        "interval METRIC_interval, {run: [low, high]}; report_html"
    )
    add_connection(parser)


COMMAND = Command("compare", compare, _add_arguments)

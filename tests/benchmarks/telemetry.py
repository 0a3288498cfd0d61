"""What watching costs: throughput of the smoke run with everything on over everything off, and one span.

"On" is every outlet that needs no server of others, spans, all alerts, a Prometheus endpoint, and the
report that is made anew while the run goes on; "off" records nothing but metrics.jsonl. Runs alternate in one process,
from one start, after one that nobody counts; the first steps, which compile, do not count either.

    python -m tests.benchmarks.telemetry --json [--quick]
"""

import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from components.config import dump
from components.telemetry import spans
from components.telemetry.alerts import AlertConfig
from components.telemetry.metrics import read_metrics
from components.training.run import train
from tests.benchmarks import report
from tests.benchmarks.chaos import inputs
from tests.benchmarks.timing import arguments, print_figures

STEPS, QUICK_STEPS = 40, 15
PAIRS, QUICK_PAIRS = 5, 2
COMPILING_STEPS = 5
SPANS_OF_A_ROUND, ROUNDS = 20_000, 50

ON = {"prometheus_port": 0}
OFF = {
    "tensorboard": False,
    "spans": False,
    "alerts": {key: None for key in dump(AlertConfig()) if key != "window"},
}


class _Deaf:
    """Takes spans and counters, and keeps nothing."""

    def __init__(self) -> None:
        self.record = SimpleNamespace(counters={})

    def append(self, entry: object) -> None:
        """Nothing."""


@contextmanager
def nothing_recorded() -> Iterator[None]:
    """While it lasts, spans and counters go nowhere."""
    local, spans._local = spans._local, _Deaf()  # type: ignore[assignment]
    try:
        yield
    finally:
        spans._local = local


def tokens_per_second(section: Mapping[str, Any], shared: Mapping[str, Any], telemetry: Mapping[str, Any]) -> float:
    """Generated tokens over wall seconds of the steps that do not compile."""
    with tempfile.TemporaryDirectory() as folder:
        run = f"{folder}/run"
        settings = json.dumps({**section, "telemetry": dict(telemetry)})
        train(**shared, run_folder=run, trained=f"{folder}/trained", section=settings)
        lines = read_metrics(f"{run}/metrics.jsonl")[COMPILING_STEPS:]
        return sum(line["tokens"]["generated"] for line in lines) / sum(line["seconds"] for line in lines)


class _Empty:
    """The least that a block with a name and attributes can cost: it looks at no clock and keeps nothing."""

    __slots__ = ("attributes", "name")

    def __init__(self, name: str, **attributes: Any) -> None:
        self.name, self.attributes = name, attributes

    def __enter__(self) -> None:
        """Nothing."""

    def __exit__(self, *error: object) -> None:
        """Nothing."""


def nanoseconds_per_span() -> dict[str, float]:
    """One `with` block with two attributes, less the loop around it: of a span, and of a class that does nothing.

    Both in turn, many short rounds: a median of few long ones tells what else the machine does.
    """

    def seconds(work: Any) -> float:
        started = time.perf_counter()
        for number in range(SPANS_OF_A_ROUND):
            work(number)
        return time.perf_counter() - started

    def spanned(number: int) -> None:
        with spans.span("benchmark", step=number, fill=0.5):
            pass

    def empty(number: int) -> None:
        with _Empty("benchmark", step=number, fill=0.5):
            pass

    taken: dict[str, list[float]] = {"span": [], "empty": []}
    for _ in range(ROUNDS):
        loop = seconds(lambda number: None)
        taken["span"].append(seconds(spanned) - loop)
        taken["empty"].append(seconds(empty) - loop)
    spans.clear()
    return {name: 1e9 * statistics.median(found) / SPANS_OF_A_ROUND for name, found in taken.items()}


def main() -> None:
    """Measure and print."""
    options = arguments(__doc__.splitlines()[0])
    steps, pairs = (QUICK_STEPS, QUICK_PAIRS) if options.quick else (STEPS, PAIRS)
    ratios = []
    with tempfile.TemporaryDirectory() as folder:
        section, shared = inputs(Path(folder))
        section = {**section, "steps": steps}
        tokens_per_second(section, shared, ON)
        for number in range(pairs):
            found: dict[str, float] = {}
            # Who goes first changes, as a machine that warms or slows favours one of both.
            for side in ("on", "off") if number % 2 else ("off", "on"):
                if side == "on":
                    found[side] = tokens_per_second(section, shared, ON)
                else:
                    with nothing_recorded():
                        found[side] = tokens_per_second(section, shared, OFF)
            ratios.append(found["on"] / found["off"])
            print(f"pair {number + 1}: {ratios[-1]:.3f}", file=sys.stderr)
    with tempfile.TemporaryDirectory() as folder:
        report.synthetic_run(folder)
        built = report.measure(folder, 1 if options.quick else 3)
    span = nanoseconds_per_span()
    figures = {
        "throughput_on_over_off": statistics.median(ratios),
        "throughput_ratios": ratios,
        "nanoseconds_per_span": span["span"],
        "nanoseconds_of_an_empty_block": span["empty"],
        "report_seconds": built["report_seconds"],
        "report_bytes": built["report_bytes"],
    }
    print_figures(figures, options)


if __name__ == "__main__":
    main()

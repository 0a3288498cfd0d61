"""Numbers of a run -> an endpoint that Prometheus scrapes: base units, and labels that have few values.

headrace_step 12
headrace_tokens_total{fate="trained"} 4096
headrace_role_seconds_total{role="trainer",state="waiting for tools"} 3.5
headrace_reward_mean 0.75
headrace_tool_calls_total{tool="search",outcome="ok"} 321
headrace_tool_seconds_bucket{tool="search",le="0.5"} 300
headrace_environment_seconds_bucket{environment="countdown",act="grade",le="0.01"} 512
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

from prometheus_client import start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector, CollectorRegistry

from components.telemetry.latency import BOUNDS, summed
from components.telemetry.run_files import STEP_KEYS

GAUGES = {key: text for key, text in STEP_KEYS.items() if not text.startswith("{") and not text.startswith("list")}
"""Plain numbers of a step that are told as they are."""


class Prometheus:
    """Serves `http://HOST:port/metrics` until it is closed. `port` 0 takes a free one; `port` then tells which."""

    name = "Prometheus"

    def __init__(self, port: int, *, host: str = "0.0.0.0") -> None:
        self._numbers = _Numbers()
        registry = CollectorRegistry()
        registry.register(self._numbers)
        self._server, self._thread = start_http_server(port, addr=host, registry=registry)
        self.port = self._server.server_port

    def step(self, step: int, numbers: Mapping[str, Any]) -> None:
        """Add the step's amounts to the counters; gauges become its values."""
        self._numbers.step(step, numbers)

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Numbers(Collector):
    """Counters and histograms since the process began, and the last step's gauges. Read by the server's threads."""

    def __init__(self) -> None:
        self._step = 0
        self._gauges: dict[str, float] = {}
        self._counters: dict[str, dict[tuple[str, ...], float]] = {name: defaultdict(float) for name in _COUNTERS}
        self._histograms: dict[str, dict[tuple[str, ...], _Histogram]] = {name: {} for name in _HISTOGRAMS}

    def step(self, step: int, numbers: Mapping[str, Any]) -> None:
        for name, labels, amount in _amounts(numbers):
            self._counters[name][labels] += amount
        for name, labels, told in _latencies(numbers):
            counts, seconds = self._histograms[name].get(labels, ([], 0.0))
            # A new pair each time: a scrape never sees the counts without their sum.
            self._histograms[name][labels] = summed([counts, told.get("histogram", [])]), seconds + told["seconds"]
        self._gauges = {
            key: float(value) for key, value in numbers.items() if key in GAUGES and isinstance(value, int | float)
        }
        self._step = step

    def collect(self) -> Iterator[Metric]:
        """What a scrape gets."""
        yield GaugeMetricFamily("headrace_step", "optimizer steps made", value=self._step)
        for key, value in tuple(self._gauges.items()):
            yield GaugeMetricFamily(f"headrace_{key}", GAUGES[key], value=value)
        for name, (text, labels) in _COUNTERS.items():
            family = CounterMetricFamily(name, text, labels=labels)
            for values, amount in tuple(self._counters[name].items()):
                family.add_metric(values, amount)
            yield family
        for name, (text, labels) in _HISTOGRAMS.items():
            histograms = HistogramMetricFamily(name, text, labels=labels)
            for values, (counts, seconds) in tuple(self._histograms[name].items()):
                histograms.add_metric(values, _cumulated(counts), seconds)
            yield histograms


_COUNTERS: dict[str, tuple[str, tuple[str, ...]]] = {
    "headrace_tokens": ("generated tokens by fate", ("fate",)),
    "headrace_role_seconds": ("seconds of trainer and engine by state", ("role", "state")),
    "headrace_episodes": ("episodes of the groups that were consumed", ()),
    "headrace_failures": ("episodes that broke, by boundary", ("kind",)),
    "headrace_environment_episodes": ("episodes that ended, be they trained on or not", ("environment",)),
    "headrace_environment_errors": ("episodes that broke, by boundary", ("environment", "kind")),
    "headrace_tool_calls": ("calls of tools by outcome", ("tool", "outcome")),
    "headrace_alerts": ("alerts by rule", ("rule",)),
}


_HISTOGRAMS: dict[str, tuple[str, tuple[str, ...]]] = {
    "headrace_tool_seconds": ("how long calls of tools took", ("tool",)),
    "headrace_environment_seconds": ("how long reset, steps, grading and closing took", ("environment", "act")),
}

_Histogram = tuple[list[int], float]
"""Counts of the buckets, and the sum of the seconds."""


def _latencies(numbers: Mapping[str, Any]) -> Iterator[tuple[str, tuple[str, ...], Mapping[str, Any]]]:
    for tool, told in numbers.get("tools", {}).items():
        if "seconds" in told:
            yield "headrace_tool_seconds", (tool,), told
    for name, environment in numbers.get("environments", {}).items():
        for act, told in environment["acts"].items():
            yield "headrace_environment_seconds", (name, act), told


def _cumulated(counts: list[int]) -> list[tuple[str, float]]:
    """As Prometheus has them: each bucket with all that are below its bound; the last has no bound."""
    bounds = [*(f"{bound:g}" for bound in BOUNDS), "+Inf"]
    return [(bound, float(sum(counts[: at + 1]))) for at, bound in enumerate(bounds)]


def _amounts(numbers: Mapping[str, Any]) -> Iterator[tuple[str, tuple[str, ...], float]]:
    for fate, amount in numbers.get("tokens", {}).items():
        if fate not in ("generated", "in_flight"):
            yield "headrace_tokens", (fate,), max(amount, 0)
    for role in ("trainer", "engine"):
        for state, seconds in numbers.get(f"{role}_seconds", {}).items():
            yield "headrace_role_seconds", (role, state), max(seconds, 0.0)
    yield "headrace_episodes", (), numbers.get("episodes", 0)
    for kind, amount in numbers.get("failures", {}).items():
        yield "headrace_failures", (kind,), amount
    for tool, told in numbers.get("tools", {}).items():
        errors = told.get("errors", {})
        yield "headrace_tool_calls", (tool, "ok"), told["calls"] - sum(errors.values())
        for outcome, amount in errors.items():
            yield "headrace_tool_calls", (tool, outcome), amount
    for name, environment in numbers.get("environments", {}).items():
        yield "headrace_environment_episodes", (name,), environment["episodes"]
        for kind, amount in environment["errors"].items():
            yield "headrace_environment_errors", (name, kind), amount
    for rule in numbers.get("alerts", ()):
        yield "headrace_alerts", (rule,), 1

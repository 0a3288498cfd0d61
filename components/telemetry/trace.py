"""Spans and counters -> a trace that Perfetto and Chrome's tracing page open: a track for each role, arrows between.

A thread is a track: the trainer's, the engine's, the event loop's. Episodes, of which many go on at once, lie on lanes
of their own, each lane one episode at a time. An arrow leads from an episode's end to the optimizer step that trains on
it, and from there to the weight sync that serves what was learned.

Stretches that overlap on one track without nesting become asynchronous ones, which the viewers lay out by themselves.
"""

import heapq
import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from components import storage
from components.telemetry.spans import Span, counters, spans, unix_time

TRACK_NAMES = {"MainThread": "event loop", "trainer_0": "trainer", "records_0": "records"}
"""Threads by what they are for; others keep their names."""

_LANES = 10_000
"""Track numbers of lanes begin here, behind those of threads."""

_OUTSIDE = ("training queue",)
"""Spans of an episode that lie behind its end."""


def write_trace(uri: str) -> None:
    """Write all spans and counters as Chrome trace events (JSON) to a local path or gs:// URI."""
    storage.write_text(uri, json.dumps(trace(), default=str))


def trace() -> dict[str, Any]:
    """The Chrome trace: an `X` event for a span that nests in its track, a `b`/`e` pair for one that does not."""
    found = spans()
    threads, episodes = _parted(found)
    events: list[dict[str, Any]] = []
    for number, (thread, members) in enumerate(threads.items(), start=1):
        events += _track(number, TRACK_NAMES.get(thread, thread), members)
    lanes = _lanes(episodes)
    for number, names in enumerate(lanes):
        members = [each for name in names for each in episodes[name] if each.name not in _OUTSIDE]
        events += _track(_LANES + number, f"episodes, lane {number + 1}", members)
    for identity, event in enumerate(event for event in events if event["ph"] == "b"):
        event["id"] = identity
    return {
        "traceEvents": [*(part for event in events for part in _with_end(event)), *_arrows(events, found)],
        "displayTimeUnit": "ms",
        "otherData": {"unix_time_of_zero": unix_time(0.0), "counters": counters()},
    }


def _parted(found: Iterable[Span]) -> tuple[dict[str, list[Span]], dict[str, list[Span]]]:
    """Spans by thread, and those of episodes by episode."""
    threads: dict[str, list[Span]] = {}
    episodes: dict[str, list[Span]] = {}
    for each in found:
        episode = each.attributes.get("episode")
        if episode is None:
            threads.setdefault(each.thread, []).append(each)
        else:
            episodes.setdefault(episode, []).append(each)
    return threads, episodes


def _lanes(episodes: dict[str, list[Span]]) -> list[list[str]]:
    """Episodes lane by lane, so that no two of a lane overlap; as few lanes as went on at once."""
    stretches = []
    for name, members in episodes.items():
        inside = [each for each in members if each.name not in _OUTSIDE]
        if inside:
            stretches.append((min(each.start for each in inside), max(each.end for each in inside), name))
    lanes: list[list[str]] = []
    free: list[tuple[float, int]] = []
    for start, end, name in sorted(stretches):
        if free and free[0][0] <= start:
            _, number = heapq.heappop(free)
        else:
            number = len(lanes)
            lanes.append([])
        lanes[number].append(name)
        heapq.heappush(free, (end, number))
    return lanes


def _track(number: int, name: str, members: Sequence[Span]) -> list[dict[str, Any]]:
    where = {"pid": 1, "tid": number}
    head = [
        {"ph": "M", "name": "thread_name", "args": {"name": name}, **where},
        {"ph": "M", "name": "thread_sort_index", "args": {"sort_index": number}, **where},
    ]
    return [*head, *(event | where for event in _events(members))]


def _events(members: Iterable[Span]) -> Iterator[dict[str, Any]]:
    """Events of one track. `open_ends` are the ends of the spans around the current one, the innermost last."""
    open_ends: list[float] = []
    for each in sorted(members, key=lambda each: (each.start, -each.end)):
        while open_ends and open_ends[-1] <= each.start:
            open_ends.pop()
        nested = not open_ends or each.end <= open_ends[-1]
        if nested:
            open_ends.append(each.end)
        yield {
            "ph": "X" if nested else "b",
            "name": each.name,
            "cat": "span",
            "ts": each.start * 1e6,
            "dur": each.seconds * 1e6,
            "args": dict(each.attributes),
        }


def _with_end(event: dict[str, Any]) -> tuple[dict[str, Any], ...]:
    if event["ph"] != "b":
        return (event,)
    begin = {key: value for key, value in event.items() if key != "dur"}
    end = {key: value for key, value in begin.items() if key != "args"}
    return begin, end | {"ph": "e", "ts": event["ts"] + event["dur"]}


def _arrows(events: Sequence[dict[str, Any]], found: Iterable[Span]) -> Iterator[dict[str, Any]]:
    """rollout -> apply of the step that took it -> weight_sync of the version that came of it."""
    whole = [event for event in events if event["ph"] == "X"]
    rollouts = {event["args"].get("episode"): event for event in whole if event["name"] == "rollout"}
    # `apply` tells the version that it starts from.
    steps = {event["args"].get("step", -1) + 1: event for event in whole if event["name"] == "apply"}
    syncs = {event["args"].get("version"): event for event in whole if event["name"] == "weight_sync"}
    for number, queue in enumerate(each for each in found if each.name == "training queue"):
        rollout, step = rollouts.get(queue.attributes["episode"]), steps.get(queue.attributes["step"])
        if rollout and step:
            yield from _arrow("trained on", 2 * number, rollout, step)
    for version, step in steps.items():
        if version in syncs:
            yield from _arrow("served as", 2 * version + 1, step, syncs[version])


def _arrow(name: str, identity: int, source: dict[str, Any], target: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """From just before the end of one slice to just after the beginning of another."""
    shared = {"name": name, "cat": "flow", "id": identity, "pid": 1}
    yield {**shared, "ph": "s", "tid": source["tid"], "ts": source["ts"] + 0.99 * source["dur"]}
    yield {**shared, "ph": "f", "bp": "e", "tid": target["tid"], "ts": target["ts"] + 0.01 * target["dur"]}

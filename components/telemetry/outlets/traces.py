"""Spans of a run, as they are recorded -> `spans.jsonl` in the run's folder, and a collector where one is named."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from components import storage
from components.telemetry.episodes import EpisodeTraces, Node
from components.telemetry.spans import Tail, unix_time

SPANS = "spans.jsonl"

FILE_BYTES = 64 * 1024 * 1024
"""How large `spans.jsonl` may grow; trace.json holds the last spans of a run in any case."""


@runtime_checkable
class TraceWriter(Protocol):
    """Where nodes go. `name` is for people."""

    name: str

    def write(self, nodes: Sequence[Node]) -> None:
        """Take some, children and parents in any order."""
        ...

    def close(self) -> None:
        """Send what is left."""
        ...


class Traces:
    """An outlet that reads the spans at each step. `keep_every` n keeps one episode in n, and every one that failed."""

    def __init__(self, writer: TraceWriter, *, run: str, keep_every: int) -> None:
        self.name = writer.name
        self._writer = writer
        self._episodes = EpisodeTraces(keep_every, run=run)
        self._tail = Tail()

    def step(self, step: int, numbers: Mapping[str, Any]) -> None:
        """Hand on what was recorded since the last step."""
        self._writer.write(self._episodes.add(self._tail.read()))

    def close(self) -> None:
        """Hand on the rest."""
        self.step(0, {})
        self._tail.close()
        self._writer.close()


class SpanFile:
    """One object a line: name, unix seconds of start and end, ids, thread, attributes."""

    name = SPANS

    def __init__(self, run_folder: str) -> None:
        self._log = storage.LineLog(storage.join(run_folder, SPANS))
        self._left = FILE_BYTES

    def write(self, nodes: Sequence[Node]) -> None:
        """Append, as long as there is room."""
        for node in nodes:
            line = json.dumps(_line(node), default=str)
            self._left -= len(line)
            if self._left < 0:
                return
            self._log.append(line)
        self._log.sync()

    def close(self) -> None:
        """Nothing is held back."""


def _line(node: Node) -> dict[str, Any]:
    return {
        "name": node.span.name,
        "start": unix_time(node.span.start),
        "end": unix_time(node.span.end),
        "trace": node.trace,
        "id": node.id,
        "parent": node.parent,
        "thread": node.span.thread,
        "attributes": dict(node.span.attributes),
    }

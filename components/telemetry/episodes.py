"""Spans as they are recorded -> the spans of whole episodes, each with its parent; a share of them, and every failure.

    rollout
    ├── reset
    ├── turn 0
    │   ├── chat
    │   │   ├── engine queue · prefill of turn · decode of turn
    │   └── step
    │       └── execute_tool ...
    ├── reward · close
    └── training queue        until the group is consumed by optimizer step `step`

What belongs to no episode (micro-batches, weight syncs, checkpoints, compilations) goes through as it is.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass

from components.telemetry.spans import Span

PARENTS = {
    "reset": "rollout",
    "turn": "rollout",
    "chat": "turn",
    "engine queue": "chat",
    "prefill of turn": "chat",
    "decode of turn": "chat",
    "step": "turn",
    "execute_tool": "step",
    "reward": "rollout",
    "close": "rollout",
    "training queue": "rollout",
}
"""The parent of each span of an episode."""

DISPATCHES = ("prefill", "decode")
"""Spans of the engine's dispatches: very many, and each turn has spans of its own."""

_LAST = {"rollout": 1, "training queue": 2}

_OPEN = 20_000  # episodes that are remembered while they play, or until they are consumed


@dataclass(frozen=True, slots=True)
class Node:
    """A span with its place in a tree. Ids are hex, made of the names: 32 digits for a trace, 16 for a span."""

    span: Span
    trace: str
    id: str
    parent: str | None


class EpisodeTraces:
    """Keeps the spans of episodes that still play. `keep_every` n keeps one episode in n, and all that failed."""

    def __init__(self, keep_every: int = 1, *, run: str = "") -> None:
        self._keep_every = keep_every
        self._run = run
        self._open: OrderedDict[str, list[Span]] = OrderedDict()
        self._kept: OrderedDict[str, None] = OrderedDict()
        self._loose = 0

    def add(self, spans: Iterable[Span]) -> list[Node]:
        """Take new spans; give the trees of the episodes that they end, and what belongs to none."""
        found: list[Node] = []
        # An episode's own span ends it, and its wait comes after: whichever thread wrote the others, they are there.
        for span in sorted(spans, key=lambda each: _LAST.get(each.name, 0)):
            episode = span.attributes.get("episode")
            if episode is None:
                if span.name not in DISPATCHES:
                    self._loose += 1
                    trace, own = _hex(self._run, 16), _hex(f"{self._run} {self._loose}", 8)
                    found.append(Node(span, trace, own, None))
            elif span.name == "training queue":
                if episode in self._kept:
                    found += self._tree(episode, [span])
            elif span.name == "rollout":
                members = [*self._open.pop(episode, []), span]
                if self._keeps(span):
                    self._remember(episode)
                    found += self._tree(episode, members)
            else:
                self._open.setdefault(episode, []).append(span)
                if len(self._open) > _OPEN:
                    self._open.popitem(last=False)
        return found

    def _keeps(self, rollout: Span) -> bool:
        chosen = int(_hex(str(rollout.attributes["episode"]), 8), 16) % self._keep_every == 0
        return chosen or rollout.attributes.get("outcome") == "failed"

    def _remember(self, episode: str) -> None:
        self._kept[episode] = None
        if len(self._kept) > _OPEN:
            self._kept.popitem(last=False)

    def _tree(self, episode: str, members: list[Span]) -> list[Node]:
        trace = _hex(f"{self._run} {episode}", 16)
        seen: dict[tuple[str, int], int] = {}
        nodes = []
        for span in [*members, *_turns(members)]:
            turn = int(span.attributes.get("turn", 0))
            number = seen[span.name, turn] = seen.get((span.name, turn), -1) + 1
            parent = PARENTS.get(span.name)
            above = _id(trace, parent, 0 if parent == "rollout" else turn) if parent else None
            nodes.append(Node(span, trace, _id(trace, span.name, turn, number), above))
        return nodes


def _turns(members: list[Span]) -> list[Span]:
    """A span for each turn, from the first to the last of what happened in it."""
    by_turn: dict[int, list[Span]] = {}
    for span in members:
        if span.name in ("chat", "step"):
            by_turn.setdefault(int(span.attributes["turn"]), []).append(span)
    return [
        Span(
            "turn",
            min(each.start for each in inside),
            max(each.end for each in inside),
            inside[0].thread,
            {"episode": inside[0].attributes["episode"], "turn": turn},
        )
        for turn, inside in sorted(by_turn.items())
    ]


def _id(trace: str, name: str, turn: int, number: int = 0) -> str:
    # There is one rollout, whatever turn a span of its is told with.
    return _hex(f"{trace} {name} {0 if name == 'rollout' else turn} {number}", 8)


def _hex(text: str, size: int) -> str:
    return hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=size).hexdigest()

"""A regular expression -> the alternatives in it, so that each can be asked what it matches.

A filter with one good alternative and one misspelt matches something, and half of what was meant.
"""

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

_OPENING = re.compile(r"\((?P<kind>\?(:|P<\w+>|<?[=!]|#|P=|[a-zA-Z-]+[:)]))?")
_PLAIN = re.compile(r"\?(:|P<\w+>)")


class _Group(NamedTuple):
    """A bracket's inside: where it begins and ends, and the bars in it that stand in no inner bracket."""

    start: int
    end: int
    bars: tuple[int, ...]
    plain: bool

    @property
    def parts(self) -> list[tuple[int, int]]:
        """Where each alternative begins and ends; a bracket that looks around is one part."""
        bars = self.bars if self.plain else ()
        return list(zip([self.start, *(bar + 1 for bar in bars)], [*bars, self.end], strict=True))


def alternatives(pattern: str) -> list[str]:
    """Split at the bars that stand outside every bracket."""
    outside = _groups(pattern)[-1]
    return _between(pattern, outside)


def inner_alternatives(pattern: str) -> Iterator[tuple[str, str]]:
    """Each alternative inside a bracket, and the pattern with no other there, nor around it: `(a|b)c` -> `a`, `(a)c`.

    Brackets that look around, which exclude as often as they choose, are left alone.
    """
    *groups, whole = _groups(pattern)
    for group in groups:
        around = [each for each in (*groups, whole) if each.start < group.start and group.end <= each.end]
        if group.plain and group.bars:
            for alternative in _between(pattern, group):
                yield alternative, _narrowed(pattern, group, alternative, around)


def _narrowed(pattern: str, group: _Group, text: str, around: Sequence[_Group]) -> str:
    """The pattern with `text` in a group, each group around it cut to its alternative; inner ones come first."""
    inner = group
    for outer in around:
        start, end = next((start, end) for start, end in outer.parts if start <= inner.start <= end)
        text = pattern[start : inner.start] + text + pattern[inner.end : end]
        inner = outer
    return text


def _between(pattern: str, group: _Group) -> list[str]:
    return [pattern[start:end] for start, end in group.parts]


def _groups(pattern: str) -> list[_Group]:
    """Every bracket of a pattern that compiles, inner ones first; the last stands for the whole pattern."""
    opened: list[tuple[int, list[int], bool]] = [(0, [], True)]
    found: list[_Group] = []
    at = 0
    while at < len(pattern):
        step = 1
        match pattern[at]:
            case "\\":
                step = 2
            case "[":
                step = _class_length(pattern, at)
            case "(":
                kind = _OPENING.match(pattern, at)
                assert kind is not None
                step = kind.end() - at
                plain = kind["kind"] is None or _PLAIN.fullmatch(kind["kind"]) is not None
                if not kind.group().endswith(")"):
                    opened.append((at + step, [], plain))
            case ")":
                start, bars, plain = opened.pop()
                found.append(_Group(start, at, tuple(bars), plain))
            case "|":
                opened[-1][1].append(at)
        at += step
    start, bars, plain = opened.pop()
    return [*found, _Group(start, len(pattern), tuple(bars), plain)]


def _class_length(pattern: str, at: int) -> int:
    """How long the set of characters is that begins here. A `]` that comes first is one of them."""
    end = at + (2 if pattern[at + 1] == "^" else 1)
    end += 1 if pattern[end] == "]" else 0
    while pattern[end] != "]":
        end += 2 if pattern[end] == "\\" else 1
    return end + 1 - at

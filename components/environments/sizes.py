"""Any value that came from outside -> how long its text would be, and a shorter one, without writing that text.

Whoever hands over 50 MB must not stop the event loop while somebody finds out: the time of everything here is bounded
by the number of characters asked for, not by the value's size.
"""

import reprlib
from collections.abc import Mapping
from typing import Any


def characters_in(value: Any, enough: int) -> int:
    """The characters of all texts in nested mappings and sequences, and one more for every value.

    Counting stops at `enough`: a result that is larger says no more than that.
    """
    waiting, counted = [value], 0
    while waiting and counted < enough:
        value = waiting.pop()
        counted += 1
        if isinstance(value, str | bytes | bytearray):
            counted += len(value)
        elif isinstance(value, Mapping | list | tuple | set | frozenset):
            if counted + len(value) >= enough:
                return counted + len(value)
            waiting.extend(value)
            if isinstance(value, Mapping):
                waiting.extend(value.values())
    return counted


def shortened(value: Any, characters: int) -> Any:
    """The value with its texts cut and items left out, so that about `characters` are left; equal when it fits."""
    return _Shortening(characters).of(value)


def encodable(text: str) -> str:
    """The text as UTF-8 can hold it: a lone surrogate becomes "?"."""
    return text if text.isascii() else text.encode("utf-8", errors="replace").decode()


def cut(text: str, limit: int) -> str:
    """At most `limit` characters of a text, with a note when there were more."""
    return text if len(text) <= limit else f"{text[:limit]}\n[cut: {len(text) - limit} more characters]"


def short_repr(value: Any) -> str:
    """What a value looks like, in at most 200 characters. Never raises: a broken __repr__ shows the class."""
    return encodable(_ENDS.repr(value))[:200]


class _Shortening:
    """How many characters there still are for the values that come next."""

    def __init__(self, characters: int) -> None:
        self._left = characters

    def of(self, value: Any) -> Any:
        if isinstance(value, str | bytes | bytearray):
            part = value[: max(self._left, 0)]
            self._left -= len(value)
            return part
        self._left -= 1
        if isinstance(value, Mapping):
            return {self.of(key): self.of(value[key]) for key in self._while_room(value)}
        if isinstance(value, list | tuple | set | frozenset):
            return [self.of(item) for item in self._while_room(value)]
        return value

    def _while_room(self, items: Any) -> Any:
        for item in items:
            if self._left <= 0:
                return
            yield item


class _Ends(reprlib.Repr):
    """Beginning and end of long texts, the first items of long lists."""

    def __init__(self) -> None:
        super().__init__()
        self.maxstring = self.maxother = 80

    def repr_int(self, value: int, level: int) -> str:
        # Python refuses to print a huge one.
        return f"an int of {value.bit_length()} bits" if value.bit_length() > 256 else repr(value)

    def repr_dict(self, value: dict[Any, Any], level: int) -> str:
        # All keys are sorted to show a few.
        return super().repr_dict(value, level) if len(value) < 1000 else f"a dict of {len(value)} items"

    def repr_set(self, value: set[Any], level: int) -> str:
        return super().repr_set(value, level) if len(value) < 1000 else f"a set of {len(value)} items"


_ENDS = _Ends()

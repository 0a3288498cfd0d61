"""Tokens as they come -> the one that completes a stop string. Text alone is looked at, never a list of token ids."""

from collections.abc import Callable, Sequence

DecodeText = Callable[[Sequence[int]], str]
"""Turns a stretch of token ids into text."""

# Special tokens may have no text at all, so that a stop string can stretch over more tokens than it has bytes.
_MARGIN = 8


def tokens_until_stop(
    stop_strings: Sequence[str], decode_text: DecodeText, earlier: Sequence[int], new: Sequence[int]
) -> int | None:
    """How many of the `new` tokens to keep, so that the last of them completes a stop string; None if none does.

    `earlier` are the tokens of the completion before them, in which no stop string is complete. Tokens are read
    together, so a character that is split over several is whole by the time it counts.
    """
    window = max(len(text.encode()) for text in stop_strings) + _MARGIN
    ids = [*earlier[-window:], *new]
    if not _has_any(stop_strings, decode_text(ids)):
        return None
    before = len(ids) - len(new)
    kept = range(1, len(new) + 1)
    return next((count for count in kept if _has_any(stop_strings, decode_text(ids[: before + count]))), None)


def _has_any(stop_strings: Sequence[str], text: str) -> bool:
    return any(stop in text for stop in stop_strings)

"""What is common to all ways of writing tool calls: the walk over a text's wrappers, and why a call is none.

No input raises, and time is linear in the text's length: after MAX_CALLS calls or MAX_MALFORMED malformed ones the rest
of a message is one malformed call.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass

from components.types import MalformedCall, ToolCall

MAX_CALLS = 64
MAX_MALFORMED = 8
_PATIENCE = 400_000
"""Characters that malformed calls may have had behind them, all together, beside those of one whole text: reading one
may take looking at all that follows."""

KINDS = {
    "cut": "the text ends inside of the call",
    "json": "what should be JSON is not, or holds NaN, Infinity or a key twice",
    "size": "a number, or the nesting, is beyond what anything behind could hold",
    "name": "there is no name of a tool, or no tool at all",
    "arguments": "the arguments are no object, or stand beside it",
    "form": "the tags around or inside of the call are not those of the format",
    "limit": "there were too many calls before it",
}
"""Why a call is malformed, in one word, as metrics count it."""

BLANK = re.compile(r"[\s\ufeff]*")
"""White space, and the mark that some put at the start of a text."""


class UnreadableCallError(ValueError):
    """Why the text of a call is no call; becomes MalformedCall.reason and MalformedCall.kind."""

    def __init__(self, reason: str, kind: str = "form") -> None:
        super().__init__(reason)
        self.kind = kind

    def on(self, text: str) -> MalformedCall:
        """The malformed call that this text is."""
        return MalformedCall(text, str(self), self.kind)


@dataclass(frozen=True, slots=True)
class ParsedText:
    """`content` is what stands outside of the calls; with no call in it, the text unchanged."""

    content: str
    calls: tuple[ToolCall, ...] = ()
    malformed: tuple[MalformedCall, ...] = ()


Read = Callable[[str, int], tuple[ToolCall, int]]
"""(text, where the wrapper's inside begins) -> the call and the place where it ended; raises UnreadableCallError."""


def parse_wrapped(text: str, opens: str, closes: str, read: Read) -> ParsedText:
    """Read each of a text's wrappers. One that cannot be read ends at its closing tag, or where the next opens."""
    calls: list[ToolCall] = []
    malformed: list[MalformedCall] = []
    outside: list[str] = []
    position, patience = 0, len(text) + _PATIENCE
    while len(calls) < MAX_CALLS and len(malformed) < MAX_MALFORMED and patience > 0:
        start = text.find(opens, position)
        if start < 0:
            break
        outside.append(text[position:start])
        inside = start + len(opens)
        try:
            call, end = read(text, inside)
            position = _after_closing(text, end, closes)
            calls.append(call)
        except UnreadableCallError as error:
            patience -= len(text) - start
            position = _end_of_unreadable(text, inside, opens, closes)
            malformed.append(error.on(text[start:position]))
    if not outside:
        return ParsedText(text)
    if opens in text[position:]:
        reason = f"at most {MAX_CALLS} calls, or {MAX_MALFORMED} malformed ones (fewer in a long text), are read"
        malformed.append(MalformedCall(text[position:], reason, "limit"))
        position = len(text)
    outside.append(text[position:])
    return ParsedText("".join(outside).strip(), tuple(calls), tuple(malformed))


def skip_blank(text: str, at: int) -> int:
    """The place of the next character that is no white space."""
    match = BLANK.match(text, at)
    return match.end() if match else at


def _after_closing(text: str, end: int, closes: str) -> int:
    """The place behind the closing tag. It may be missing where the text ends; anything else there is a fault."""
    end = skip_blank(text, end)
    if text.startswith(closes, end):
        return end + len(closes)
    if end == len(text):
        return end
    raise UnreadableCallError(f"{closes} must follow the call, not {text[end : end + 20]!r}")


def _end_of_unreadable(text: str, inside: int, opens: str, closes: str) -> int:
    closing, opening = text.find(closes, inside), text.find(opens, inside)
    end = len(text) if closing < 0 else closing + len(closes)
    return min(end, opening) if opening >= 0 else end

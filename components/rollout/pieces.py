"""Text in which some places are tokens -> ids.

A conversation is made of what a renderer writes and of what others wrote. What others wrote is a plain string here, and
never becomes a token with a meaning of its own, whatever it spells. What the renderer writes may be a `Mark`: one token
where the vocabulary has it (`<tool_call>` in Qwen's), and the same text like any other where it does not (SmolLM2).
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from components.rollout.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Mark:
    """A text that the renderer itself writes, and that is one token where there is such a token."""

    text: str


Pieces = tuple[str | Mark, ...]

THINK, END_THINK = Mark("<think>"), Mark("</think>")
CALL, END_CALL = Mark("<tool_call>"), Mark("</tool_call>")
RESPONSE, END_RESPONSE = Mark("<tool_response>"), Mark("</tool_response>")
_MARKS = (THINK, END_THINK, CALL, END_CALL, RESPONSE, END_RESPONSE)
_MARK = re.compile("(" + "|".join(re.escape(mark.text) for mark in _MARKS) + ")")


def marked(text: str) -> Pieces:
    """A text of the renderer's own, cut at the marks in it."""
    return tuple(Mark(part) if _MARK.fullmatch(part) else part for part in _MARK.split(text) if part)


def text_of(pieces: Iterable[str | Mark]) -> str:
    """What the pieces read as."""
    return "".join(piece.text if isinstance(piece, Mark) else piece for piece in pieces)


def encode(tokenizer: Tokenizer, pieces: Iterable[str | Mark]) -> list[int]:
    """Ids of pieces. Text between two tokens is tokenised as one, so that pieces leave no trace in it."""
    ids: list[int] = []
    text = ""
    for piece in pieces:
        token = tokenizer.token_id(piece.text) if isinstance(piece, Mark) else None
        if token is None:
            text += piece.text if isinstance(piece, Mark) else piece
            continue
        ids += [*(tokenizer.encode(text) if text else ()), token]
        text = ""
    return [*ids, *(tokenizer.encode(text) if text else ())]


def joined(parts: Iterable[Pieces], gap: str) -> Pieces:
    """The parts that are not empty, with a gap between them."""
    pieces: list[str | Mark] = []
    for part in parts:
        if part:
            pieces += [gap, *part] if pieces and gap else part
    return tuple(pieces)

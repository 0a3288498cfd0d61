"""A text that a model wrote -> what it thought, and the rest.

A thinking block is `<think>` to `</think>`. One that opens the text may go on to its end; one further on counts only
when it is closed, and only before the first tool call, as an argument may quote such a tag. What stands inside of a
block is neither an answer nor a call.
"""

import re

from components.rollout.pieces import END_THINK, THINK

_OPENS, _CLOSES = THINK.text, END_THINK.text
MAX_BLOCKS = 64
"""Of one text. Behind them a tag is text like any other."""
_AT_START = re.compile(r"[\s\ufeff]*" + re.escape(_OPENS))


def split_thinking(text: str, call: str, *, opened: bool = False) -> tuple[str, str]:
    """(thinking, rest). `call` is what opens a tool call; `opened` says that the prompt has opened the first block."""
    start = _AT_START.match(text)
    blocks: list[str] = []
    kept: list[str] = []
    position = 0
    if opened or start is not None:
        begin = start.end() if start is not None else 0
        end = text.find(_CLOSES, begin)
        if end < 0:
            return text[begin:].strip("\r\n"), ""
        blocks.append(text[begin:end].strip("\r\n"))
        position = end + len(_CLOSES)
    limit = text.find(call, position) if call else -1
    while len(blocks) < MAX_BLOCKS:
        begin = text.find(_OPENS, position, None if limit < 0 else limit)
        end = text.find(_CLOSES, begin) if begin >= 0 else -1
        if end < 0:
            break
        kept.append(text[position:begin])
        blocks.append(text[begin + len(_OPENS) : end].strip("\r\n"))
        position = end + len(_CLOSES)
        if 0 <= limit < position:
            limit = text.find(call, position)
    if not blocks:
        return "", text
    rest = "".join((*kept, text[position:]))
    return "\n\n".join(filter(None, blocks)), rest.lstrip("\r\n")

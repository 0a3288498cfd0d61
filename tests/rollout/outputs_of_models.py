"""Texts as models write them, well and badly: what the parsers are fuzzed with.

Each is made of pieces that mean something to one of the formats, cut, doubled, nested and mixed at random.
"""

import json
import random
from collections.abc import Iterator

TAGS = tuple(
    f"<{mark}{tag}>"
    for mark in ("", "/")
    for tag in ("tool_call", "tool", "function", "parameter", "think", "tool_response")
)
SIGNS = (*TAGS, "<function=edit>", "<function=a.b>", "<parameter=old>", "<parameter=count>", "<|python_tag|>", "[", "]")
JSON = (
    '{"name": "edit", "arguments": {"old": "x"}}',
    '{"name": "math.gcd", "parameters": {"a": 12}}',
    '{"name": "edit", "arguments": "{\\"old\\": \\"x\\"}"}',
    '{"type": "function", "function": {"name": "edit", "arguments": null}}',
    '{"name": "edit"}',
    '{"name": "no_such_tool", "arguments": {}}',
    '{"name": 3, "arguments": []}',
    '{"name": "edit", "name": "edit"}',
    '{"name": "edit", "arguments": {"count": NaN}}',
    '{"name": "edit", "arguments": {"count": -Infinity}}',
    '{"name": "edit", "arguments": {"count": 1e999}}',
    '{"name": "edit", "arguments": {"count": ' + "9" * 5000 + "}}",
    '{"name": "edit", "arguments": {"old": "\\ud83d"}}',
    '{"name": "edit", "arguments": {"old": "close with </tool_call> here"}}',
    '{"name": "edit", "arguments": {"old": "</parameter></function></think>"}}',
    "[" * 300,
    '{"a":' * 300,
    "```json\n{}\n```",
)
CHARACTERS = (
    "\r\n",
    "\n",
    " ",
    "\t",
    "\ufeff",
    "\x00",
    "\ufffd",
    "\u2028",
    "é",
    "e\u0301",
    "😀",
    '"',
    "\\",
    "{",
    "}",
    ",",
    ":",
    ";",
)
WORDS = ("Let me see.", "42", "plan", "null", "true", "True", "None", "-1.5e3", "value")
WRAPPERS = (
    ("<tool_call>\n", "\n</tool_call>"),
    ("<tool_call>\n<function=edit>\n<parameter=old>\n", "\n</parameter>\n</function>\n</tool_call>"),
    ("<think>\n", "\n</think>\n\n"),
    ("<|python_tag|>", ""),
    ("<tool>", "</tool>"),
    ("[", "]"),
)


def fuzzed_outputs(count: int, seed: int = 0) -> Iterator[str]:
    """So many texts, the same ones for a seed. One in a hundred is long."""
    draw = random.Random(seed)
    for number in range(count):
        text = _text(draw, depth=draw.randrange(4))
        yield text * draw.randrange(50, 200) if number % 100 == 99 else text


def _text(draw: random.Random, depth: int) -> str:
    parts = []
    for _ in range(draw.randrange(1, 6)):
        kind = draw.random()
        if depth and kind < 0.4:
            opens, closes = draw.choice(WRAPPERS)
            parts.append(opens + _text(draw, depth - 1) + closes * (draw.random() < 0.85))
        elif kind < 0.65:
            parts.append(draw.choice(JSON))
        elif kind < 0.8:
            parts.append(draw.choice(SIGNS))
        elif kind < 0.9:
            parts.append(draw.choice(WORDS))
        else:
            parts.append(draw.choice(CHARACTERS))
    text = "".join(parts)
    if draw.random() < 0.2:
        text = text[: draw.randrange(len(text) + 1)]
    if draw.random() < 0.1:
        at = draw.randrange(len(text) + 1)
        text = text[:at] + chr(draw.randrange(0xD800)) + text[at:]
    return text


def megabytes() -> dict[str, str]:
    """Texts of about a million characters, each the worst that we know for some part of a parser."""
    size = 1_000_000
    call = '<tool_call>{{"name": "edit", "arguments": {{"old": {}}}}}</tool_call>'
    function = "<tool_call>\n<function=edit>\n<parameter=old>\n"
    return {
        "prose": "word " * (size // 5),
        "one long string": call.format(json.dumps("x" * size)),
        "escapes": call.format('"' + "\\u00fc" * (size // 6) + '"'),
        "prose with commas": call.format(json.dumps("one, two; " * (size // 10))),
        "numbers": call.format("[" + ",".join("1" * (size // 2)) + "]"),
        "lists": call.format("[" + ",".join(["[]"] * (size // 3)) + "]"),
        "brackets": "<tool_call>" + "[" * size,
        "opening tags": "<tool_call>" * (size // 11),
        "closing tags": "</tool_call>" * (size // 12),
        "calls that quote each other": "<tool_call>[" + '"<tool_call>[",' * (size // 14),
        "strings that never end": '<tool_call>"' * (size // 12),
        "lists that end at the end": '<tool_call>[0,"' * 9 + ",".join(['""'] * (size // 3)),
        "many good calls": '<tool_call>{"name": "edit"}</tool_call>' * (size // 38),
        "thinking": "<think></think>" * (size // 15),
        "thinking without an end": "<think>" * (size // 7),
        "parameters": function + "v\n</parameter>\n<parameter=b>\n" * (size // 30),
        "parameters that do not end": function + "\n</parameter>" * (size // 13),
        "spaces behind a parameter": function + ("</parameter>" + " " * 100) * (size // 112),
        "line breaks": function + "\n" * size,
        "bare calls": '{"name": "edit", "parameters": {}};' * (size // 35),
        "bare beginnings": '{"name": ' * (size // 9),
        "a bare string": '{"name": "edit", "parameters": {"old": "' + "x" * size,
        "python tags": "<|python_tag|>" * (size // 14),
        "tagged": "<tool>x</tool>" * (size // 14),
    }

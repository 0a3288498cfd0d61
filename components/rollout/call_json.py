"""A JSON object with a name and arguments -> a tool call. Stricter than Python's own reader where others are, too.

JSON has no NaN and no Infinity, and a key that stands twice has no meaning that all readers share; numbers and nesting
are bounded, so that whatever is read can be written again by everything behind.
"""

import json
import math
import re
from collections import Counter
from collections.abc import Collection
from typing import Any

from components.rollout.call_text import MAX_CALLS, ParsedText, UnreadableCallError, skip_blank
from components.types import ToolCall

MAX_DEPTH = 64
MAX_VALUES = 20_000
_NO_ARGUMENTS = {"name", "id", "type"}
_LOOKS_LIKE_A_CALL = re.compile(r'\{\s*"(?:name|type|function|parameters|arguments)"\s*:')
_BETWEEN = re.compile(r"[\s;,]*")
# To its end, or to that of the text: one way of matching, so that no text makes it slow.
_STRING = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)', re.DOTALL)


def read_json_call(text: str, at: int) -> tuple[ToolCall, int]:
    """The call at a place, and the place where its JSON ends. Raises UnreadableCallError."""
    value, end = read_json(text, skip_blank(text, at), shift=at)
    return _call_of(value), end


def read_json(text: str, at: int, *, shift: int = 0) -> tuple[Any, int]:
    """The value at a place, and the place where it ends; `shift` is where a reason begins to count characters.

    Raises UnreadableCallError.
    """
    _check_size(text, at)
    try:
        value, end = _DECODER.raw_decode(text, at)
    except UnreadableCallError:
        raise
    except json.JSONDecodeError as error:
        # The reader says where a string began that has no end; everything else ends where the text does.
        cut = skip_blank(text, error.pos) == len(text) or error.msg.startswith("Unterminated string")
        reason = f"not JSON: {error.msg} at character {error.pos - shift}"
        raise UnreadableCallError(reason, "cut" if cut else "json") from None
    except RecursionError:
        raise UnreadableCallError(f"not usable JSON: nested more than {MAX_DEPTH} deep", "size") from None
    except ValueError as error:
        raise UnreadableCallError(f"not usable JSON: {error}", "size") from None
    _check_depth(value)
    return value, end


def arguments_of(value: Any, key: str) -> dict[str, Any]:
    """The arguments under a key: an object, a JSON text of one, or nothing. Raises UnreadableCallError."""
    if value is None or (isinstance(value, str) and not value.strip()):
        return {}
    if isinstance(value, str):
        try:
            text, (value, end) = value, read_json(value, skip_blank(value, 0))
            if skip_blank(text, end) < len(text):
                raise UnreadableCallError(f"not JSON: more follows at character {end}")
        except UnreadableCallError as error:
            raise UnreadableCallError(f'"{key}" is a text that is {error}', "arguments") from None
    if not isinstance(value, dict):
        raise UnreadableCallError(f'"{key}" must be a JSON object', "arguments")
    return value


def parse_bare(text: str, tools: Collection[str]) -> ParsedText | None:
    """The calls of a message that is nothing but one call object, or several with `;`, `,` or white space between.

    None for any other text: prose with JSON in it is an answer, and so is an object that is no call. An object that
    begins as a call does and cannot be read is a malformed one. An object without arguments calls only a tool that
    there is, as {"name": "Paris"} may well be an answer.
    """
    at = skip_blank(text, 0)
    if _LOOKS_LIKE_A_CALL.match(text, at) is None:
        return None
    calls: list[ToolCall] = []
    while at < len(text):
        if len(calls) == MAX_CALLS:
            return _broken(text, at, calls, UnreadableCallError(f"only {MAX_CALLS} calls are read", "limit"))
        try:
            value, end = read_json(text, at, shift=at)
            if not _is_bare_call(value, tools):
                return None
            calls.append(_call_of(value))
        except UnreadableCallError as error:
            return _broken(text, at, calls, error)
        between = _BETWEEN.match(text, end)
        at = between.end() if between else end
    return ParsedText("", tuple(calls))


def _broken(text: str, at: int, calls: list[ToolCall], error: UnreadableCallError) -> ParsedText | None:
    """What looks like one more call and is none is malformed; anything else makes the whole message an answer."""
    if _LOOKS_LIKE_A_CALL.match(text, at) is None:
        return None
    return ParsedText("", tuple(calls), (error.on(text[at:]),))


def _is_bare_call(value: Any, tools: Collection[str]) -> bool:
    if not isinstance(value, dict):
        return False
    inner = value["function"] if isinstance(value.get("function"), dict) else value
    return "arguments" in inner or "parameters" in inner or inner.get("name") in tools


def _call_of(value: Any) -> ToolCall:
    if not isinstance(value, dict):
        raise UnreadableCallError("a call must be a JSON object with name and arguments", "json")
    if isinstance(value.get("function"), dict) and "name" not in value:
        _refuse_stray(value.keys() - {"function"})
        value = value["function"]
    name = value.get("name")
    if not isinstance(name, str) or not name:
        raise UnreadableCallError('"name" must be the name of a tool', "name")
    keys = [key for key in ("arguments", "parameters") if key in value]
    if len(keys) == 2:
        raise UnreadableCallError('"arguments" and "parameters" stand both there; give one of them', "arguments")
    _refuse_stray(value.keys() - {*keys})
    return ToolCall(name, arguments_of(value[keys[0]], keys[0]) if keys else {})


def _refuse_stray(keys: set[str]) -> None:
    if stray := sorted(keys - _NO_ARGUMENTS):
        raise UnreadableCallError(f'{", ".join(stray)[:200]} must stand inside of "arguments"', "arguments")


def _check_size(text: str, at: int) -> None:
    """Whether what follows has more values than a tool could want; counted outside of strings where it may matter."""
    if sum(text.count(mark, at) for mark in "[{,") <= MAX_VALUES:
        return
    # About as many as there are strings: a quote in a string has a backslash before it.
    quotes = text.count('"', at) - text.count('\\"', at) + text.count('\\\\"', at)
    if quotes <= 4 * MAX_VALUES:
        bare = _STRING.sub("", text[at:])
        if sum(bare.count(mark) for mark in "[{,") <= MAX_VALUES:
            return
    raise UnreadableCallError(f"not usable JSON: more than {MAX_VALUES} values", "size")


def _read_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        counted = Counter(key for key, _ in pairs)
        twice = next(key for key, times in counted.items() if times > 1)
        raise UnreadableCallError(f'not usable JSON: the key "{twice[:100]}" stands twice', "json")
    return made


def _read_float(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise UnreadableCallError(f"not usable JSON: {text[:40]} is too large a number", "size")
    return number


def _refuse_constant(text: str) -> float:
    raise UnreadableCallError(f"not JSON: {text} is no number of JSON", "json")


def _check_depth(value: Any) -> None:
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [
            inner
            for outer in level
            for inner in (outer.values() if type(outer) is dict else outer if type(outer) is list else ())
            if type(inner) is dict or type(inner) is list
        ]
        if not level:
            return
    raise UnreadableCallError(f"not usable JSON: nested more than {MAX_DEPTH} deep", "size")


_DECODER = json.JSONDecoder(object_pairs_hook=_read_object, parse_float=_read_float, parse_constant=_refuse_constant)

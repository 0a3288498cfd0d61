"""`<function=NAME>` with `<parameter=KEY>` inside <-> a tool call, as Qwen3-Coder writes it.

One line break on each side of a value belongs to the format; all other white space is the value's. A value is text
where the tool's schema says string (or says nothing), and JSON elsewhere; true, false and null may be written as in
Python, as the family's own template does.
"""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from components.rollout.call_json import read_json
from components.rollout.call_text import UnreadableCallError, skip_blank
from components.types import ToolCall

Schemas = Mapping[str, Mapping[str, Any]]
"""Tool name -> property name -> JSON Schema."""

_FUNCTION = re.compile(r"[\s\ufeff]*<function=([^>\s]+)>")
_FUNCTION_END = re.compile(r"\s*</function>")
_PARAMETER = re.compile(r"\s*<parameter=([^>\s]+)>(\r?\n)?")
_FOLLOWED = r"</parameter>(?=\s*(?:<parameter=|</function>))"
_PARAMETER_END = re.compile(rf"\n?{_FOLLOWED}")
_PARAMETER_END_CRLF = re.compile(rf"(?:\r\n)?{_FOLLOWED}")
_WORDS = {"True": True, "False": False, "None": None}


def write_xml_call(call: ToolCall) -> str:
    """The function with its parameters, one after the other."""
    parameters = (f"<parameter={name}>\n{_written(value)}\n</parameter>\n" for name, value in call.arguments.items())
    return f"<function={call.name}>\n{''.join(parameters)}</function>"


def read_xml_call(text: str, at: int, schemas: Schemas) -> tuple[ToolCall, int]:
    """The call at a place, and the place where its function ends. A parameter ends where the next one, or the
    function's end, follows. Raises UnreadableCallError."""
    function = _FUNCTION.match(text, at)
    if function is None:
        cut = skip_blank(text, at) == len(text)
        raise UnreadableCallError("<function=NAME> must come first", "cut" if cut else "form")
    name = function.group(1)
    properties = schemas.get(name, {})
    arguments: dict[str, Any] = {}
    position = function.end()
    for key, value, position in _parameters(text, function.end()):  # noqa: B007 - where the last one ends
        if key in arguments:
            raise UnreadableCallError(f"the parameter {key[:100]} stands twice", "arguments")
        arguments[key] = _value(value, properties.get(key, {}))
    closing = _FUNCTION_END.match(text, position)
    if closing is None:
        raise UnreadableCallError("</function> is missing", "cut" if "</function>" not in text[position:] else "form")
    return ToolCall(name, arguments), closing.end()


def _parameters(text: str, position: int) -> Iterator[tuple[str, str, int]]:
    """Name, text and end of each parameter from a place on."""
    while (start := _PARAMETER.match(text, position)) is not None:
        ending = _PARAMETER_END_CRLF if start.group(2) == "\r\n" else _PARAMETER_END
        end = ending.search(text, start.end())
        if end is None:
            raise UnreadableCallError(f"</parameter> is missing after {start.group(1)[:100]}", "cut")
        yield start.group(1), text[start.end() : end.start()], end.end()
        position = end.end()


def _value(text: str, schema: Mapping[str, Any]) -> Any:
    types = _types(schema)
    if not types or "string" in types:
        return text
    if text.strip() in _WORDS:
        return _WORDS[text.strip()]
    try:
        value, end = read_json(text, skip_blank(text, 0))
    except UnreadableCallError:
        # The tool's own argument check says what is wrong with it.
        return text
    return value if skip_blank(text, end) == len(text) else text


def _types(schema: Mapping[str, Any]) -> set[str]:
    """The types that a schema allows; none where it does not say."""
    said = schema.get("type")
    types = {said} if isinstance(said, str) else {each for each in said or () if isinstance(each, str)}
    for choice in ("anyOf", "oneOf"):
        for option in schema.get(choice) or ():
            types |= _types(option) if isinstance(option, Mapping) else set()
    return types


def _written(value: Any) -> str:
    if isinstance(value, Mapping | list | tuple):
        return json.dumps(value, ensure_ascii=False)
    return str(value)

"""The text that a model wrote -> tool calls, and back. One `CallFormat` per way of writing them.

Only the wrapper of the chosen format makes a call: JSON in an answer is an answer. What stands in a wrapper and cannot
be understood is a MalformedCall with its reason. No input raises, and time is linear in the text's length: after
MAX_CALLS calls or MAX_MALFORMED malformed ones, the rest of a message is one malformed call.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from components.environments.tools import Tool
from components.types import MalformedCall, ToolCall

MAX_CALLS = 64
MAX_MALFORMED = 8
_SPACE = re.compile(r"\s*")
_DECODER = json.JSONDecoder()


@dataclass(frozen=True, slots=True)
class ParsedText:
    """`content` is what stands outside of the calls; with no call in it, the text unchanged."""

    content: str
    calls: tuple[ToolCall, ...] = ()
    malformed: tuple[MalformedCall, ...] = ()


@runtime_checkable
class CallFormat(Protocol):
    """One way of writing tool calls into text."""

    def instructions(self, tools: Sequence[Tool]) -> str:
        """What the system message says about the tools and about how to call them."""
        ...

    def render(self, call: ToolCall) -> str:
        """A call as the model is to write it."""
        ...

    def parse(self, text: str, tools: Sequence[Tool]) -> ParsedText:
        """The calls in a text."""
        ...


@dataclass(frozen=True, slots=True)
class HermesCalls:
    """`<tool_call>` around a JSON object with name and arguments, as Hermes and Qwen models write it.

    Arguments may be an object, a JSON text of an object, "", null or missing (no arguments); `parameters` is read as
    `arguments`. With `bare_object`, a message that is exactly one such object and nothing else is a call, too: small
    Qwen models write that.
    """

    bare_object: bool = False

    def instructions(self, tools: Sequence[Tool]) -> str:
        """The wording that Hermes and Qwen models are trained with."""
        listed = "\n".join(json.dumps(tool.definition, ensure_ascii=False) for tool in tools)
        return (
            "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
            "You are provided with function signatures within <tools></tools> XML tags:\n"
            f"<tools>\n{listed}\n</tools>\n\n"
            "For each function call, return a json object with function name and arguments within "
            "<tool_call></tool_call> XML tags:\n"
            '<tool_call>\n{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call>'
        )

    def render(self, call: ToolCall) -> str:
        """The call in its tags, arguments as an object."""
        body = json.dumps({"name": call.name, "arguments": dict(call.arguments)}, ensure_ascii=False)
        return f"<tool_call>\n{body}\n</tool_call>"

    def parse(self, text: str, tools: Sequence[Tool]) -> ParsedText:
        """The calls in a text. The end of the JSON value decides where a call ends, not the text of the tag."""
        if self.bare_object and text.strip().startswith("{"):
            bare = _bare_call(text.strip())
            if bare is not None:
                return ParsedText("", (bare,))
        return _parse_wrapped(text, "<tool_call>", "</tool_call>", _read_json_call)


@dataclass(frozen=True, slots=True)
class XmlCalls:
    """`<function=NAME>` with `<parameter=KEY>` inside of `<tool_call>`, as Qwen3-Coder writes it.

    One newline on each side of a value belongs to the format; all other white space is the value's. A value is text
    where the tool's schema says string (or says nothing), and JSON elsewhere.
    """

    def instructions(self, tools: Sequence[Tool]) -> str:
        """The tool list as JSON lines, and the form of a call."""
        listed = "\n".join(json.dumps(tool.definition, ensure_ascii=False) for tool in tools)
        return (
            f"# Tools\n\nYou can call these functions:\n\n<tools>\n{listed}\n</tools>\n\nA call is written so:\n"
            "<tool_call>\n<function=NAME>\n<parameter=KEY>\nvalue\n</parameter>\n</function>\n</tool_call>"
        )

    def render(self, call: ToolCall) -> str:
        """The call in its tags, one parameter after the other."""
        parameters = "".join(
            f"<parameter={name}>\n{value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)}"
            "\n</parameter>\n"
            for name, value in call.arguments.items()
        )
        return f"<tool_call>\n<function={call.name}>\n{parameters}</function>\n</tool_call>"

    def parse(self, text: str, tools: Sequence[Tool]) -> ParsedText:
        """The calls in a text. A parameter ends where the next one or the function's end follows."""
        schemas = {tool.name: tool.parameters.get("properties", {}) for tool in tools}
        return _parse_wrapped(text, "<tool_call>", "</tool_call>", lambda body, at: _read_xml_call(body, at, schemas))


@dataclass(frozen=True, slots=True)
class TaggedCalls:
    """`opens` text `closes`: the single argument of the only tool, with no JSON around it. For small models."""

    opens: str
    closes: str

    def instructions(self, tools: Sequence[Tool]) -> str:
        """What the tools do; the form is shown by worked examples."""
        return "\n".join(f"{self.opens}...{self.closes} {tool.description}" for tool in tools)

    def render(self, call: ToolCall) -> str:
        """The text of the first argument in its tags."""
        return f"{self.opens}{next(iter(call.arguments.values()), '')}{self.closes}"

    def parse(self, text: str, tools: Sequence[Tool]) -> ParsedText:
        """The calls in a text; the closing tag may not be left out."""
        if self.opens not in text:
            return ParsedText(text)
        if len(tools) != 1 or tools[0].text_argument is None:
            reason = "there is no tool to call" if not tools else "it does not say which tool to call"
            return ParsedText(text, malformed=(MalformedCall(text, reason),))
        name, argument = tools[0].name, tools[0].text_argument

        def read(body: str, at: int) -> tuple[ToolCall, int]:
            end = body.find(self.closes, at)
            if end < 0:
                raise _UnreadableCallError(f"{self.closes} is missing")
            return ToolCall(name, {argument: body[at:end].strip()}), end

        return _parse_wrapped(text, self.opens, self.closes, read)


HERMES = HermesCalls()
HERMES_OR_BARE = HermesCalls(bare_object=True)
QWEN_XML = XmlCalls()


class _UnreadableCallError(ValueError):
    """Why the text of a call is no call; becomes MalformedCall.reason."""


def _parse_wrapped(text: str, opens: str, closes: str, read: Callable[[str, int], tuple[ToolCall, int]]) -> ParsedText:
    """Walk over a text's wrappers. `read(text, start)` gives a call and the place where it ended."""
    calls: list[ToolCall] = []
    malformed: list[MalformedCall] = []
    outside: list[str] = []
    position = 0
    while len(calls) < MAX_CALLS and len(malformed) < MAX_MALFORMED:
        start = text.find(opens, position)
        if start < 0:
            break
        outside.append(text[position:start])
        try:
            call, end = read(text, start + len(opens))
            position = _after_closing(text, end, closes)
            calls.append(call)
        except _UnreadableCallError as error:
            end = text.find(closes, start)
            position = len(text) if end < 0 else end + len(closes)
            malformed.append(MalformedCall(text[start:position], str(error)))
    if not outside:
        return ParsedText(text)
    if opens in text[position:]:
        malformed.append(
            MalformedCall(text[position:], f"only {MAX_CALLS} calls, or {MAX_MALFORMED} malformed ones, are read")
        )
        position = len(text)
    outside.append(text[position:])
    return ParsedText("".join(outside).strip(), tuple(calls), tuple(malformed))


def _after_closing(text: str, end: int, closes: str) -> int:
    """The place behind the closing tag. It may be missing where the text ends; anything else there is a fault."""
    end = _skip_space(text, end)
    if text.startswith(closes, end):
        return end + len(closes)
    if end == len(text):
        return end
    raise _UnreadableCallError(f"{closes} must follow the call, not {text[end : end + 20]!r}")


def _read_json_call(text: str, at: int) -> tuple[ToolCall, int]:
    try:
        value, end = _DECODER.raw_decode(text, _skip_space(text, at))
    except json.JSONDecodeError as error:
        raise _UnreadableCallError(f"not JSON: {error.msg} at character {error.pos - at}") from None
    except (ValueError, RecursionError) as error:
        raise _UnreadableCallError(f"not usable JSON: {error}") from None
    return _call_of(value), end


def _call_of(value: Any) -> ToolCall:
    if not isinstance(value, dict):
        raise _UnreadableCallError("a call must be a JSON object with name and arguments")
    name = value.get("name")
    if not isinstance(name, str) or not name:
        raise _UnreadableCallError('"name" must be the name of a tool')
    key = next((key for key in ("arguments", "parameters") if key in value), None)
    if key is None:
        stray = sorted(value.keys() - {"name", "id", "type"})
        if stray:
            raise _UnreadableCallError(f'{", ".join(stray)} must stand inside of "arguments"')
        return ToolCall(name, {})
    return ToolCall(name, _arguments_of(value[key], key))


def _arguments_of(value: Any, key: str) -> dict[str, Any]:
    if value is None or (isinstance(value, str) and not value.strip()):
        return {}
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            raise _UnreadableCallError(f'"{key}" is a text that is not JSON') from None
    if not isinstance(value, dict):
        raise _UnreadableCallError(f'"{key}" must be a JSON object')
    return value


def _bare_call(text: str) -> ToolCall | None:
    try:
        call, end = _read_json_call(text, 0)
    except _UnreadableCallError:
        return None
    return call if end == len(text) else None


_FUNCTION = re.compile(r"\s*<function=([^>\s]+)>")
_PARAMETER = re.compile(r"\s*<parameter=([^>\s]+)>\n?")
_PARAMETER_END = re.compile(r"\n?</parameter>(?=\s*(?:<parameter=|</function>))")
_FUNCTION_END = re.compile(r"\s*</function>")


def _read_xml_call(text: str, at: int, schemas: Mapping[str, Mapping[str, Any]]) -> tuple[ToolCall, int]:
    function = _FUNCTION.match(text, at)
    if function is None:
        raise _UnreadableCallError("<function=NAME> must come first")
    name = function.group(1)
    properties = schemas.get(name, {})
    arguments: dict[str, Any] = {}
    position = function.end()
    for key, value, end in _xml_parameters(text, position):
        arguments[key] = _xml_value(value, properties.get(key, {}))
        position = end
    closing = _FUNCTION_END.match(text, position)
    if closing is None:
        raise _UnreadableCallError("</function> is missing")
    return ToolCall(name, arguments), closing.end()


def _xml_parameters(text: str, position: int) -> Iterator[tuple[str, str, int]]:
    while (start := _PARAMETER.match(text, position)) is not None:
        end = _PARAMETER_END.search(text, start.end())
        if end is None:
            raise _UnreadableCallError(f"</parameter> is missing after {start.group(1)}")
        yield start.group(1), text[start.end() : end.start()], end.end()
        position = end.end()


def _xml_value(text: str, schema: Mapping[str, Any]) -> Any:
    if schema.get("type", "string") == "string":
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        # The tool's own argument check says what is wrong with it.
        return text


def _skip_space(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    return match.end() if match else at

"""The text that a model wrote -> tool calls, and back. One `CallFormat` per way of writing them.

Only the wrapper of the chosen format makes a call: JSON in an answer is an answer. What stands in a wrapper and cannot
be understood is a MalformedCall with its reason. No input raises, and time is linear in the text's length.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from components.environments.tools import Tool
from components.rollout import call_json, call_xml, tool_lists
from components.rollout.call_text import ParsedText, UnreadableCallError, parse_wrapped
from components.rollout.pieces import CALL, END_CALL, Pieces
from components.types import MalformedCall, ToolCall


@runtime_checkable
class CallFormat(Protocol):
    """One way of writing tool calls into text.

    `before` stands between a text and the calls after it, `between` between two calls; `strips` says that a text before
    a call loses the white space around it. `opens` is what no text outside of a call may hold; it is empty where a call
    has no wrapper, and then a message is either text or calls.
    """

    @property
    def before(self) -> str:
        """What stands between a text and the first call after it."""
        ...

    @property
    def between(self) -> str:
        """What stands between two calls."""
        ...

    @property
    def strips(self) -> bool:
        """Whether a text before a call is stripped."""
        ...

    @property
    def opens(self) -> str:
        """What opens a call; empty where nothing does."""
        ...

    def instructions(self, tools: Sequence[Tool]) -> Pieces:
        """What the prompt says about the tools and about how to call them."""
        ...

    def pieces(self, call: ToolCall) -> Pieces:
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
    before: str = "\n"
    between: str = "\n"
    strips: bool = False
    opens: str = CALL.text

    def instructions(self, tools: Sequence[Tool]) -> Pieces:
        """The wording that Hermes and Qwen models are trained with."""
        return tool_lists.hermes(tools)

    def pieces(self, call: ToolCall) -> Pieces:
        """The call in its tags, arguments as an object."""
        body = json.dumps({"name": call.name, "arguments": dict(call.arguments)}, ensure_ascii=False)
        return (CALL, f"\n{body}\n", END_CALL)

    def parse(self, text: str, tools: Sequence[Tool]) -> ParsedText:
        """The calls in a text. The end of the JSON value decides where a call ends, not the text of the tag."""
        if self.bare_object:
            bare = call_json.parse_bare(text, [tool.name for tool in tools])
            if bare is not None:
                return bare
        return parse_wrapped(text, CALL.text, END_CALL.text, call_json.read_json_call)


@dataclass(frozen=True, slots=True)
class XmlCalls:
    """`<function=NAME>` with `<parameter=KEY>` inside of `<tool_call>`, as Qwen3-Coder writes it; see call_xml.py."""

    before: str = "\n\n"
    between: str = "\n"
    strips: bool = True
    opens: str = CALL.text

    def instructions(self, tools: Sequence[Tool]) -> Pieces:
        """The tool list in tags, and the form of a call, in the wording of the model's own template."""
        return tool_lists.qwen_xml(tools)

    def pieces(self, call: ToolCall) -> Pieces:
        """The call in its tags, one parameter after the other."""
        return (CALL, f"\n{call_xml.write_xml_call(call)}\n", END_CALL)

    def parse(self, text: str, tools: Sequence[Tool]) -> ParsedText:
        """The calls in a text."""
        schemas: dict[str, Mapping[str, Any]] = {tool.name: tool.parameters.get("properties", {}) for tool in tools}
        return parse_wrapped(text, CALL.text, END_CALL.text, lambda body, at: call_xml.read_xml_call(body, at, schemas))


@dataclass(frozen=True, slots=True)
class LlamaCalls:
    """A message that is a JSON object with `name` and `parameters`, with nothing around it, as Llama 3 models write it.

    The family's own template knows one call per message. Here several objects with `;` between them are several calls,
    as its models write them now and then; all of them run. What follows `<|python_tag|>` is a call or malformed.
    """

    before: str = "\n"
    between: str = "; "
    strips: bool = True
    opens: str = ""
    tag: str = "<|python_tag|>"

    def instructions(self, tools: Sequence[Tool]) -> Pieces:
        """The wording of the family's own template, which puts it into the first message of the user."""
        return tool_lists.llama(tools)

    def pieces(self, call: ToolCall) -> Pieces:
        """The object with `name` and `parameters`."""
        return (json.dumps({"name": call.name, "parameters": dict(call.arguments)}, ensure_ascii=False),)

    def parse(self, text: str, tools: Sequence[Tool]) -> ParsedText:
        """The calls of a message that is nothing else, or its text."""
        names = [tool.name for tool in tools]
        before, tag, after = text.partition(self.tag)
        if not tag:
            return call_json.parse_bare(text, names) or ParsedText(text)
        parsed = call_json.parse_bare(after, names)
        if parsed is None:
            reason = f"{self.tag} must be followed by one JSON object with name and parameters"
            return ParsedText(before.strip(), malformed=(MalformedCall(tag + after, reason),))
        return ParsedText(before.strip(), parsed.calls, parsed.malformed)


@dataclass(frozen=True, slots=True)
class TaggedCalls:
    """`opens` text `closes`: the single argument of the only tool, with no JSON around it. For small models."""

    opens: str
    closes: str
    before: str = ""
    between: str = ""
    strips: bool = False

    def instructions(self, tools: Sequence[Tool]) -> Pieces:
        """What the tools do; the form is shown by worked examples."""
        return ("\n".join(f"{self.opens}...{self.closes} {tool.description}" for tool in tools),)

    def pieces(self, call: ToolCall) -> Pieces:
        """The text of the first argument in its tags."""
        return (f"{self.opens}{next(iter(call.arguments.values()), '')}{self.closes}",)

    def parse(self, text: str, tools: Sequence[Tool]) -> ParsedText:
        """The calls in a text; the closing tag may not be left out."""
        if self.opens not in text:
            return ParsedText(text)
        if len(tools) != 1 or tools[0].text_argument is None:
            reason = "there is no tool to call" if not tools else "it does not say which tool to call"
            return ParsedText(text, malformed=(MalformedCall(text, reason, "name"),))
        name, argument = tools[0].name, tools[0].text_argument

        def read(body: str, at: int) -> tuple[ToolCall, int]:
            end = body.find(self.closes, at)
            if end < 0:
                raise UnreadableCallError(f"{self.closes} is missing", "cut")
            return ToolCall(name, {argument: body[at:end].strip()}), end

        return parse_wrapped(text, self.opens, self.closes, read)


HERMES = HermesCalls()
HERMES_OR_BARE = HermesCalls(bare_object=True)
QWEN_XML = XmlCalls()
LLAMA_JSON = LlamaCalls()

"""What an environment handed over -> the same, or an EnvironmentFailedError that says what is wrong with it.

Everything behind this point may trust it: messages are Messages, texts are texts that UTF-8 can hold, what becomes JSON
can, and all of it together is not longer than the recipe allows.
"""

import json
from collections.abc import Mapping, Sequence

import numpy as np

from components.environments.environment import NO_TOOL_USE, Observation, ToolUse
from components.environments.sizes import characters_in, encodable, short_repr
from components.environments.tools import Tool, fault_of_tools
from components.errors import EnvironmentFailedError
from components.types import CallRecord, Message, Role, ToolCall

MAX_MESSAGES = 10_000
"""In one observation."""
MAX_JSON = 200_000
"""Characters of all tool definitions together, and of the calls in one message."""


def checked_observation(value: object, limit: int) -> Observation:
    """The observation, if it is one through and through and has at most `limit` characters."""
    if not isinstance(value, Observation):
        raise EnvironmentFailedError(f"the environment returned {type(value).__name__}, not an Observation")
    if not isinstance(value.messages, tuple | list):
        raise _wrong("messages", "must be a tuple of Message", value.messages)
    if len(value.messages) > MAX_MESSAGES:
        raise EnvironmentFailedError(f"an observation may have {MAX_MESSAGES} messages, not {len(value.messages)}")
    if not isinstance(value.done, bool | np.bool_):
        raise _wrong("done", "must be True or False", value.done)
    _check_tool_use(value.tool_use)
    room = limit
    for number, message in enumerate(value.messages):
        room -= _checked_size(message, f"messages[{number}]", room, limit)
    return value


def checked_tools(value: object) -> Sequence[Tool]:
    """The tools, if their definitions can be written as JSON of at most MAX_JSON characters."""
    if fault := fault_of_tools(value):
        raise EnvironmentFailedError(fault)
    assert isinstance(value, Sequence), "what is at fault was refused"
    if characters_of_tools(value, MAX_JSON + 1) > MAX_JSON:
        names = short_repr([each.name for each in value])
        raise EnvironmentFailedError(f"the definitions of the tools {names} have more than {MAX_JSON} characters")
    for each in value:
        _check_json(each.definition, f"the definition of tool {short_repr(each.name)}")
    return value


def characters_of_tools(tools: Sequence[Tool], enough: int) -> int:
    """About the length of the definitions; counting stops at `enough`."""
    return characters_in([(each.name, each.description, each.parameters) for each in tools], enough) if tools else 0


def characters_of(messages: Sequence[Message]) -> int:
    """The length of the messages' texts, without what a renderer puts around them."""
    return sum(len(message.content) for message in messages)


def _checked_size(message: object, where: str, room: int, limit: int) -> int:
    """The characters of a message that is one. `room` is what the limit still leaves."""
    if type(message) is not Message:
        raise _wrong(where, "must be a Message", message)
    if type(message.role) is not Role:
        raise _wrong(f"{where}.role", f"must be one of {', '.join(Role.__members__)} of Role", message.role)
    size = _checked_text(message.content, f"{where}.content")
    if message.name is not None:
        size += _checked_text(message.name, f"{where}.name")
    if message.tool_calls or message.malformed_calls:
        size += _checked_calls(message, where)
    if size > room:
        raise EnvironmentFailedError(
            f"the observation has {limit - room + size} characters or more, over its limit of {limit} "
            "(max_observation_characters)"
        )
    if not message.content.isascii() or message.name is not None:
        _check_encodable(message, where)
    return size


def _checked_text(value: object, where: str) -> int:
    if not isinstance(value, str):
        raise _wrong(where, "must be text", value)
    return len(value)


def _check_encodable(message: Message, where: str) -> None:
    for text in (message.content, message.name or ""):
        if text != encodable(text):
            raise _wrong(where, "holds a lone surrogate, which is no character and cannot be encoded", text)


def _checked_calls(message: Message, where: str) -> int:
    """The characters of the calls in a worked example."""
    calls: object = message.tool_calls
    if not isinstance(calls, tuple | list):
        raise _wrong(f"{where}.tool_calls", "must be a tuple of ToolCall", calls)
    if not isinstance(message.malformed_calls, tuple | list):
        raise _wrong(f"{where}.malformed_calls", "must be a tuple of MalformedCall", message.malformed_calls)
    for call in calls:
        if type(call) is not ToolCall or not isinstance(call.name, str) or not isinstance(call.arguments, Mapping):
            raise _wrong(f"{where}.tool_calls", "must be ToolCalls with a name and arguments", call)
    parts = [(call.name, call.arguments) for call in message.tool_calls]
    size = characters_in(parts, MAX_JSON + 1)
    if size > MAX_JSON:
        raise EnvironmentFailedError(f"an observation's {where}.tool_calls have more than {MAX_JSON} characters")
    _check_json([(name, dict(arguments)) for name, arguments in parts], f"{where}.tool_calls")
    return size


def _check_json(value: object, where: str) -> None:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise EnvironmentFailedError(f"{where} cannot be written as JSON: {error}") from error


def _check_tool_use(use: object) -> None:
    if use is NO_TOOL_USE:
        return
    if type(use) is not ToolUse:
        raise _wrong("tool_use", "must be a ToolUse", use)
    numbers = (use.calls, use.errors, use.malformed, use.seconds)
    if not all(isinstance(number, int | float) for number in numbers):
        raise _wrong("tool_use", "must hold numbers", numbers)
    records: object = use.records
    if not isinstance(records, tuple) or not all(type(each) is CallRecord for each in records):
        raise _wrong("tool_use.records", "must be a tuple of CallRecord", records)


def _wrong(where: str, rule: str, value: object) -> EnvironmentFailedError:
    return EnvironmentFailedError(f"an observation's {where} {rule}, not {type(value).__name__} {short_repr(value)}")

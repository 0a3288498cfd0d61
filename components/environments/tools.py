"""Typed Python functions -> tools that a policy can call and can never break.

A call of a tool always ends in a text. Bad arguments, an exception of the tool and a time-out become a short text that
the policy can learn from, flagged as an error; only a RolloutError (the tool's infrastructure failed) goes through.
"""

import asyncio
import contextvars
import dataclasses
import inspect
import json
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from components.environments import json_schema
from components.errors import DataError, Problem, RolloutError

EMPTY_RESULT = "(empty)"


class ToolError(Exception):
    """What a tool raises to refuse a call. The policy reads the error's text, without the name of its class."""


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What the policy reads. `is_error` is true when the call was refused, raised or timed out."""

    text: str
    is_error: bool = False


@dataclass(frozen=True, slots=True)
class Tool:
    """A function with a name, a description and a JSON Schema of its arguments.

    `timeout` is in seconds. `max_characters` limits the text of a result; what is over it is cut, with a note.
    """

    name: str
    description: str
    parameters: Mapping[str, Any]
    function: Callable[..., Any]
    timeout: float = 10.0
    max_characters: int = 8000

    @property
    def definition(self) -> dict[str, Any]:
        """The tool as tool lists of chat templates write it."""
        function = {"name": self.name, "description": self.description, "parameters": dict(self.parameters)}
        return {"type": "function", "function": function}

    @property
    def text_argument(self) -> str | None:
        """The name of the single required argument when it is a string: what `<tool>text</tool>` fills in."""
        required = list(self.parameters.get("required", ()))
        if len(required) != 1 or self.parameters["properties"][required[0]].get("type") != "string":
            return None
        return required[0]

    async def call(self, arguments: Mapping[str, Any]) -> ToolResult:
        """Check the arguments, run the function, and turn whatever comes of it into text.

        A synchronous function runs in a thread of its own; after a time-out that thread is left to end by itself.
        """
        faults = json_schema.problems(arguments, self.parameters)
        if faults:
            return ToolResult(f"error: {self.name}: {'; '.join(faults)}", is_error=True)
        limit = asyncio.timeout(self.timeout)
        try:
            async with limit:
                value = await call_function(self.function, arguments)
            text = result_to_text(value)
        except RolloutError:
            raise
        except Exception as error:  # The boundary to code of others: its faults are the policy's to read.
            if limit.expired():
                return ToolResult(f"error: {self.name} took longer than {self.timeout:g} seconds", is_error=True)
            name = "" if isinstance(error, ToolError) else f"{type(error).__name__}: "
            return ToolResult(_cut(f"error: {name}{error}", 500), is_error=True)
        return ToolResult(_cut(text, self.max_characters))


def tool(
    function: Callable[..., Any], *, name: str | None = None, timeout: float = 10.0, max_characters: int = 8000
) -> Tool:
    """Make a tool of a function, or of a bound method, with type annotations. Usable as a decorator.

    Its name is the function's, its description the docstring up to "Args:", its schema the signature's.
    """
    description = (inspect.getdoc(function) or "").split("\nArgs:")[0].strip()
    return Tool(
        name=name or function.__name__,
        description=" ".join(description.split()),
        parameters=json_schema.from_signature(function),
        function=function,
        timeout=timeout,
        max_characters=max_characters,
    )


def tool_from_definition(definition: Mapping[str, Any], function: Callable[..., Any], *, where: str = "tool") -> Tool:
    """Make a tool of a definition written elsewhere, with or without the `{"type": "function"}` wrapper.

    Raises DataError that names the field which is wrong.
    """
    inner = definition.get("function", definition)
    if not isinstance(inner, Mapping) or not isinstance(inner.get("name"), str) or not inner["name"]:
        raise DataError(Problem(where=f"{where}.name", value=definition, message="a tool needs a name"))
    parameters = json_schema.normalised(inner.get("parameters", {"type": "object"}), f"{where}.parameters")
    if parameters.get("type", "object") != "object":
        raise DataError(Problem(f"{where}.parameters.type", parameters["type"], "arguments must be an object"))
    parameters = {"type": "object", "properties": {}, "required": [], **parameters}
    return Tool(inner["name"], str(inner.get("description", "")), parameters, function)


def result_to_text(value: Any) -> str:
    """One stable text for any value: text as it is, bytes decoded, everything else as JSON with real characters.

    None and the empty text become EMPTY_RESULT; a float that is no number is NaN or Infinity.
    """
    if isinstance(value, (bytes, bytearray)):
        value = bytes(value).decode("utf-8", errors="replace")
    if value is None or value == "":
        return EMPTY_RESULT
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False, default=_to_json)


def _to_json(value: Any) -> Any:
    if isinstance(value, (bytes, bytearray)):
        return bytes(value).decode("utf-8", errors="replace")
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    if isinstance(value, (set, frozenset)):
        return sorted(value, key=str)
    if isinstance(value, (Mapping, Sequence)):
        return dict(value) if isinstance(value, Mapping) else list(value)
    return str(value)


async def call_function(function: Callable[..., Any], arguments: Mapping[str, Any]) -> Any:
    """Call code of others without blocking the event loop: a coroutine is awaited, anything else gets a thread."""
    if inspect.iscoroutinefunction(function):
        return await function(**arguments)
    return await _in_thread(function, arguments)


def _in_thread(function: Callable[..., Any], arguments: Mapping[str, Any]) -> Awaitable[Any]:
    """Run a blocking function in a daemon thread.

    Not the loop's executor: it has few threads, a tool that hangs would keep one for ever, and Python waits for them
    at exit.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Any] = loop.create_future()
    context = contextvars.copy_context()

    def settle(value: Any, error: BaseException | None) -> None:
        if future.done():
            return
        if error is None:
            future.set_result(value)
        else:
            future.set_exception(error)

    def work() -> None:
        value, error = None, None
        try:
            value = context.run(function, **arguments)
        except Exception as raised:  # Handed to the caller, in the event loop's thread.
            error = raised
        if not loop.is_closed():
            loop.call_soon_threadsafe(settle, value, error)

    threading.Thread(target=work, name=f"call-{function.__name__}", daemon=True).start()
    return future


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[:limit]}\n[cut: {len(text) - limit} more characters]"

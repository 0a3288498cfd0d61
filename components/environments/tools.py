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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, overload
from weakref import WeakKeyDictionary

from components.environments import json_schema
from components.environments.arguments import ArgumentsError, converting
from components.environments.bounded import OverdueError, bounded
from components.environments.gate import Gate, ToolLimits, TransientToolError
from components.environments.sizes import characters_in, cut, encodable, short_repr, shortened
from components.errors import DataError, Problem, RolloutError, ToolFailedError
from components.types import CallOutcome

__all__ = ["Tool", "ToolError", "ToolLimits", "ToolResult", "TransientToolError", "tool", "tool_from_definition"]

EMPTY_RESULT = "(empty)"
_GRACE_SECONDS = 1.0
_MAX_ERROR = 500


class ToolError(Exception):
    """What a tool raises to refuse a call. The policy reads the error's text, without the name of its class."""


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What the policy reads, and how the call ended."""

    text: str
    outcome: CallOutcome = CallOutcome.OK

    @property
    def is_error(self) -> bool:
        """Whether the arguments did not fit, or the call was refused, raised or timed out."""
        return self.outcome is not CallOutcome.OK


@dataclass(frozen=True, slots=True)
class Tool:
    """A function with a name, a description and a JSON Schema of its arguments.

    `timeout` is in seconds. `max_characters` limits the text of a result; what is over it is cut, with a note. `gate`
    is what its calls of all episodes pass through, where it has limits.
    """

    name: str
    description: str
    parameters: Mapping[str, Any]
    function: Callable[..., Any]
    timeout: float = 10.0
    max_characters: int = 8000
    gate: Gate | None = field(default=None, compare=False, repr=False)

    @property
    def definition(self) -> dict[str, Any]:
        """The tool as tool lists of chat templates write it."""
        function = {"name": self.name, "description": self.description, "parameters": dict(self.parameters)}
        return {"type": "function", "function": function}

    @property
    def text_argument(self) -> str | None:
        """The name of the single required argument when it is a string: what `<tool>text</tool>` fills in."""
        required = list(self.parameters.get("required", ()))
        if len(required) != 1:
            return None
        schema = self.parameters.get("properties", {}).get(required[0], {})
        return required[0] if schema.get("type") == "string" else None

    async def call(self, arguments: Mapping[str, Any]) -> ToolResult:
        """Check the arguments, run the function, and turn whatever comes of it into text.

        A synchronous function runs in a thread of its own; after a time-out that thread is left to end by itself.
        A coroutine that does not end when it is cancelled is ended by force.
        """
        faults = json_schema.problems(arguments, self.parameters)
        if faults:
            text = encodable(f"error: {self.name}: {'; '.join(faults)}")
            return ToolResult(cut(text, _MAX_ERROR), CallOutcome.ARGUMENTS)
        try:
            value = await (self.gate.call(lambda: self._run(arguments)) if self.gate else self._run(arguments))
            return ToolResult(encodable(await _bounded_text(value, self.max_characters)))
        except RolloutError:
            raise
        except TransientToolError as error:
            raise ToolFailedError(f"tool {self.name} failed: {words_of(error)}") from error
        except OverdueError:
            return ToolResult(f"error: {self.name} took longer than {self.timeout:g} seconds", CallOutcome.TIMEOUT)
        except ArgumentsError as error:
            return ToolResult(cut(f"error: {self.name}: {words_of(error)}", _MAX_ERROR), CallOutcome.ARGUMENTS)
        except ToolError as error:
            return ToolResult(cut(f"error: {words_of(error)}", _MAX_ERROR), CallOutcome.REFUSED)
        except Exception as error:  # The boundary to code of others: its faults are the policy's to read.
            return ToolResult(cut(f"error: {error_text(error)}", _MAX_ERROR), CallOutcome.RAISED)

    async def _run(self, arguments: Mapping[str, Any]) -> Any:
        return await bounded(call_function(self.function, arguments), self.timeout, grace=_GRACE_SECONDS)


@overload
def tool(
    function: Callable[..., Any],
    *,
    name: str | None = None,
    timeout: float = 10.0,
    max_characters: int = 8000,
    limits: ToolLimits | None = None,
) -> Tool:
    """Make a tool of a function."""
    ...


@overload
def tool(
    *,
    name: str | None = None,
    timeout: float = 10.0,
    max_characters: int = 8000,
    limits: ToolLimits | None = None,
) -> Callable[[Callable[..., Any]], Tool]:
    """A decorator with options."""
    ...


def tool(
    function: Callable[..., Any] | None = None,
    *,
    name: str | None = None,
    timeout: float = 10.0,
    max_characters: int = 8000,
    limits: ToolLimits | None = None,
) -> Tool | Callable[[Callable[..., Any]], Tool]:
    """Make a tool of a function, or of a bound method, with type annotations. A decorator, bare or with options.

    Its name is the function's, its description the docstring up to "Args:", its schema the signature's. An argument
    that is annotated as a dataclass, an Enum or a pydantic model arrives as one.

    `limits` hold over all episodes: for a method, whichever object it is bound to. A function that is defined anew in
    each episode is a new tool each time; make that tool once.
    """
    if function is None:
        return lambda given: tool(given, name=name, timeout=timeout, max_characters=max_characters, limits=limits)
    description = (inspect.getdoc(function) or "").split("\nArgs:")[0].strip()
    called = name or function.__name__
    return Tool(
        name=called,
        description=" ".join(description.split()),
        parameters=json_schema.from_signature(function),
        function=converting(function),
        timeout=timeout,
        max_characters=max_characters,
        gate=_gate_of(function, called, limits) if limits and limits != ToolLimits() else None,
    )


_gates: WeakKeyDictionary[Callable[..., Any], dict[tuple[str, ToolLimits], Gate]] = WeakKeyDictionary()


def _gate_of(function: Callable[..., Any], name: str, limits: ToolLimits) -> Gate:
    """One gate for a function, so that a method, which is bound anew for each episode, has one for all of them."""
    known = _gates.setdefault(function.__func__ if inspect.ismethod(function) else function, {})
    return known.setdefault((name, limits), Gate(name, limits))


def fault_of_tools(value: object) -> str | None:
    """Why an environment cannot have `value` as its tools; None where it can."""
    if isinstance(value, tuple | list) and all(isinstance(each, Tool) for each in value):
        return None
    return f"an environment's tools must be a tuple of functions under @tool, not {short_repr(value)}"


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


async def _bounded_text(value: Any, limit: int) -> str:
    """As `result_to_text`, cut; a value that is much longer is cut first, as all of it would take its time."""
    if isinstance(value, str) or characters_in(value, 4 * limit) < 4 * limit:
        return cut(result_to_text(value), limit)
    text = await asyncio.to_thread(lambda: result_to_text(shortened(value, limit)))
    return f"{text[:limit]}\n[cut: the whole result is longer]"


def error_text(error: BaseException) -> str:
    """`KeyError: 'port'`: class and words of somebody else's error, cut and encodable. Never raises."""
    return f"{type(error).__name__}: {words_of(error)}"


def words_of(error: BaseException) -> str:
    """The words of somebody else's error, cut and encodable. Never raises."""
    try:
        words = str(error)
    except Exception as broken:  # The boundary to a __str__ of others.
        words = f"(its text raised {type(broken).__name__})"
    return encodable(cut(words, _MAX_ERROR))


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
    """Call code of others without blocking the event loop: a coroutine is awaited, anything else gets a thread.

    Raises what it raises; a SystemExit, which would end this process, becomes a RuntimeError.
    """
    try:
        if inspect.iscoroutinefunction(function):
            return await function(**arguments)
        return await _in_thread(function, arguments)
    except SystemExit as leaving:
        raise RuntimeError(f"it called sys.exit({leaving.code!r})") from leaving


async def _in_thread(function: Callable[..., Any], arguments: Mapping[str, Any]) -> Any:
    """Run a blocking function in a daemon thread.

    Not the loop's executor: it has few threads, a tool that hangs would keep one for ever, and Python waits for them
    at exit.
    """
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[tuple[Any, BaseException | None]] = loop.create_future()
    context = contextvars.copy_context()

    def settle(value: Any, error: BaseException | None) -> None:
        if not ended.done():
            # An error is handed over as a value: a future refuses to raise a StopIteration.
            ended.set_result((value, error))

    def work() -> None:
        value, error = None, None
        try:
            value = context.run(function, **arguments)
        except (Exception, SystemExit) as raised:  # Handed to the caller, in the event loop's thread.
            error = raised
        if not loop.is_closed():
            loop.call_soon_threadsafe(settle, value, error)

    threading.Thread(target=work, name="call", daemon=True).start()
    value, error = await ended
    if error is not None:
        raise error
    return value

"""Messages in, messages out: what a policy acts in, and a base class that makes writing one short.

An environment is made fresh for every episode, so its constructor must be cheap; `tasks` may read files.
It knows messages only: no tokens, no model, no device.
"""

import asyncio
import difflib
import importlib
import inspect
import time
from abc import ABC, ABCMeta, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, runtime_checkable

from components.environments import json_schema
from components.environments.mcp_servers import McpServer, with_server_tools
from components.environments.rewards import Grade, Reward
from components.environments.sandbox.limits import DEFAULT_ISOLATION, Isolation
from components.environments.sizes import encodable
from components.environments.tools import Tool, ToolResult, call_function, fault_of_tools
from components.errors import ConfigError, DataError, HeadraceError, Problem, RolloutError
from components.telemetry.spans import count
from components.types import CallOutcome, CallRecord, MalformedCall, Message, Role, Task, ToolCall

T = TypeVar("T")

UNKNOWN_TOOL = "(unknown)"
"""The name under which calls of tools that are not there are recorded."""

BUILT_IN = {
    "arithmetic": "components.environments.arithmetic:Arithmetic",
    "gsm8k": "components.environments.gsm8k:Gsm8k",
    "countdown": "components.environments.tasks.countdown:Countdown",
    "frozen_lake": "components.environments.tasks.frozen_lake:FrozenLake",
    "multi_hop": "components.environments.tasks.multi_hop:MultiHop",
    "text_to_sql": "components.environments.tasks.text_to_sql:TextToSql",
    "questions": "components.environments.tasks.questions:Questions",
    "function_calls": "components.environments.tasks.function_calls:FunctionCalls",
    "gymnasium": "components.environments.adapters.gymnasium:GymnasiumEnvironment",
    "verifiers": "components.environments.adapters.verifiers:VerifiersEnvironment",
}


@dataclass(frozen=True, slots=True)
class ToolUse:
    """What the tools did in one step. `errors` are calls whose reply is flagged as an error; `seconds` is wall time.

    `records` says of each call which tool it was, how it ended and how long it took.
    """

    calls: int = 0
    errors: int = 0
    malformed: int = 0
    seconds: float = 0.0
    records: tuple[CallRecord, ...] = ()

    def __add__(self, other: "ToolUse") -> "ToolUse":
        return ToolUse(
            calls=self.calls + other.calls,
            errors=self.errors + other.errors,
            malformed=self.malformed + other.malformed,
            seconds=self.seconds + other.seconds,
            records=self.records + other.records,
        )


NO_TOOL_USE = ToolUse()


@dataclass(frozen=True, slots=True)
class Observation:
    """What the policy reads next. `done` ends the episode. `tool_use` is of this step alone; the episode adds it up.

    `reward` is the part of the episode's reward that the message just answered has earned, for objectives that credit
    turn by turn; `Environment.reward` is the whole, these parts included.
    """

    messages: tuple[Message, ...]
    done: bool = False
    tool_use: ToolUse = NO_TOOL_USE
    reward: float = 0.0


@runtime_checkable
class Environment(Protocol):
    """One episode's world. `reset` is called once, then `step` per assistant message, then `reward`, then `close`.

    `reward` is also asked for an episode that was cut by a limit. Named parts are summed.
    """

    @property
    def tools(self) -> Sequence[Tool]:
        """The tools that the policy may call."""
        ...

    def tasks(self, split: str) -> Iterable[Task]:
        """The problems of a split, "train" or "test": the same ones in the same order every time."""
        ...

    async def reset(self, task: Task) -> Observation:
        """Open the episode: its first messages."""
        ...

    async def step(self, message: Message) -> Observation:
        """Answer one assistant message."""
        ...

    async def reward(self) -> Reward:
        """The episode's reward so far, whole or in named parts, each a number or a `Grade` with its reason."""
        ...

    async def close(self) -> None:
        """Give back what the episode holds."""
        ...


class ToolEnvironment(ABC):
    """A question, some tools, and a final text that is graded.

    A subclass gives `tasks` and `grade`, and, as attributes of the class or set in its constructor, `tools`,
    `system_prompt` and `examples` (messages of worked examples that stand before the question). `answer` is the text
    of the first message without a tool call; it ends the episode. `mcp` are servers whose tools are added in `reset`.
    """

    tools: Sequence[Tool] = ()
    mcp: Sequence[McpServer] = ()
    system_prompt: str | None = None
    examples: Sequence[Message] = ()
    task: Task
    answer: str | None = None

    @abstractmethod
    def tasks(self, split: str) -> Iterable[Task]:
        """The problems of a split, "train" or "test": the same ones in the same order every time."""

    @abstractmethod
    def grade(self, task: Task, answer: str) -> Reward | Awaitable[Reward]:
        """The reward of a final text. Not asked when the policy gave none: that is 0.

        May be a coroutine; a plain function runs in a thread, so that one that hangs fails its own episode only. The
        thread cannot be stopped: what may loop for ever belongs into a process that can be killed,
        `await shared_pool().grade(function, answer)` of grader_pool.py.
        """

    def opening(self, task: Task) -> tuple[Message, ...]:
        """The first messages: system prompt, worked examples, the task's prompt."""
        system = [Message(Role.SYSTEM, self.system_prompt)] if self.system_prompt else []
        return (*system, *self.examples, Message(Role.USER, task.prompt))

    async def reset(self, task: Task) -> Observation:
        """Open the episode."""
        self.task, self.answer = task, None
        if self.mcp:
            self.tools = await with_server_tools(self.tools, self.mcp)
        return Observation(self.opening(task))

    async def step(self, message: Message) -> Observation:
        """Run the message's calls, or take its text as the answer when it has none."""
        if message.tool_calls or message.malformed_calls:
            replies, tool_use = await self.run_calls(message)
            return Observation(tuple(replies), tool_use=tool_use)
        self.answer = message.content
        return Observation((), done=True)

    async def reward(self) -> Reward:
        """The grade of the answer; 0 where the episode was cut before there was one."""
        if self.answer is None:
            return Grade(0.0, "there was no answer")
        graded: Reward = await call_function(self.grade, {"task": self.task, "answer": self.answer})
        return graded

    async def close(self) -> None:  # noqa: B027 - most environments hold nothing
        """Give back what the episode holds: nothing, unless a subclass says so."""

    async def run_calls(self, message: Message) -> tuple[list[Message], ToolUse]:
        """Run all calls of a message at the same time; replies in the order of the calls, malformed ones last.

        Where the infrastructure of one breaks, the others are cancelled, and its RolloutError is raised.
        """
        started = time.perf_counter()
        if len(message.tool_calls) == 1:
            ended = [await self._run_call(message.tool_calls[0])]
        else:
            ended = await _together([self._run_call(call) for call in message.tool_calls])
        # JSON that a policy writes can spell a lone surrogate, in a name, too.
        replies = [
            Message(Role.TOOL, encodable(result.text), name=encodable(call.name))
            for call, (result, _) in zip(message.tool_calls, ended, strict=True)
        ]
        replies += [Message(Role.TOOL, encodable(_refusal(call))) for call in message.malformed_calls]
        return replies, ToolUse(
            calls=len(ended),
            errors=sum(result.is_error for result, _ in ended),
            malformed=len(message.malformed_calls),
            seconds=time.perf_counter() - started,
            records=tuple(record for _, record in ended),
        )

    async def _run_call(self, call: ToolCall) -> tuple[ToolResult, CallRecord]:
        for tool in self.tools:
            if tool.name == call.name:
                return await _recorded(tool, call)
        known = ", ".join(tool.name for tool in self.tools) or "none"
        text = f'error: there is no tool "{call.name}"; tools: {known}'
        # A policy can write any number of names: they are counted as one.
        return ToolResult(text, CallOutcome.UNKNOWN), CallRecord(UNKNOWN_TOOL, CallOutcome.UNKNOWN, 0.0)


async def _recorded(tool: Tool, call: ToolCall) -> tuple[ToolResult, CallRecord]:
    """The call's result, and the record of it; a RolloutError carries the tool's name and the seconds."""
    started = time.perf_counter()
    outcome = CallOutcome.BROKEN
    try:
        result = await tool.call(call.arguments)
        outcome = result.outcome
    except RolloutError as error:
        error.tool, error.seconds = tool.name, time.perf_counter() - started
        raise
    finally:
        count("tool_calls", tool=tool.name, outcome=outcome.value)
    return result, CallRecord(tool.name, outcome, time.perf_counter() - started)


async def _together(calls: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """All of them at the same time; the first error cancels the others, and is raised as itself."""
    try:
        async with asyncio.TaskGroup() as running:
            tasks = [running.create_task(call) for call in calls]
    except BaseExceptionGroup as wrapped:
        raise wrapped.exceptions[0] from None
    return [task.result() for task in tasks]


def load_environment(name: str, *, where: str = "environment") -> type[Any]:
    """The class behind "my_module:MyEnvironment" or behind the short name of a built-in one.

    Raises ConfigError when the module or the class is not there, or when the class lacks a method.
    """
    module_name, _, class_name = BUILT_IN.get(name, name).partition(":")
    if not class_name:
        close = difflib.get_close_matches(name, BUILT_IN, n=1)
        hint = f"did you mean {close[0]}?" if close else f"built in: {', '.join(sorted(BUILT_IN))}"
        raise ConfigError(Problem(where, name, f'is not built in, and not of the form "module:Class"; {hint}'))
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # The boundary to a module of others.
        hint = ""
        if isinstance(error, ModuleNotFoundError) and error.name == module_name.partition(".")[0]:
            hint = "; run from the folder that holds it, or put it on PYTHONPATH"
        message = f"importing {module_name} raised {type(error).__name__}: {error}{hint}"
        raise ConfigError(Problem(where, name, message)) from error
    kind: type | None = vars(module).get(class_name)
    if not inspect.isclass(kind):
        classes = [each for each, value in vars(module).items() if inspect.isclass(value)]
        close = difflib.get_close_matches(class_name, classes, n=1)
        hint = f"; did you mean {close[0]}?" if close else ""
        raise ConfigError(Problem(where, name, f"module {module_name} has no class {class_name}{hint}"))
    missing = [method for method in ("tasks", "reset", "step", "reward", "close") if not _defines(kind, method)]
    if missing:
        raise ConfigError(Problem(where, name, f"the class has no {', '.join(missing)}"))
    if isinstance(kind, ABCMeta) and kind.__abstractmethods__:
        raise ConfigError(Problem(where, name, f"the class must define {', '.join(sorted(kind.__abstractmethods__))}"))
    return kind


def environment_factory(
    name: str,
    options: Mapping[str, Any] | None = None,
    *,
    isolation: Isolation | None = None,
    mcp: Sequence[McpServer] = (),
    where: str = "environment",
) -> Callable[[], Environment]:
    """A function that makes a fresh environment. Options are checked here: one is made, and thrown away, at once.

    An environment that runs code of a model has an argument `isolation`, and is given `isolation` or the default.
    Tools of the servers `mcp` are added to its own when it is reset.

    Raises ConfigError that names every option which is unknown, missing or of the wrong type, an isolation that has no
    effect or that is written as an option, and, as such environments raise it, one that this machine lacks.
    """
    options = dict(options or {})
    kind = load_environment(name, where=where)
    if "isolation" in options:
        raise ConfigError(Problem(f"{where}.options.isolation", options["isolation"], f"write it as {where}.isolation"))
    if runs_code(kind, options):
        options["isolation"] = isolation or DEFAULT_ISOLATION
    elif isolation is not None:
        message = f"has no effect, as {name} runs no code of a model; leave it out"
        raise ConfigError(Problem(f"{where}.isolation", isolation, message))
    try:
        schema = json_schema.from_signature(kind) if _defines(kind, "__init__") else {"properties": {}}
    except TypeError as error:
        raise ConfigError(Problem(where, name, f"options are the constructor's arguments, and {error}")) from error
    faults = [fault.replace("argument", "option") for fault in json_schema.problems(options, schema)]
    if faults:
        raise ConfigError([Problem(f"{where}.options", options, fault) for fault in faults])

    if mcp and not issubclass(kind, ToolEnvironment):
        raise ConfigError(Problem(f"{where}.mcp", name, "only a ToolEnvironment can take tools of a server"))

    def make() -> Environment:
        environment: Environment = kind(**options)
        if isinstance(environment, ToolEnvironment) and mcp:
            environment.mcp = (*environment.mcp, *mcp)
        return environment

    try:
        made = make()
        tools = made.tools if isinstance(made, ToolEnvironment) else ()
    except ConfigError:
        raise
    except Exception as error:  # The boundary to a constructor of others.
        message = f"making it raised {type(error).__name__}: {error}"
        raise ConfigError(Problem(where, f"{name} with options {options}", message)) from error
    if fault := fault_of_tools(tools):
        raise ConfigError(Problem(where, name, fault))
    names = [tool.name for tool in tools]
    if twice := sorted({each for each in names if names.count(each) > 1}):
        message = "two tools have this name, and a call could mean either; give tool(..., name=...) to one of them"
        raise ConfigError([Problem(f"{where}: tools of {name}", each, message) for each in twice])
    return make


def runs_code(kind: type[Any], options: Mapping[str, Any]) -> bool:
    """Whether an environment runs code that a model wrote: whether its constructor has an argument `isolation`.

    One that runs some with certain options only has a class method `runs_code_with(options)` that tells.
    """
    if not _defines(kind, "__init__") or "isolation" not in inspect.signature(kind).parameters:
        return False
    return not _defines(kind, "runs_code_with") or bool(kind.runs_code_with(options))


def tasks_of(environment: Environment, split: str) -> Iterator[Task]:
    """The tasks of a split, one by one. Raises DataError where the environment raises, or gives something else."""
    where = f"{type(environment).__name__}.tasks({split!r})"
    try:
        for number, task in enumerate(environment.tasks(split)):
            if not isinstance(task, Task):
                raise DataError(Problem(f"{where}, item {number}", task, "is no Task; give Task(id, prompt, answer)"))
            if faults := _wrong_types(task, f"{where}, task {number}"):
                raise DataError(faults)
            yield task
    except HeadraceError:
        raise
    except Exception as error:  # The boundary to code of others.
        raise DataError(Problem(where, split, f"raised {type(error).__name__}: {error}")) from error


def _wrong_types(task: Task, where: str) -> list[Problem]:
    """What is no text in a task. Python lets anything stand in a field, and texts are what is rendered and compared."""
    fields = {"id": task.id, "prompt": task.prompt, "answer": "" if task.answer is None else task.answer}
    return [
        Problem(where, value, f"{name} must be text, not {type(value).__name__}")
        for name, value in fields.items()
        if not isinstance(value, str)
    ]


def _defines(kind: type, method: str) -> bool:
    return any(method in vars(base) for base in kind.__mro__ if base is not object)


def _refusal(call: MalformedCall) -> str:
    return f"error: malformed tool call: {call.reason}"

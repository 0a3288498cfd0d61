"""An environment of the verifiers library (0.1) -> one of this library: its rollout runs with the policy as its model.

    environment: {use: verifiers, options: {module: my_environment, arguments: {num_examples: 100}}}

`module` has a function `load_environment`. The library is not a dependency: install it, and the environment, beside
this one. From 0.3 on it drives whole programs through a server of its own, at a level that is not that of messages.
"""

import asyncio
import functools
import importlib
import json
from collections.abc import Iterable, Mapping
from typing import Any

from components.environments.environment import Observation
from components.environments.tools import Tool, tool_from_definition
from components.errors import EnvironmentFailedError
from components.types import Message, Role, Task


@functools.cache
def _loaded(module: str, arguments: str) -> Any:
    # One for all episodes: what belongs to an episode lies in its state.
    return importlib.import_module(module).load_environment(**json.loads(arguments))


class VerifiersEnvironment:
    """One episode is one `rollout` of the other library, which is scored by its own rubric."""

    def __init__(self, module: str, arguments: Mapping[str, Any] | None = None) -> None:
        self._environment = _loaded(module, json.dumps(arguments or {}, sort_keys=True))
        self.tools: tuple[Tool, ...] = ()
        self._questions: asyncio.Queue[Any] = asyncio.Queue()
        self._answers: asyncio.Queue[Message | None] = asyncio.Queue()
        self._rollout: asyncio.Task[Any]
        self._seen = 0

    def tasks(self, split: str) -> Iterable[Task]:
        """The rows of its dataset, or of its evaluation dataset."""
        rows = self._environment.get_dataset() if split == "train" else self._environment.get_eval_dataset()
        for number, row in enumerate(rows):
            prompt = row["prompt"] if isinstance(row["prompt"], str) else _text(row["prompt"][-1]["content"])
            yield Task(f"{split}-{number}", prompt, str(row.get("answer") or "") or None, {"row": dict(row)})

    async def reset(self, task: Task) -> Observation:
        kind = importlib.import_module("verifiers.clients").Client
        # Its other methods, which are abstract, serve none but the one that is replaced.
        client = type("Policy", (kind,), {**dict.fromkeys(kind.__abstractmethods__), "get_response": self._asked})
        self._rollout = asyncio.create_task(self._environment.rollout(task.data["row"], client(None), "policy", {}))
        return await self._next()

    async def step(self, message: Message) -> Observation:
        self._answers.put_nowait(message)
        return await self._next()

    async def reward(self) -> float:
        """What its rubric says; of an episode that was cut, as of a prompt that has become too long."""
        self._answers.put_nowait(None)
        state = await self._rollout
        if state.get("error"):
            raise EnvironmentFailedError(f"verifiers: {state['error']!r}")
        await self._environment.rubric.score_rollout(state)
        return float(state["reward"])

    async def close(self) -> None:
        self._rollout.cancel()
        await asyncio.wait((self._rollout,))

    async def _next(self) -> Observation:
        question = asyncio.create_task(self._questions.get())
        await asyncio.wait((question, self._rollout), return_when="FIRST_COMPLETED")
        if not question.done():
            return Observation((), done=question.cancel())
        messages = question.result()[self._seen :]
        self._seen += len(messages) + 1
        return Observation(tuple(Message(Role(each.role), _text(each.content)) for each in messages))

    async def _asked(self, prompt: Any, *others: Any, tools: Any = None, **keywords: Any) -> Any:
        """What the other library takes for a call of a model."""
        self.tools = tuple(tool_from_definition(each.model_dump(), print) for each in tools or ())
        self._questions.put_nowait(prompt)
        answer = await self._answers.get()
        if answer is None:
            raise importlib.import_module("verifiers.errors").OverlongPromptError("the episode was cut")
        return _response(answer)


def _response(message: Message) -> Any:
    types = importlib.import_module("verifiers.types")
    written = [(str(number), call.name, json.dumps(call.arguments)) for number, call in enumerate(message.tool_calls)]
    calls = [types.ToolCall(id=key, name=name, arguments=arguments) for key, name, arguments in written]
    text = "".join([message.content, *(call.text for call in message.malformed_calls)])
    said = {"content": text, "tool_calls": calls or None, "finish_reason": "stop", "is_truncated": False}
    return types.Response(id="", created=0, model="policy", message=said)


def _text(content: Any) -> str:
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content or ())

"""The smallest things that keep a contract: a scripted policy, an environment that echoes, bytes as tokens."""

import asyncio
from collections.abc import Mapping, Sequence

from components.environments.environment import Observation
from components.environments.tools import Tool
from components.types import Completion, FinishReason, Message, Role, SequenceId, Task


class ByteRenderer:
    """One byte, one token; no template at all."""

    stop_ids: tuple[int, ...] = ()
    stop_strings: tuple[str, ...] = ()

    def start(self, messages: Sequence[Message], tools: Sequence[Tool]) -> list[int]:
        return [byte for message in messages for byte in message.content.encode()]

    def extend(self, completion: Completion, messages: Sequence[Message]) -> list[int]:
        return self.start(messages, ())

    def write(self, message: Message) -> list[int]:
        return list(message.content.encode())

    def parse(self, token_ids: Sequence[int], tools: Sequence[Tool]) -> Message:
        return Message(Role.ASSISTANT, bytes(token_ids).decode(errors="replace"))


class ScriptedPolicy:
    """Says its lines turn by turn, whatever the prompt; sleeps `seconds[member]` before each."""

    def __init__(self, *lines: str, seconds: Mapping[int, float] | None = None, version: int = 0) -> None:
        self.lines = lines
        self.seconds = seconds or {}
        self.version = version
        self.asked: list[tuple[SequenceId, int]] = []

    async def __call__(self, prompt_ids: Sequence[int], *, sequence: SequenceId, max_tokens: int) -> Completion:
        self.asked.append((sequence, max_tokens))
        await asyncio.sleep(self.seconds.get(sequence.member, 0.0))
        ids = tuple(self.lines[sequence.turn % len(self.lines)].encode())
        reason = FinishReason.STOP if len(ids) <= max_tokens else FinishReason.LENGTH
        ids = ids[:max_tokens]
        return Completion(ids, (-0.5,) * len(ids), (self.version,) * len(ids), reason)


class EchoEnvironment:
    """Answers "!" until the policy says "ok", which is worth 1."""

    tools: Sequence[Tool] = ()

    def __init__(self) -> None:
        self.said = ""
        self.closed = False

    def tasks(self, split: str) -> list[Task]:
        return [Task(id="0", prompt="hi")]

    async def reset(self, task: Task) -> Observation:
        return Observation((Message(Role.USER, task.prompt),))

    async def step(self, message: Message) -> Observation:
        self.said = message.content
        if self.said == "ok":
            return Observation((), done=True)
        return Observation((Message(Role.TOOL, "!"),))

    async def reward(self) -> float:
        return float(self.said == "ok")

    async def close(self) -> None:
        self.closed = True

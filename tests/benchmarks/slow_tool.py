"""Two turns with a slow tool between them: the smallest episode in which an engine has to wait for something else."""

import asyncio
import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from components.environments.environment import Observation, ToolUse
from components.environments.tools import Tool
from components.types import Completion, FinishReason, Message, Policy, Role, SequenceId, Task
from tests.fakes import ByteRenderer

SIGMA = 2.3263 - math.sqrt(2.3263**2 - 2 * math.log(10))
"""Deviation of the logarithm for which the 99th percentile is 10 x the mean."""


class NumbersRenderer(ByteRenderer):
    """Bytes as tokens; what the policy says is the list of its token ids."""

    def parse(self, token_ids: Sequence[int], tools: Sequence[Tool]) -> Message:
        return Message(Role.ASSISTANT, " ".join(map(str, token_ids)))


class FixedLength:
    """A turn that has its whole length is a turn that stopped: the episode goes on."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy

    async def __call__(self, prompt_ids: Sequence[int], *, sequence: SequenceId, max_tokens: int) -> Completion:
        completion = await self._policy(prompt_ids, sequence=sequence, max_tokens=max_tokens)
        return dataclasses.replace(completion, finish_reason=FinishReason.STOP)


class SlowTool:
    """Two turns; the tool in between sleeps for a log-normal time. The reward only has to differ within a group."""

    tools: Sequence[Tool] = ()

    def __init__(self, mean_seconds: float, draws: np.random.Generator) -> None:
        self.mean_seconds = mean_seconds
        self.draws = draws
        self.said: list[str] = []

    def tasks(self, split: str) -> list[Task]:
        return [Task(str(number), f"problem {number:04d} ".ljust(48, ".")) for number in range(512)]

    async def reset(self, task: Task) -> Observation:
        return Observation((Message(Role.USER, task.prompt),))

    async def step(self, message: Message) -> Observation:
        self.said.append(message.content)
        if len(self.said) == 2:
            return Observation((), done=True)
        seconds = self.mean_seconds * self.draws.lognormal(-(SIGMA**2) / 2, SIGMA) if self.mean_seconds else 0.0
        await asyncio.sleep(seconds)
        return Observation((Message(Role.TOOL, "result: 42."),), tool_use=ToolUse(calls=1, seconds=seconds))

    async def reward(self) -> float:
        return float(sum(map(int, self.said[0].split())) % 7)

    async def close(self) -> None:
        return None

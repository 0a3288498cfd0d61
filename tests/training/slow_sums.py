"""Sums whose tool takes long for every tenth task: its groups land when the policy has moved on."""

import asyncio

from components.environments.arithmetic import Arithmetic
from components.environments.environment import Observation
from components.types import Message


class SlowSums(Arithmetic):
    """Waits after the tokens were sampled."""

    async def step(self, message: Message) -> Observation:
        observation = await super().step(message)
        if self.task.answer.endswith("0"):
            await asyncio.sleep(1.5)
        return observation

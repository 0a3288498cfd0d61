"""Sums in a world that is slow in one place."""

import asyncio
from collections.abc import Mapping

from components.environments.arithmetic import Arithmetic
from components.environments.environment import Observation
from components.types import Message

SECONDS = 1.0


class SlowTool(Arithmetic):
    """Its tool answers late."""

    async def step(self, message: Message) -> Observation:
        await asyncio.sleep(SECONDS)
        return await super().step(message)


class SlowGrader(Arithmetic):
    """Its grader answers late."""

    async def reward(self) -> float | Mapping[str, float]:
        await asyncio.sleep(SECONDS)
        return await super().reward()


class SlowReset(Arithmetic):
    """It opens late."""

    async def reset(self, task) -> Observation:
        await asyncio.sleep(SECONDS)
        return await super().reset(task)

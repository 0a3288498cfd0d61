"""Sums for which every answer is worth the same: no group can teach anything."""

from components.environments.arithmetic import Arithmetic


class NoMix(Arithmetic):
    """Always 0.7."""

    async def reward(self) -> float:
        return 0.7

"""An environment played by hand: what was observed, and what it was worth and why."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from components.environments.environment import Environment, Observation
from components.environments.rewards import as_reward_parts, as_reward_reasons
from components.types import Message, Role, Task


@dataclass(frozen=True)
class Played:
    """An episode's observations, the first one from `reset`, and its reward."""

    observations: tuple[Observation, ...]
    parts: dict[str, float]
    reasons: dict[str, str]

    @property
    def reward(self) -> float:
        return sum(self.parts.values())

    @property
    def done(self) -> bool:
        return self.observations[-1].done


def say(text: str) -> Message:
    """An assistant message of text alone."""
    return Message(Role.ASSISTANT, text)


def play(environment: Environment, task: Task, said: Sequence[Message]) -> Played:
    """Play the messages until one of them ends the episode."""

    async def episode() -> Played:
        observations = [await environment.reset(task)]
        for message in said:
            if observations[-1].done:
                break
            observations.append(await environment.step(message))
        reward = await environment.reward()
        await environment.close()
        return Played(tuple(observations), as_reward_parts(reward, "play"), as_reward_reasons(reward, "play"))

    return asyncio.run(episode())


def splits(make: type[Environment], **options: object) -> tuple[list[Task], list[Task]]:
    """Train and test tasks; they are the same when asked again, and share no id and no prompt."""
    train, test = (list(make(**options).tasks(split)) for split in ("train", "test"))
    assert [list(make(**options).tasks(split)) for split in ("train", "test")] == [train, test]
    for mine in (train, test):
        assert len({task.id for task in mine}) == len(mine)
    assert {task.id for task in train}.isdisjoint(task.id for task in test)
    assert {task.prompt for task in train}.isdisjoint(task.prompt for task in test)
    return train, test

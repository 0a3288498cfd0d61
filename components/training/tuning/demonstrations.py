"""Tasks and an environment that can show what is right -> examples of it, played through environment and renderer."""

import asyncio
from collections.abc import Iterable, Sequence
from typing import Protocol, runtime_checkable

from components.environments.environment import Environment
from components.errors import ConfigError, DataError, HeadraceError, Problem, RunStoppedError
from components.rollout.player import Player
from components.training.tuning.examples import Example, lay_out
from components.types import Message, Task

AT_ONCE = 256


@runtime_checkable
class Demonstrating(Environment, Protocol):
    """An environment that can show what a good policy writes next."""

    def demonstration(self, task: Task, *, with_tool: bool) -> Message:
        """The call that the task asks for, or its answer."""
        ...


async def demonstrate_all(player: Player, wanted: Iterable[tuple[Task, bool]]) -> list[Example]:
    """One example for each task, which calls the tool or answers at once.

    Raises RunStoppedError for one that takes longer than an episode may, DataError where the environment raises.
    """
    room = asyncio.Semaphore(AT_ONCE)

    async def one(task: Task, with_tool: bool) -> Example:
        async with room:
            limit = asyncio.timeout(player.limits.max_seconds)
            try:
                async with limit:
                    return await demonstrate(player, task, with_tool=with_tool)
            except TimeoutError:
                if not limit.expired():
                    raise
                message = f"the demonstration of task {task.id} took longer than max_seconds"
                raise RunStoppedError(f"{message} = {player.limits.max_seconds:g}") from None
            except HeadraceError:
                raise
            except Exception as error:  # The boundary to an environment of others.
                message = f"the demonstration of task {task.id} raised {type(error).__name__}: {error}"
                raise DataError(Problem("environment.use", player.name, message)) from error

    return await asyncio.gather(*(one(*each) for each in wanted))


async def demonstrate(player: Player, task: Task, *, with_tool: bool) -> Example:
    """Play the task rightly. Raises ConfigError for an environment that cannot show what is right."""
    environment = player.make_environment()
    if not isinstance(environment, Demonstrating):
        message = "has no method demonstration(task, with_tool=...), which demonstrations are made of"
        raise ConfigError(Problem("environment.use", type(environment).__name__, message))
    opening: Sequence[Message] = (await environment.reset(task)).messages
    talk: list[Message] = []
    replies: Sequence[Message] = ()
    calling, done = with_tool, False
    while not done:
        said = environment.demonstration(task, with_tool=calling)
        observation = await environment.step(said)
        talk += [*replies, said]
        # An answer ends every demonstration, whatever the environment has to say to it.
        calling, done, replies = False, observation.done or not calling, observation.messages
    laid = lay_out(player.renderer, opening, talk, tuple(environment.tools))
    await environment.close()
    return Example((laid,), f"task {task.id}")

"""Anything with Gymnasium's reset and step -> an environment: what it shows becomes text, words become its actions.

    environment:
      use: gymnasium
      options:
        make: gymnasium:make
        arguments: {id: FrozenLake-v1, render_mode: ansi, is_slippery: false}
        actions: {left: 0, down: 1, right: 2, up: 3}
        instruction: Walk from S to G over F and never over H.

An environment that renders text (render_mode: ansi) is shown as it renders itself, any other by its observation.
"""

import importlib
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol, SupportsFloat, runtime_checkable

from components.environments.environment import Observation
from components.environments.tools import call_function, result_to_text
from components.errors import ConfigError, Problem
from components.types import Message, Role, Task

FIRST_TEST_SEED = 1_000_000


@runtime_checkable
class Gym(Protocol):
    """The methods of gymnasium.Env that are needed, with its meanings. None of it is imported."""

    def reset(self, *, seed: int | None = None) -> tuple[Any, Mapping[str, Any]]: ...
    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, Mapping[str, Any]]: ...
    def render(self) -> Any: ...
    def close(self) -> None: ...


class GymnasiumEnvironment:
    """One episode per seed. The last word of a message that names an action is done; one without any costs a turn.

    `make` names a function as module:function; called with `arguments`, it gives the environment. Rewards of steps are
    those of turns, and their sum is the episode's.
    """

    tools = ()

    def __init__(
        self,
        make: str,
        actions: Mapping[str, int],
        arguments: Mapping[str, Any] | None = None,
        instruction: str = "",
        train_tasks: int = 1000,
        test_tasks: int = 100,
    ) -> None:
        module, _, function = make.partition(":")
        found: Callable[..., Any] | None = vars(importlib.import_module(module)).get(function)
        if found is None or not actions:
            raise ConfigError(Problem("make, actions", (make, actions), "give a module:function, and actions"))
        self._make, self._arguments, self._actions = found, dict(arguments or {}), dict(actions)
        self._opening = f"{instruction}\n\nAnswer with one of: {', '.join(actions)}.".strip()
        self._counts = {"train": (0, train_tasks), "test": (FIRST_TEST_SEED, test_tasks)}
        self._gym: Gym | None = None
        self._earned = 0.0

    def tasks(self, split: str) -> Iterable[Task]:
        """A task per seed; those of the splits are disjoint."""
        first, count = self._counts[split]
        return [Task(str(seed), f"seed {seed}", data={"seed": seed}) for seed in range(first, first + count)]

    async def reset(self, task: Task) -> Observation:
        """Begin, and show where it begins."""
        self._gym = await call_function(self._make, self._arguments)
        seen, _ = await call_function(self._gym.reset, {"seed": task.data["seed"]})
        return Observation((Message(Role.USER, f"{self._opening}\n\n{await self._shown(seen)}"),))

    async def step(self, message: Message) -> Observation:
        """Do what the message says last."""
        words = [word for word in re.findall(r"\w+", message.content.lower()) if word in self._actions]
        if not words or self._gym is None:
            return Observation((Message(Role.USER, f"That is none of: {', '.join(self._actions)}."),))
        action = self._actions[words[-1]]
        seen, reward, terminated, truncated, _ = await call_function(self._gym.step, {"action": action})
        self._earned += float(reward)
        shown = (Message(Role.USER, await self._shown(seen)),)
        return Observation(shown, done=bool(terminated or truncated), reward=float(reward))

    async def reward(self) -> float:
        """What the steps have earned."""
        return self._earned

    async def close(self) -> None:
        """Close it."""
        if self._gym is not None:
            await call_function(self._gym.close, {})

    async def _shown(self, seen: Any) -> str:
        rendered = await call_function(self._gym.render, {}) if self._gym else None
        return rendered if isinstance(rendered, str) else result_to_text(seen)

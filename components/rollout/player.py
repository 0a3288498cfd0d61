"""A recipe's environment section -> a function that plays one task with one policy."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from components.config import config
from components.environments.environment import load_environment
from components.rollout.episode import EpisodeLimits, run_episode
from components.rollout.renderer import Renderer, make_renderer
from components.rollout.tokenizer import Tokenizer
from components.types import Policy, SequenceId, Task, Trajectory


@config
class EnvironmentConfig:
    """`use` names a class as `module:Class`, `options` are its constructor's arguments, `limits` cut its episodes."""

    use: str
    options: Mapping[str, Any] = {}
    renderer: Literal["plain", "compact", "chatml", "gemma"] = "chatml"
    limits: EpisodeLimits = EpisodeLimits()


@dataclass(frozen=True, slots=True)
class Player:
    """Opens a fresh environment for every episode, so that no state leaks from one to the next."""

    settings: EnvironmentConfig
    renderer: Renderer

    async def play(self, policy: Policy, task: Task, sequence: SequenceId) -> Trajectory:
        """Play one episode of `task`."""
        environment = load_environment(self.settings.use, self.settings.options)
        limits = self.settings.limits
        return await run_episode(policy, environment, self.renderer, task, limits=limits, sequence=sequence)


def make_player(settings: EnvironmentConfig, tokenizer: Tokenizer) -> Player:
    """The player of a recipe. Raises ConfigError when the tokenizer lacks what the renderer needs."""
    return Player(settings, make_renderer(settings.renderer, tokenizer))

"""A recipe's environment section -> a function that plays one task with one policy."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import Field

from components.config import config
from components.environments.environment import Environment, environment_factory
from components.environments.mcp_servers import McpServer
from components.environments.sandbox.limits import Isolation
from components.rollout.episode import EpisodeLimits, run_episode
from components.rollout.renderer import Choice, Renderer, RendererName, RenderingConfig, choose, make_renderer
from components.rollout.tokenizer import Tokenizer
from components.telemetry.timeline import Timeline
from components.types import Policy, SequenceId, Task, Trajectory


@config
class EnvironmentConfig:
    """What the policy acts in.

    `use` names a class as `module:Class` or a built-in one; `options` are its constructor's arguments; `limits` cut its
    episodes. `renderer` is the form in which the model reads conversations; `auto` goes by what the checkpoint brings.
    `isolation` is for environments that run code of a model: `sandbox` (the default: a run that cannot have
    it is refused) or `process` (limits alone, with no claim of safety). `mcp` are servers whose tools are added.
    """

    use: str
    options: Mapping[str, Any] = Field(default_factory=dict)
    renderer: RendererName = "auto"
    rendering: RenderingConfig = RenderingConfig()
    limits: EpisodeLimits = EpisodeLimits()
    isolation: Isolation | None = None
    mcp: tuple[McpServer, ...] = ()


@dataclass(frozen=True, slots=True)
class Player:
    """Opens a fresh environment for every episode, so that no state leaks from one to the next.

    `choice` says which renderer it is, and why; `name` is the environment's, as the recipe has it.
    """

    make_environment: Callable[[], Environment]
    renderer: Renderer
    limits: EpisodeLimits
    choice: Choice | None = None
    name: str = "environment"

    async def play(
        self, policy: Policy, task: Task, sequence: SequenceId, timeline: Timeline | None = None
    ) -> Trajectory:
        """Play one episode of `task`; `timeline` is told what it waits for."""
        return await run_episode(
            policy,
            self.make_environment(),
            self.renderer,
            task,
            limits=self.limits,
            sequence=sequence,
            timeline=timeline,
        )


def make_player(settings: EnvironmentConfig, tokenizer: Tokenizer, *, ends: Sequence[int] = ()) -> Player:
    """The player of a recipe; `ends` are tokens that end a text of this checkpoint, beside those of the renderer.

    Raises ConfigError for an environment, option, renderer or tokenizer that does not fit.
    """
    factory = environment_factory(settings.use, settings.options, isolation=settings.isolation, mcp=settings.mcp)
    choice = choose(settings.renderer, tokenizer, settings.rendering)
    renderer = make_renderer(settings.renderer, tokenizer, settings.rendering, ends=ends)
    return Player(factory, renderer, settings.limits, choice, settings.use)

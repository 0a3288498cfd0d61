"""One policy in one environment, from reset to reward."""

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from typing import Annotated, ParamSpec, TypeVar, no_type_check

from pydantic import Field

from components.config import config, load
from components.environments.bounded import OverdueError, SelfCancelledError, bounded
from components.environments.environment import NO_TOOL_USE, Environment, Observation, ToolUse
from components.environments.intake import characters_of, characters_of_tools, checked_observation, checked_tools
from components.environments.rewards import as_reward, as_reward_parts, as_reward_reasons
from components.environments.tools import error_text, words_of
from components.errors import (
    CancelledEpisodeError,
    EnvironmentFailedError,
    EpisodeTimeoutError,
    GraderFailedError,
    RolloutError,
)
from components.rollout.renderer import Renderer
from components.telemetry.spans import count
from components.telemetry.timeline import CLOSE, POLICY, RESET, REWARD, STEP, Timeline
from components.types import (
    CallOutcome,
    CallRecord,
    Completion,
    Failure,
    FinishReason,
    Message,
    Outcome,
    Policy,
    SequenceId,
    Task,
    Trajectory,
    Turn,
)

P = ParamSpec("P")
T = TypeVar("T")

_SHORT = 4000
"""Characters, or tokens, that are translated within a few milliseconds."""


@config
class EpisodeLimits:
    """Where an episode is cut: turns, sampled tokens of one turn, tokens of the whole context.

    And where it fails: its seconds, the characters of one observation, and the seconds that the environment may take to
    close, or to end when it is cut off.
    """

    max_turns: Annotated[int, Field(ge=1)] = 8
    max_new_tokens: Annotated[int, Field(ge=1)] = 256
    max_context: Annotated[int, Field(ge=2)] = 2048
    max_seconds: Annotated[float, Field(gt=0)] = 600.0
    max_observation_characters: Annotated[int, Field(ge=1)] = 1_000_000
    max_close_seconds: Annotated[float, Field(gt=0)] = 5.0

    def lowered_by(self, limits: Mapping[str, int | float]) -> "EpisodeLimits":
        """These, and where a task asks for less, that. Raises ConfigError for a name or a value that is none."""
        if not limits:
            return self
        own, asked = asdict(self), asdict(load(EpisodeLimits, limits, where="limits"))
        return replace(self, **{name: min(own[name], asked[name]) for name in limits})


async def run_episode(
    policy: Policy,
    environment: Environment,
    renderer: Renderer,
    task: Task,
    *,
    limits: EpisodeLimits,
    sequence: SequenceId,
    timeline: Timeline | None = None,
) -> Trajectory:
    """Play `task` once. A RolloutError becomes a failed trajectory that keeps the turns played; a bug propagates.

    The environment lives in one task of its own from reset to close, so that it may hold on to what belongs to a task.
    It cannot outlive its limits by catching its cancellation, nor pass for cancelled when nobody cancelled it.
    `timeline` is told what it waits for, moment by moment.
    """
    limits = limits.lowered_by(task.limits)
    timeline = timeline or Timeline(sequence.episode)
    started = time.perf_counter()
    episode = _Episode(policy, environment, renderer, task, limits, sequence, timeline, started=started)
    try:
        await bounded(episode.act(), limits.max_seconds, grace=limits.max_close_seconds + 1)
    except OverdueError as late:
        if late.__cause__ is not None:
            raise late.__cause__ from None
        episode.failure = None
        episode.fail(episode.overdue())
    except SelfCancelledError:
        episode.fail(CancelledEpisodeError(f"{episode.at} of task {task.id} cancelled the episode that it belongs to"))
    finally:
        timeline.end(
            failure=episode.failure.kind if episode.failure else None,
            outcome=episode.outcome.value,
            turns=len(episode.turns),
            reward=episode.reward,
        )
    return episode.trajectory()


@no_type_check  # an environment whose `tools` raises is no instance of its protocol at run time, and that is data
@dataclass(slots=True)
class _Episode:
    """What it is made of, and what has happened so far; that is left when it breaks. `at` names what it waits for."""

    policy: Policy
    environment: Environment
    renderer: Renderer
    task: Task
    limits: EpisodeLimits
    sequence: SequenceId
    timeline: Timeline
    started: float
    at: str = RESET
    turns: list[Turn] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)
    cut_by: str | None = None
    tool_use: ToolUse = NO_TOOL_USE
    reward_parts: dict[str, float] = field(default_factory=dict)
    reward_reasons: dict[str, str] = field(default_factory=dict)
    failure: Failure | None = None

    async def act(self) -> None:
        """The whole of it; failures are kept, not raised."""
        can_wait = True
        self._enter(RESET)
        try:
            await self._play()
            self._enter(REWARD)
            with _boundary(GraderFailedError, "reward", self.task):
                where = f"{type(self.environment).__name__}, task {self.task.id}"
                graded = await self.environment.reward()
                self.reward_reasons = as_reward_reasons(graded, where=where)
                self.reward_parts = as_reward_parts(graded, where=where)
            self._enter(CLOSE)
        except RolloutError as error:
            self.fail(error)
            self._enter(CLOSE)
        except GeneratorExit:
            # Ended by force: nothing can be awaited any more.
            can_wait = False
            raise
        finally:
            if can_wait:
                await self._close()

    def _enter(self, phase: str) -> None:
        self.at = phase
        self.timeline.enter(phase, turn=max(len(self.turns) - (phase != POLICY), 0))

    async def _play(self) -> None:
        with _boundary(EnvironmentFailedError, "reset", self.task):
            observation = self._observe(await self.environment.reset(self.task))
            tools = checked_tools(self.environment.tools)
        if observation.done:
            return
        size = characters_of(observation.messages) + characters_of_tools(tools, _SHORT)
        prompt_ids = tuple(await _translated(size, self.renderer.start, observation.messages, tools))
        while (completion := await self._turn(prompt_ids)) is not None:
            message = await _translated(len(completion.token_ids), self.renderer.parse, completion.token_ids, tools)
            self.messages.append(message)
            for broken in message.malformed_calls:
                count("malformed_calls", kind=broken.kind)
            if self.cut_by is not None:
                return
            self._enter(STEP)
            with _boundary(EnvironmentFailedError, "step", self.task):
                observation = self._observe(await self.environment.step(message))
            self._credit(observation)
            if observation.done:
                return
            if time.perf_counter() > self.started + self.limits.max_seconds:
                raise self.overdue()
            size = characters_of(observation.messages) + len(completion.token_ids)
            added = await _translated(size, self.renderer.extend, completion, observation.messages)
            prompt_ids = (*prompt_ids, *completion.token_ids, *added)

    async def _turn(self, prompt_ids: tuple[int, ...]) -> Completion | None:
        """Sample one turn; None where a limit leaves no room for it. `cut_by` says which limit it ended at."""
        limits = self.limits
        room = limits.max_context - len(prompt_ids)
        if len(self.turns) >= limits.max_turns or room < 1:
            self.cut_by = "context" if room < 1 else "turns"
            return None
        self._enter(POLICY)
        of = self.sequence
        turn = SequenceId(of.task_id, of.epoch, of.member, of.attempt, len(self.turns))
        completion = await self.policy(prompt_ids, sequence=turn, max_tokens=min(limits.max_new_tokens, room))
        self.turns.append(Turn(prompt_ids=prompt_ids, completion=completion))
        self.timeline.note(
            input_tokens=len(prompt_ids),
            output_tokens=len(completion.token_ids),
            finish_reason=completion.finish_reason.value,
            version=completion.versions[-1] if completion.versions else None,
        )
        if completion.finish_reason is not FinishReason.STOP:
            self.cut_by = "context" if room <= limits.max_new_tokens else "length"
        return completion

    def _observe(self, answer: object) -> Observation:
        observation = checked_observation(answer, self.limits.max_observation_characters)
        self.messages.extend(observation.messages)
        if observation.tool_use is not NO_TOOL_USE:
            self.tool_use += replace(observation.tool_use, records=())
        return observation

    def _credit(self, observation: Observation) -> None:
        """What the last turn has earned, where the environment says so, and which tools it called."""
        reward = as_reward(observation.reward, where=f"the observation of task {self.task.id}")
        calls = observation.tool_use.records
        for call in calls:
            self.timeline.call(call.tool, call.outcome.value, call.seconds)
        if reward or calls:
            self.turns[-1] = replace(self.turns[-1], reward=reward, calls=calls)

    async def _close(self) -> None:
        limit = asyncio.timeout(self.limits.max_close_seconds)
        try:
            with _boundary(EnvironmentFailedError, "close", self.task):
                async with limit:
                    await self.environment.close()
        except RolloutError as error:
            took = (
                f"close of task {self.task.id} took longer than max_close_seconds = {self.limits.max_close_seconds:g}"
            )
            self.fail(EnvironmentFailedError(took) if limit.expired() else error)

    def fail(self, error: RolloutError) -> None:
        """The first failure is the cause of the others."""
        if error.tool is not None and self.failure is None and self.turns:
            call = CallRecord(error.tool, CallOutcome.BROKEN, error.seconds)
            self.timeline.call(*call)
            self.turns[-1] = replace(self.turns[-1], calls=(*self.turns[-1].calls, call))
        self.failure = self.failure or Failure(kind=error.kind, message=words_of(error))

    def overdue(self) -> EpisodeTimeoutError:
        """It took too long."""
        return EpisodeTimeoutError(
            f"task {self.task.id} took longer than max_seconds = {self.limits.max_seconds:g}; "
            f"it was waiting for {self.at}"
        )

    @property
    def outcome(self) -> Outcome:
        """How it ended."""
        return Outcome.FAILED if self.failure else Outcome.TRUNCATED if self.cut_by else Outcome.FINISHED

    @property
    def reward(self) -> float | None:
        """The sum of its parts; None where it failed."""
        return None if self.failure else sum(self.reward_parts.values())

    def trajectory(self) -> Trajectory:
        """The record of it."""
        return Trajectory(
            task=self.task,
            turns=tuple(self.turns),
            messages=tuple(self.messages),
            outcome=self.outcome,
            reward=self.reward,
            reward_parts=self.reward_parts,
            reward_reasons=self.reward_reasons,
            cut_by=self.cut_by,
            failure=self.failure,
            epoch=self.sequence.epoch,
            member=self.sequence.member,
            attempt=self.sequence.attempt,
            tool_calls=self.tool_use.calls,
            tool_errors=self.tool_use.errors,
            malformed_calls=sum(len(message.malformed_calls) for message in self.messages),
            seconds=time.perf_counter() - self.started,
            tool_seconds=self.tool_use.seconds,
        )


async def _translated(size: int, translate: Callable[P, T], *arguments: P.args, **keywords: P.kwargs) -> T:
    """A short text at once, a long one in a thread: all other episodes wait for what runs on the event loop."""
    if size <= _SHORT:
        return translate(*arguments, **keywords)
    return await asyncio.to_thread(translate, *arguments, **keywords)


@contextmanager
def _boundary(kind: type[RolloutError], act: str, task: Task) -> Iterator[None]:
    """The one place where an exception of somebody else's code becomes a typed failure of the episode."""
    try:
        yield
    except RolloutError:
        raise
    except Exception as error:
        raise kind(f"{act} of task {task.id} raised {error_text(error)}") from error
    except SystemExit as leaving:
        raise kind(f"{act} of task {task.id} called sys.exit({leaving.code!r})") from leaving

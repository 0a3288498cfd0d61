"""One policy in one environment, from reset to reward."""

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Annotated, ParamSpec, TypeVar

from pydantic import Field

from components.config import config
from components.environments.bounded import OverdueError, SelfCancelledError, bounded
from components.environments.environment import NO_TOOL_USE, Environment, Observation, ToolUse
from components.environments.intake import characters_of, characters_of_tools, checked_observation, checked_tools
from components.environments.rewards import as_reward_parts
from components.environments.tools import error_text, words_of
from components.errors import (
    CancelledEpisodeError,
    EnvironmentFailedError,
    EpisodeTimeoutError,
    GraderFailedError,
    RolloutError,
)
from components.rollout.renderer import Renderer
from components.types import Failure, FinishReason, Message, Outcome, Policy, SequenceId, Task, Trajectory, Turn

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


@dataclass(slots=True)
class _Record:
    """What has happened so far; what is left of an episode when it breaks. `at` names what it is waiting for."""

    deadline: float
    at: str = "reset"
    turns: list[Turn] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)
    cut_by: str | None = None
    tool_use: ToolUse = NO_TOOL_USE
    reward_parts: dict[str, float] = field(default_factory=dict)
    failure: Failure | None = None

    def observe(self, observation: Observation) -> None:
        self.messages.extend(observation.messages)
        if observation.tool_use is not NO_TOOL_USE:
            self.tool_use += observation.tool_use

    def fail(self, error: RolloutError) -> None:
        """The first failure is the cause of the others."""
        self.failure = self.failure or Failure(kind=error.kind, message=words_of(error))


async def run_episode(
    policy: Policy,
    environment: Environment,
    renderer: Renderer,
    task: Task,
    *,
    limits: EpisodeLimits,
    sequence: SequenceId,
) -> Trajectory:
    """Play `task` once. A RolloutError becomes a failed trajectory that keeps the turns played; a bug propagates.

    The environment lives in one task of its own from reset to close, so that it may hold on to what belongs to a task.
    It cannot outlive its limits by catching its cancellation, nor pass for cancelled when nobody cancelled it.
    """
    started = time.perf_counter()
    record = _Record(deadline=started + limits.max_seconds)
    act = _act(policy, environment, renderer, task, limits, sequence, record)
    try:
        await bounded(act, limits.max_seconds, grace=limits.max_close_seconds + 1)
    except OverdueError as late:
        if late.__cause__ is not None:
            raise late.__cause__ from None
        record.failure = None
        record.fail(_too_late(task, limits, record))
    except SelfCancelledError:
        record.fail(CancelledEpisodeError(f"{record.at} of task {task.id} cancelled the episode that it belongs to"))
    return _trajectory(task, sequence, record, time.perf_counter() - started)


async def _act(
    policy: Policy,
    environment: Environment,
    renderer: Renderer,
    task: Task,
    limits: EpisodeLimits,
    sequence: SequenceId,
    record: _Record,
) -> None:
    """The whole episode; its failures are in the record."""
    can_wait = True
    try:
        await _play(policy, environment, renderer, task, limits, sequence, record)
        record.at = "reward"
        with _boundary(GraderFailedError, "reward", task):
            where = f"{type(environment).__name__}, task {task.id}"
            record.reward_parts = as_reward_parts(await environment.reward(), where=where)
        record.at = "close"
    except RolloutError as error:
        record.fail(error)
        record.at = "close"
    except GeneratorExit:
        # Ended by force: nothing can be awaited any more.
        can_wait = False
        raise
    finally:
        if can_wait:
            await _close(environment, task, limits, record)


async def _play(
    policy: Policy,
    environment: Environment,
    renderer: Renderer,
    task: Task,
    limits: EpisodeLimits,
    sequence: SequenceId,
    record: _Record,
) -> None:
    most = limits.max_observation_characters
    with _boundary(EnvironmentFailedError, "reset", task):
        observation = checked_observation(await environment.reset(task), most)
        tools = checked_tools(environment.tools)
    record.observe(observation)
    if observation.done:
        return
    size = characters_of(observation.messages) + characters_of_tools(tools, _SHORT)
    prompt_ids = tuple(await _translated(size, renderer.start, observation.messages, tools))
    while True:
        room = limits.max_context - len(prompt_ids)
        if len(record.turns) >= limits.max_turns or room < 1:
            record.cut_by = "context" if room < 1 else "turns"
            return
        record.at = "policy"
        turn = SequenceId(sequence.task_id, sequence.epoch, sequence.member, sequence.attempt, len(record.turns))
        completion = await policy(prompt_ids, sequence=turn, max_tokens=min(limits.max_new_tokens, room))
        record.turns.append(Turn(prompt_ids=prompt_ids, completion=completion))
        message = await _translated(len(completion.token_ids), renderer.parse, completion.token_ids, tools)
        record.messages.append(message)
        if completion.finish_reason is not FinishReason.STOP:
            record.cut_by = "context" if room <= limits.max_new_tokens else "length"
            return
        record.at = "step"
        with _boundary(EnvironmentFailedError, "step", task):
            observation = checked_observation(await environment.step(message), most)
        record.observe(observation)
        if observation.done:
            return
        if time.perf_counter() > record.deadline:
            raise _too_late(task, limits, record)
        size = characters_of(observation.messages) + len(completion.token_ids)
        added = await _translated(size, renderer.extend, completion, observation.messages)
        prompt_ids = (*prompt_ids, *completion.token_ids, *added)


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


async def _close(environment: Environment, task: Task, limits: EpisodeLimits, record: _Record) -> None:
    limit = asyncio.timeout(limits.max_close_seconds)
    try:
        with _boundary(EnvironmentFailedError, "close", task):
            async with limit:
                await environment.close()
    except RolloutError as error:
        took = f"close of task {task.id} took longer than max_close_seconds = {limits.max_close_seconds:g}"
        record.fail(EnvironmentFailedError(took) if limit.expired() else error)


def _too_late(task: Task, limits: EpisodeLimits, record: _Record) -> EpisodeTimeoutError:
    return EpisodeTimeoutError(
        f"task {task.id} took longer than max_seconds = {limits.max_seconds:g}; it was waiting for {record.at}"
    )


def _trajectory(task: Task, sequence: SequenceId, record: _Record, seconds: float) -> Trajectory:
    outcome = Outcome.FAILED if record.failure else Outcome.TRUNCATED if record.cut_by else Outcome.FINISHED
    return Trajectory(
        task=task,
        turns=tuple(record.turns),
        messages=tuple(record.messages),
        outcome=outcome,
        reward=None if record.failure else sum(record.reward_parts.values()),
        reward_parts=record.reward_parts,
        cut_by=record.cut_by,
        failure=record.failure,
        epoch=sequence.epoch,
        member=sequence.member,
        attempt=sequence.attempt,
        tool_calls=record.tool_use.calls,
        tool_errors=record.tool_use.errors,
        malformed_calls=sum(len(message.malformed_calls) for message in record.messages),
        seconds=seconds,
        tool_seconds=record.tool_use.seconds,
    )

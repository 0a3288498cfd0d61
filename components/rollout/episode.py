"""One policy in one environment, from reset to reward."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Annotated

from pydantic import Field

from components.config import config
from components.environments.environment import Environment, Observation, ToolUse
from components.environments.rewards import as_reward_parts
from components.errors import EnvironmentFailedError, EpisodeTimeoutError, GraderFailedError, RolloutError
from components.rollout.renderer import Renderer
from components.types import Failure, FinishReason, Message, Outcome, Policy, SequenceId, Task, Trajectory, Turn


@config
class EpisodeLimits:
    """Where an episode is cut: turns, sampled tokens of one turn, tokens of the whole context, seconds."""

    max_turns: Annotated[int, Field(ge=1)] = 8
    max_new_tokens: Annotated[int, Field(ge=1)] = 256
    max_context: Annotated[int, Field(ge=2)] = 2048
    max_seconds: Annotated[float, Field(gt=0)] = 600.0


@dataclass(slots=True)
class _Record:
    """What has happened so far; what is left of an episode when it breaks."""

    turns: list[Turn] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)
    cut_by: str | None = None
    tool_use: ToolUse = field(default_factory=ToolUse)

    def observe(self, observation: Observation) -> None:
        self.messages.extend(observation.messages)
        self.tool_use += observation.tool_use


async def run_episode(
    policy: Policy,
    environment: Environment,
    renderer: Renderer,
    task: Task,
    *,
    limits: EpisodeLimits,
    sequence: SequenceId,
) -> Trajectory:
    """Play `task` once. A RolloutError becomes a failed trajectory that keeps the turns played; a bug propagates."""
    record = _Record()
    failure: RolloutError | None = None
    parts: dict[str, float] = {}
    started = time.perf_counter()
    try:
        async with asyncio.timeout(limits.max_seconds) as deadline, _closing(environment, task):
            await _play(policy, environment, renderer, task, limits, sequence, record)
            async with _boundary(GraderFailedError, "reward", task):
                parts = as_reward_parts(
                    await environment.reward(), where=f"{type(environment).__name__}, task {task.id}"
                )
    except TimeoutError:
        if not deadline.expired():
            raise
        failure = EpisodeTimeoutError(f"task {task.id} took longer than max_seconds = {limits.max_seconds:g}")
    except RolloutError as error:
        failure = error
    return _trajectory(task, sequence, record, parts, failure, time.perf_counter() - started)


async def _play(
    policy: Policy,
    environment: Environment,
    renderer: Renderer,
    task: Task,
    limits: EpisodeLimits,
    sequence: SequenceId,
    record: _Record,
) -> None:
    async with _boundary(EnvironmentFailedError, "reset", task):
        observation = _checked(await environment.reset(task))
    record.observe(observation)
    if observation.done:
        return
    prompt_ids = tuple(renderer.start(observation.messages, environment.tools))
    while True:
        room = limits.max_context - len(prompt_ids)
        if len(record.turns) >= limits.max_turns or room < 1:
            record.cut_by = "context" if room < 1 else "turns"
            return
        turn = SequenceId(sequence.task_id, sequence.epoch, sequence.member, sequence.attempt, len(record.turns))
        completion = await policy(prompt_ids, sequence=turn, max_tokens=min(limits.max_new_tokens, room))
        record.turns.append(Turn(prompt_ids=prompt_ids, completion=completion))
        message = renderer.parse(completion.token_ids, environment.tools)
        record.messages.append(message)
        if completion.finish_reason is not FinishReason.STOP:
            record.cut_by = "context" if room <= limits.max_new_tokens else "length"
            return
        async with _boundary(EnvironmentFailedError, "step", task):
            observation = _checked(await environment.step(message))
        record.observe(observation)
        if observation.done:
            return
        prompt_ids = (*prompt_ids, *completion.token_ids, *renderer.extend(completion, observation.messages))


@asynccontextmanager
async def _boundary(kind: type[RolloutError], act: str, task: Task) -> AsyncIterator[None]:
    """The one place where an exception of somebody else's code becomes a typed failure of the episode."""
    try:
        yield
    except RolloutError:
        raise
    except Exception as error:
        raise kind(f"{act} of task {task.id} raised {type(error).__name__}: {error}") from error


@asynccontextmanager
async def _closing(environment: Environment, task: Task) -> AsyncIterator[None]:
    try:
        yield
    finally:
        async with _boundary(EnvironmentFailedError, "close", task):
            await environment.close()


def _checked(observation: object) -> Observation:
    if not isinstance(observation, Observation):
        raise EnvironmentFailedError(f"the environment returned {type(observation).__name__}, not an Observation")
    return observation


def _trajectory(
    task: Task,
    sequence: SequenceId,
    record: _Record,
    parts: dict[str, float],
    failure: RolloutError | None,
    seconds: float,
) -> Trajectory:
    outcome = Outcome.FAILED if failure else Outcome.TRUNCATED if record.cut_by else Outcome.FINISHED
    return Trajectory(
        task=task,
        turns=tuple(record.turns),
        messages=tuple(record.messages),
        outcome=outcome,
        reward=None if failure else sum(parts.values()),
        reward_parts=parts,
        cut_by=record.cut_by,
        failure=Failure(kind=failure.kind, message=str(failure)) if failure else None,
        epoch=sequence.epoch,
        member=sequence.member,
        attempt=sequence.attempt,
        tool_calls=record.tool_use.calls,
        tool_errors=record.tool_use.errors,
        malformed_calls=sum(len(message.malformed_calls) for message in record.messages),
        seconds=seconds,
        tool_seconds=record.tool_use.seconds,
    )

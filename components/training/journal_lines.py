"""An event of a run <-> one line of JSON, exact to the bit of every number."""

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, fields
from operator import attrgetter
from typing import Any, get_args

from pydantic import TypeAdapter

from components.training.history import Ended, Event
from components.types import (
    CallOutcome,
    CallRecord,
    Completion,
    Failure,
    FinishReason,
    Message,
    Outcome,
    Task,
    Trajectory,
    Turn,
)

_KINDS: Mapping[str, type[Event]] = {kind.__name__.lower(): kind for kind in get_args(Event)}
_READERS = {kind: TypeAdapter(kind) for kind in _KINDS.values() if kind is not Ended}
_MESSAGES = TypeAdapter(tuple[Message, ...])

_NESTED = ("task", "turns", "messages", "outcome", "reward_parts", "reward_reasons", "failure")
_PLAIN = tuple(field.name for field in fields(Trajectory) if field.name not in _NESTED)
_plain_values = attrgetter(*_PLAIN)


def to_line(event: Event) -> str:
    """An event as one line. Raises ValueError for a number that is not finite."""
    content = _ended(event) if isinstance(event, Ended) else asdict(event)
    return json.dumps({"event": type(event).__name__.lower(), **content}, allow_nan=False)


def from_line(line: str, tasks: Mapping[str, Task]) -> Event:
    """The event that `to_line` wrote, with its task out of `tasks` (by id).

    Raises ValueError, KeyError or TypeError for anything else.
    """
    content = json.loads(line)
    kind = _KINDS[content.pop("event")]
    if kind is Ended:
        return Ended(content["position"], _trajectory(content, tasks))
    event: Event = _READERS[kind].validate_python(content)
    return event


def version_runs(versions: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """(3, 3, 4) -> ((3, 2), (4, 1)): each version with the number of tokens in a row that it sampled."""
    return tuple((version, sum(1 for _ in run)) for version, run in itertools.groupby(versions))


def _ended(event: Ended) -> dict[str, Any]:
    """A trajectory without what is known from elsewhere: its task, and prompts that repeat what came before."""
    trajectory = event.trajectory
    return {
        "position": event.position,
        "task_id": trajectory.task.id,
        "outcome": trajectory.outcome,
        **dict(zip(_PLAIN, _plain_values(trajectory), strict=True)),
        "reward_parts": dict(trajectory.reward_parts),
        "reward_reasons": dict(trajectory.reward_reasons),
        "failure": asdict(trajectory.failure) if trajectory.failure else None,
        "turns": list(_turns(trajectory)),
        "messages": [asdict(message) for message in trajectory.messages],
    }


def _turns(trajectory: Trajectory) -> Iterator[dict[str, Any]]:
    before = 0
    for turn in trajectory.turns:
        completion = turn.completion
        yield {
            "added_ids": turn.prompt_ids[before:],
            "token_ids": completion.token_ids,
            "logprobs": completion.logprobs,
            "versions": version_runs(completion.versions),
            "finish_reason": completion.finish_reason,
            "reward": turn.reward,
            **({"calls": turn.calls} if turn.calls else {}),
        }
        before = len(turn.prompt_ids) + len(completion.token_ids)


def _trajectory(content: Mapping[str, Any], tasks: Mapping[str, Task]) -> Trajectory:
    failure = content["failure"]
    return Trajectory(
        task=tasks[content["task_id"]],
        turns=tuple(_read_turns(content["turns"])),
        messages=_MESSAGES.validate_python(content["messages"]),
        outcome=Outcome(content["outcome"]),
        reward_parts=content["reward_parts"],
        reward_reasons=content.get("reward_reasons", {}),
        failure=Failure(**failure) if failure else None,
        **{name: content[name] for name in _PLAIN},
    )


def _read_turns(turns: Sequence[Mapping[str, Any]]) -> Iterator[Turn]:
    context: tuple[int, ...] = ()
    for turn in turns:
        completion = Completion(
            token_ids=tuple(turn["token_ids"]),
            logprobs=tuple(turn["logprobs"]),
            versions=tuple(version for version, tokens in turn["versions"] for _ in range(tokens)),
            finish_reason=FinishReason(turn["finish_reason"]),
        )
        prompt_ids = (*context, *turn["added_ids"])
        calls = tuple(CallRecord(tool, CallOutcome(ended), seconds) for tool, ended, seconds in turn.get("calls", ()))
        yield Turn(prompt_ids=prompt_ids, completion=completion, reward=turn.get("reward", 0.0), calls=calls)
        context = (*prompt_ids, *completion.token_ids)

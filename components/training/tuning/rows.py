"""Rows of files -> conversations and pairs of answers, and a list of all that are neither, by file, line and field.

    {"messages": [{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "4"}]}
    {"prompt": "2+2?", "completion": "4"}
    {"prompt": "2+2?", "chosen": "4", "rejected": "5"}

`prompt` is a text, which the environment opens as it opens a task of its own, or a list of messages, which is taken as
it stands; in a row of preferences `messages` may stand in its place. An answer is a text, a message, or a list of
messages that begins with the assistant's; a chosen and a rejected conversation without a prompt share their beginning.
`tools` may list definitions, or be their JSON text; the prompt shows them in place of the environment's. All other
fields are left alone.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from components.environments.rows import read_rows as rows_of_file
from components.environments.tools import Tool, tool_from_definition
from components.errors import DataError, Problem, folded
from components.types import Message, Role, ToolCall


@dataclass(frozen=True, slots=True)
class Opening:
    """What is there before the assistant speaks: messages, or a text that the environment makes them of.

    `tools` is None where they are those of the environment.
    """

    messages: tuple[Message, ...] = ()
    task: str = ""
    tools: tuple[Tool, ...] | None = None


@dataclass(frozen=True, slots=True)
class Talk:
    """What is said after an opening; it begins and ends with the assistant. `where` is the file and the line."""

    opening: Opening
    answers: tuple[tuple[Message, ...], ...]
    where: str = ""


@dataclass(frozen=True, slots=True)
class Rows:
    """What the files held. `problems` are the rows left out, `below` counts those with too small a reward."""

    talks: tuple[Talk, ...]
    problems: tuple[Problem, ...] = ()
    below: int = 0


def read_rows(files: Sequence[str], *, compares: bool, min_reward: float | None, skip: bool) -> Rows:
    """The rows of all files, in their order: of one answer each, or of a chosen and a rejected one.

    Raises DataError that lists the bad rows, of many alike the first, unless they are to be skipped, and when no row is
    left.
    """
    talks: list[Talk] = []
    problems: list[Problem] = []
    below = 0
    ids: set[tuple[str, str]] = set()
    for place, values in (each for file in files for each in rows_of_file(file, problems)):
        try:
            _refuse_doubled(values, place, ids)
            if min_reward is not None and not _reward(values, place) >= min_reward:
                below += 1
                continue
            talks.append(_preference(values, place) if compares else _conversation(values, place))
        except DataError as error:
            problems += error.problems
    if problems and not skip:
        raise DataError(folded(problems))
    if not talks:
        lower = "" if min_reward is None else f", {below} have a lower reward than {min_reward}"
        message = f"no row is left: {len(problems)} are bad{lower}" if problems or below else "hold no row"
        raise DataError([*folded(problems), Problem("tune.rows.files", ", ".join(files), message)])
    return Rows(tuple(talks), tuple(problems), below)


def _conversation(fields: Mapping[str, Any], place: str) -> Talk:
    """Of `messages`, or of `prompt` and `completion`."""
    tools = _tools(fields, place)
    # A table of Parquet has every field in every row.
    if fields.get("messages") is not None:
        messages = _messages(fields["messages"], f"{place}: messages")
        first = next((i for i, message in enumerate(messages) if message.role is Role.ASSISTANT), None)
        if first is None:
            raise DataError(
                Problem(f"{place}: messages", [str(each.role) for each in messages], "the assistant says nothing")
            )
        # What comes behind the last answer, as in a trajectory that a tool ended, is nothing to learn from.
        last = max(i for i, message in enumerate(messages) if message.role is Role.ASSISTANT)
        answer = _answer(messages[first : last + 1], f"{place}: messages")
        return Talk(Opening(messages[:first], tools=tools), (answer,), place)
    answer = _answer(_said(_field(fields, "completion", place), f"{place}: completion"), f"{place}: completion")
    return Talk(_opening(fields, "prompt", place, tools), (answer,), place)


def _preference(fields: Mapping[str, Any], place: str) -> Talk:
    """Of `chosen` and `rejected` after a prompt, or of two conversations that share their beginning."""
    tools = _tools(fields, place)
    pair = [_said(_field(fields, name, place), f"{place}: {name}") for name in ("chosen", "rejected")]
    whole = [bool(each) and each[0].role is not Role.ASSISTANT for each in pair]
    if all(whole):
        shared = _shared(*pair)
        opening = Opening(pair[0][:shared], tools=tools)
        pair = [each[shared:] for each in pair]
    else:
        opening = _opening(fields, "messages" if fields.get("messages") is not None else "prompt", place, tools)
    chosen, rejected = (
        _answer(each, f"{place}: {name}") for each, name in zip(pair, ("chosen", "rejected"), strict=True)
    )
    if chosen == rejected:
        raise DataError(Problem(f"{place}: rejected", rejected[0].content, "is the same as the chosen answer"))
    return Talk(opening, (chosen, rejected), place)


def _shared(one: Sequence[Message], other: Sequence[Message]) -> int:
    """How many messages two conversations begin with alike, and not one of the assistant's that differs."""
    pairs = zip(one, other, strict=False)
    return next((i for i, (left, right) in enumerate(pairs) if left != right), min(len(one), len(other)))


def _opening(fields: Mapping[str, Any], name: str, place: str, tools: tuple[Tool, ...] | None) -> Opening:
    value = _field(fields, name, place)
    if isinstance(value, str):
        if not value.strip():
            raise DataError(Problem(f"{place}: {name}", value, "must not be empty"))
        return Opening(task=value, tools=tools)
    messages = _messages(value, f"{place}: {name}")
    if messages[-1].role is Role.ASSISTANT:
        raise DataError(
            Problem(f"{place}: {name}", messages[-1].content, "ends with the assistant; an answer follows it")
        )
    return Opening(messages, tools=tools)


def _said(value: Any, where: str) -> tuple[Message, ...]:
    if isinstance(value, str):
        if not value.strip():
            raise DataError(Problem(where, value, "must not be empty"))
        return (Message(Role.ASSISTANT, value),)
    return _messages([value] if isinstance(value, Mapping) else value, where)


def _answer(messages: tuple[Message, ...], where: str) -> tuple[Message, ...]:
    """Raises DataError for what no episode could be: the assistant begins and ends, and is answered in between."""
    roles = [message.role for message in messages]
    if not roles or roles[0] is not Role.ASSISTANT or roles[-1] is not Role.ASSISTANT:
        raise DataError(Problem(where, [*map(str, roles)], "must begin and end with what the assistant says"))
    if any(one is other is Role.ASSISTANT for one, other in pairwise(roles)):
        raise DataError(Problem(where, [*map(str, roles)], "has two messages of the assistant in a row; make them one"))
    if Role.SYSTEM in roles:
        raise DataError(Problem(where, [*map(str, roles)], "has a system message behind the first answer"))
    return messages


def _messages(value: Any, where: str) -> tuple[Message, ...]:
    if not isinstance(value, list) or not value:
        raise DataError(Problem(where, value, "must be a list of messages, and not empty"))
    return tuple(_message(each, f"{where}[{number}]") for number, each in enumerate(value))


def _message(value: Any, where: str) -> Message:
    if not isinstance(value, Mapping):
        raise DataError(Problem(where, value, "must be a message: an object with role and content"))
    role, content = value.get("role"), value.get("content")
    if role not in tuple(Role):
        raise DataError(Problem(f"{where}.role", role, f"must be one of {', '.join(Role)}"))
    if value.get("malformed_calls"):
        raise DataError(
            Problem(f"{where}.malformed_calls", value["malformed_calls"], "nobody should learn to write one")
        )
    calls = tuple(_call(each, f"{where}.tool_calls[{i}]") for i, each in enumerate(value.get("tool_calls") or ()))
    if calls and role != Role.ASSISTANT:
        raise DataError(Problem(f"{where}.tool_calls", role, "only the assistant calls tools"))
    if content is None and calls:
        content = ""
    if not isinstance(content, str) or (role == Role.ASSISTANT and not content.strip() and not calls):
        raise DataError(Problem(f"{where}.content", content, "must be a text, and not empty where nothing is called"))
    name = value.get("name")
    return Message(Role(role), content, tool_calls=calls, name=name if isinstance(name, str) else None)


def _call(value: Any, where: str) -> ToolCall:
    """As chat APIs write it, `{"function": {"name", "arguments"}}` with arguments as text, or without the wrapper."""
    inner = value.get("function", value) if isinstance(value, Mapping) else None
    if not isinstance(inner, Mapping) or not isinstance(inner.get("name"), str):
        raise DataError(Problem(where, value, "must have a name and arguments"))
    arguments = inner.get("arguments") or {}
    if isinstance(arguments, str):
        arguments = _parsed(arguments, f"{where}.arguments")
    if not isinstance(arguments, Mapping):
        raise DataError(Problem(f"{where}.arguments", arguments, "must be an object"))
    return ToolCall(inner["name"], dict(arguments))


def _parsed(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(Problem(where, text, f"not JSON: {error}")) from None


def _tools(fields: Mapping[str, Any], place: str) -> tuple[Tool, ...] | None:
    found = fields.get("tools")
    if found is None:
        return None
    if isinstance(found, str):
        found = _parsed(found, f"{place}: tools")
    if not isinstance(found, list) or not all(isinstance(each, Mapping) for each in found):
        raise DataError(Problem(f"{place}: tools", found, "must be a list of tool definitions"))
    return tuple(tool_from_definition(each, str, where=f"{place}: tools[{i}]") for i, each in enumerate(found))


def _refuse_doubled(fields: Mapping[str, Any], place: str, ids: set[tuple[str, str]]) -> None:
    """Raises DataError where an earlier row of the file has the same `id`; a row needs none."""
    known = (place.rpartition(":")[0], str(fields.get("id")))
    if fields.get("id") is not None and known in ids:
        raise DataError(Problem(f"{place}: id", fields["id"], "an earlier row has this id"))
    ids.add(known)


def _reward(fields: Mapping[str, Any], place: str) -> float:
    reward = fields.get("reward")
    if reward is None:
        # A failed episode has none: it is as good as below every bound.
        return float("-inf")
    if isinstance(reward, bool) or not isinstance(reward, int | float):
        raise DataError(Problem(f"{place}: reward", reward, "must be a number; tune.rows.min_reward looks at it"))
    return float(reward)


def _field(fields: Mapping[str, Any], name: str, place: str) -> Any:
    """Raises DataError for a field that is missing or null."""
    if name not in fields:
        raise DataError(Problem(f"{place}: {name}", sorted(fields), "the row has other fields, but not this one"))
    value = fields[name]
    # A number is as good as its text; true is none.
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str | list | Mapping):
        raise DataError(Problem(f"{place}: {name}", value, "must be a text or messages"))
    return value

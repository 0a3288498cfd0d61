"""The episodes of an optimizer step -> the lines of `trajectories.jsonl`: what a person reads of them, token by token.

Of each group the best and the worst member are written, of the step the stalest and the one with most tool errors, and
every failed attempt. `turns` holds what the policy saw and sampled, laid out so that it can be coloured:

    {"prompt": "Q: 2+2\nA:", "prompt_tokens": 9, "tokens": ["fo", "ur", "<end>"], "logprobs": [-0.1, -0.002, 0],
     "versions": [[3, 2], [4, 1]], "finish": "stop"}

`prompt` is what came since the turn before, none of it trained on; `versions` are run lengths. `gaps`, where they are
known, are the trainer's log-probs at the update minus those, which includes what it has learned since. The texts of the
tokens join to the text of the turn: of a character that several tokens make, all but the last are empty. Past
STEP_BYTES a step's lines have no `turns`, and past twice as much only failures and the best of each group are written.
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from itertools import groupby
from typing import Any

import numpy as np

from components.rollout.tokenizer import REPLACEMENT, Tokenizer
from components.types import Group, Message, Trajectory

STEP_BYTES = 128 * 1024
"""How many bytes of a step's lines may hold tokens."""

LONGEST_PROMPT = 2_000
LONGEST_TEXT = 16_000
"""Characters of one prompt and of one message that are kept: the beginning and the end."""

Logprobs = Mapping[tuple[str, int], np.ndarray]
"""{(task, member): the trainer's log-probs of its sampled tokens}."""

_LONGEST_CHARACTER = 8  # tokens that a character of UTF-8 can be spread over, with room for a joiner


def token_texts(tokenizer: Tokenizer, ids: Sequence[int]) -> list[str]:
    """What each token adds to the text: `"".join(token_texts(t, ids)) == t.decode(ids)`, but for a decoder that looks
    ahead. A token that ends in the middle of a character adds nothing, the one that completes it adds all of it.
    """
    texts: list[str] = []
    start, done, known = 0, 0, ""  # `known` is the text of ids[start:done]
    for end in range(1, len(ids) + 1):
        text = tokenizer.decode(ids[start:end])
        is_open = text.endswith(REPLACEMENT) and end - done < _LONGEST_CHARACTER and end < len(ids)
        if is_open:
            texts.append("")
            continue
        texts.append(text[len(known) :])
        # One token stays as context: some decoders write a space between two tokens and none before the first.
        start, done = done, end
        known = tokenizer.decode(ids[start:done])
    return texts


def chosen(groups: Iterable[Group], version: int) -> list[Trajectory]:
    """The members of a step that are worth reading, the most telling first: the best and the worst of each group, the
    one with the oldest token for its version, the one with most tool errors."""
    groups = [group for group in groups if group.trajectories]
    first = [max(group.trajectories, key=_reward) for group in groups]
    second = [min(group.trajectories, key=_reward) for group in groups]
    members = [member for group in groups for member in group.trajectories]
    odd = []
    if members:
        stalest = min(members, key=lambda each: each.oldest_version)
        clumsiest = max(members, key=lambda each: each.tool_errors + each.malformed_calls)
        odd += [stalest] if stalest.generated_tokens and stalest.oldest_version < version else []
        odd += [clumsiest] if clumsiest.tool_errors + clumsiest.malformed_calls else []
    unique = {(each.task.id, each.epoch, each.member, each.attempt): each for each in (*odd, *first, *second)}
    return list(unique.values())


class TrajectoryLines:
    """Lines of the run's trajectories, step by step, within `limit` bytes of tokens each. Used by one thread."""

    def __init__(self, tokenizer: Tokenizer | None = None, *, limit: int = STEP_BYTES) -> None:
        self._tokenizer = tokenizer
        self._limit = limit
        self._spent = 0

    def failed(self, step: int, trajectory: Trajectory) -> str:
        """The line of a failed attempt. It is always written; of very many the texts are left out."""
        return self._line(step, trajectory, with_messages=self._spent < 4 * self._limit)

    def step(self, step: int, groups: Sequence[Group], logprobs: Logprobs | None = None) -> list[str]:
        """The lines of an optimizer step, which ends here; `logprobs` are the trainer's of what it trained on."""
        logprobs = logprobs or {}
        kept = {id(max(group.trajectories, key=_reward)) for group in groups if group.trajectories}
        lines = []
        for trajectory in chosen(groups, step - 1):
            if id(trajectory) in kept or self._spent < 2 * self._limit:
                lines.append(self._line(step, trajectory, logprobs.get((trajectory.task.id, trajectory.member))))
        self._spent = 0
        return lines

    def _line(
        self, step: int, trajectory: Trajectory, logprobs: np.ndarray | None = None, *, with_messages: bool = True
    ) -> str:
        record = trajectory_record(step, trajectory, self._tokenizer if self._spent < self._limit else None, logprobs)
        # In ASCII: a policy can write half of a surrogate pair, which no UTF-8 file can hold.
        line = json.dumps(record if with_messages else record | {"messages": []}, default=str, separators=(",", ":"))
        self._spent += len(line)
        return line


def trajectory_record(
    step: int, trajectory: Trajectory, tokenizer: Tokenizer | None = None, logprobs: np.ndarray | None = None
) -> dict[str, Any]:
    """A trajectory as `trajectories.jsonl` holds it; without a tokenizer it has no `turns`.

    `calls` are its calls of tools, each [turn, tool, outcome, seconds].
    """
    return {
        "step": step,
        "task_id": trajectory.task.id,
        "epoch": trajectory.epoch,
        "member": trajectory.member,
        "attempt": trajectory.attempt,
        "outcome": trajectory.outcome,
        "cut_by": trajectory.cut_by,
        "reward": trajectory.reward,
        "reward_parts": dict(trajectory.reward_parts),
        "reward_reasons": {name: _shortened(why, LONGEST_PROMPT) for name, why in trajectory.reward_reasons.items()},
        "failure": asdict(trajectory.failure) if trajectory.failure else None,
        "tokens": trajectory.generated_tokens,
        "staleness": max(0, step - 1 - trajectory.oldest_version) if trajectory.generated_tokens else None,
        "seconds": round(trajectory.seconds, 3),
        "tool_seconds": round(trajectory.tool_seconds, 3),
        "tool_calls": trajectory.tool_calls,
        "tool_errors": trajectory.tool_errors,
        "malformed_calls": trajectory.malformed_calls,
        "calls": [
            [number, call.tool, call.outcome, round(call.seconds, 4)]
            for number, turn in enumerate(trajectory.turns)
            for call in turn.calls
        ],
        "messages": [_message(message) for message in trajectory.messages],
        **({"turns": _turns(trajectory, tokenizer, logprobs)} if tokenizer and trajectory.turns else {}),
    }


def _message(message: Message) -> dict[str, Any]:
    shortened = {
        key: _shortened(text, LONGEST_TEXT)
        for key, text in (("content", message.content), ("thinking", message.thinking))
    }
    record = asdict(message) | shortened
    return {key: value for key, value in record.items() if value or key == "content"}


def _turns(trajectory: Trajectory, tokenizer: Tokenizer, logprobs: np.ndarray | None) -> list[dict[str, Any]]:
    # Of another attempt, or of another epoch in the same step, there are as good as never equally many.
    is_known = logprobs is not None and len(logprobs) == trajectory.generated_tokens
    records = []
    seen = told = 0
    for turn in trajectory.turns:
        completion = turn.completion
        added = turn.prompt_ids[seen:]
        seen = len(turn.prompt_ids) + len(completion.token_ids)
        record: dict[str, Any] = {
            "prompt": _shortened(tokenizer.decode(added), LONGEST_PROMPT),
            "prompt_tokens": len(added),
            "tokens": token_texts(tokenizer, completion.token_ids),
            "logprobs": [_rounded(value) for value in completion.logprobs],
            "versions": [[version, len(list(run))] for version, run in groupby(completion.versions)],
            "finish": completion.finish_reason,
        }
        if logprobs is not None and is_known:
            gaps = logprobs[told : told + len(completion.token_ids)] - np.asarray(completion.logprobs)
            record["gaps"] = [_rounded(float(gap), 5) for gap in gaps]
            told += len(completion.token_ids)
        records.append(record | ({"reward": turn.reward} if turn.reward else {}))
    return records


def _rounded(value: float, digits: int = 3) -> float | None:
    """JSON has no infinity."""
    return round(value, digits) + 0.0 if math.isfinite(value) else None


def _reward(trajectory: Trajectory) -> float:
    """A failed one counts as the worst of its group, so that it is not its best."""
    return float("-inf") if trajectory.reward is None else trajectory.reward


def _shortened(text: str, longest: int) -> str:
    if len(text) <= longest:
        return text
    head = longest * 2 // 3
    return f"{text[:head]}\n[… {len(text) - longest} characters …]\n{text[len(text) - (longest - head) :]}"

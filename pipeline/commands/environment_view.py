"""An episode -> text in a terminal: what the policy reads, what it writes token by token, what it was worth.

Tokens that the policy samples, which are trained on, are coloured one by one, or stand in [brackets] where there is no
colour; what it only reads is dim, or plain.
"""

from collections.abc import Sequence
from typing import Any

from components.rollout.tokenizer import Tokenizer
from components.training.trajectory_lines import token_texts
from components.types import Message, Task, Trajectory

_BOLD, _DIM, _RESET = "\x1b[1m", "\x1b[2m", "\x1b[0m"
_SAMPLED = ("\x1b[30;42m", "\x1b[30;46m")


class View:
    """Prints as the episode goes on. `coloured` uses ANSI colours."""

    def __init__(self, tokenizer: Tokenizer, *, coloured: bool) -> None:
        self._tokenizer = tokenizer
        self._coloured = coloured
        self._read = 0

    def begin(self, task: Task) -> None:
        """The task."""
        self._head(f"task {task.id}" + (f", gold answer {task.answer}" if task.answer is not None else ""))

    def reads(self, turn: int, prompt_ids: Sequence[int]) -> None:
        """What is new to the policy since its last turn."""
        added = prompt_ids[self._read :]
        self._read = len(prompt_ids)
        self._head(f"turn {turn + 1}: reads {len(added)} tokens (mask 0)")
        print(self._painted(_shown(self._tokenizer.decode(added)), _DIM))

    def writes(self, turn: int, ids: Sequence[int]) -> None:
        """What the policy samples, token by token."""
        self._read += len(ids)
        self._head(f"turn {turn + 1}: writes {len(ids)} tokens (mask 1)")
        texts = [_shown(text) for text in token_texts(self._tokenizer, ids)]
        if self._coloured:
            print("".join(self._painted(text, _SAMPLED[i % 2]) for i, text in enumerate(texts)))
        else:
            print("".join(f"[{text}]" for text in texts))

    def end(self, trajectory: Trajectory) -> None:
        """The messages, how it ended, and the reward with its parts and reasons."""
        self._head("messages")
        for message in trajectory.messages:
            for line in _message_lines(message):
                print(_shown(line))
        self._head("outcome")
        figures = self.figures(trajectory)
        cut = f", cut by {trajectory.cut_by}" if trajectory.cut_by else ""
        print(
            f"{trajectory.outcome}{cut}: {figures['turns']} turns, {figures['sampled_tokens']} of {figures['tokens']} "
            f"tokens sampled, {trajectory.tool_calls} tool calls ({trajectory.tool_errors} errors), "
            f"{trajectory.malformed_calls} malformed"
        )
        if trajectory.failure is not None:
            print(_shown(f"failed at the {trajectory.failure.kind}: {trajectory.failure.message}"))
            return
        credited = [turn.reward for turn in trajectory.turns]
        by_turn = f" (by turn: {', '.join(f'{each:g}' for each in credited)})" if any(credited) else ""
        print(self._painted(f"reward {trajectory.reward:g}", _BOLD) + by_turn)
        for name, part in trajectory.reward_parts.items():
            reason = trajectory.reward_reasons.get(name)
            print(_shown(f"  {name}: {part:g}" + (f", as {reason}" if reason else "")))

    def figures(self, trajectory: Trajectory) -> dict[str, Any]:
        """The same as numbers."""
        last = trajectory.turns[-1] if trajectory.turns else None
        return {
            "task": trajectory.task.id,
            "outcome": trajectory.outcome,
            "reward": trajectory.reward,
            "reward_parts": dict(trajectory.reward_parts),
            "reward_reasons": dict(trajectory.reward_reasons),
            "turns": len(trajectory.turns),
            "tokens": len(last.prompt_ids) + len(last.completion.token_ids) if last else 0,
            "sampled_tokens": trajectory.generated_tokens,
            "tool_calls": trajectory.tool_calls,
            "tool_errors": trajectory.tool_errors,
            "malformed_calls": trajectory.malformed_calls,
            "failure": trajectory.failure.message if trajectory.failure else None,
        }

    def _head(self, text: str) -> None:
        print(self._painted(_shown(f"--- {text}"), _BOLD), flush=True)

    def _painted(self, text: str, colour: str) -> str:
        if not self._coloured:
            return text
        # A colour that runs over the end of a line would paint the rest of the terminal's line.
        return "\n".join(f"{colour}{line}{_RESET}" if line else "" for line in text.split("\n"))


def _message_lines(message: Message) -> list[str]:
    name = f" {message.name}" if message.name else ""
    lines = [f"{message.role}{name}: {message.content}"] if message.content or not message.tool_calls else []
    lines += [f"{message.role} calls {call.name} {dict(call.arguments)}" for call in message.tool_calls]
    return lines + [f"{message.role} tries to call, but {call.reason}" for call in message.malformed_calls]


def _shown(text: str) -> str:
    """Without what would steer the terminal: a model, or a tool, may have written it."""
    return "".join(character if _is_shown(character) else "\N{REPLACEMENT CHARACTER}" for character in text)


def _is_shown(character: str) -> bool:
    return character.isprintable() or character in "\n\t\N{NO-BREAK SPACE}"

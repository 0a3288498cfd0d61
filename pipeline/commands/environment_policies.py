"""A file of messages, or a person at a terminal -> a policy that says them."""

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from components.errors import CancelledEpisodeError, DataError, Problem
from components.rollout.renderer import Renderer
from components.rollout.tokenizer import Tokenizer
from components.telemetry.progress import say
from components.types import Completion, FinishReason, Message, Policy, Role, SequenceId, ToolCall
from pipeline.commands.environment_view import View

Speaker = Callable[[int], Awaitable[Sequence[int]]]
"""The number of a turn -> the tokens that the policy samples in it."""
SEPARATOR = "---"


def scripted(speaker: Speaker, view: View) -> Policy:
    """A policy that says what the speaker says, in view of everybody."""

    async def policy(prompt_ids: Sequence[int], *, sequence: SequenceId, max_tokens: int) -> Completion:
        view.reads(sequence.turn, prompt_ids)
        ids = tuple(await speaker(sequence.turn))[:max_tokens]
        view.writes(sequence.turn, ids)
        return Completion(ids, (0.0,) * len(ids), (0,) * len(ids), FinishReason.STOP)

    return policy


def speaker_of_file(messages: Sequence[Sequence[int]]) -> Speaker:
    """Says one message a turn, and ends the episode when there is none left."""

    async def speak(turn: int) -> Sequence[int]:
        if turn >= len(messages):
            raise CancelledEpisodeError(f"the script ends after {len(messages)} messages, and the episode goes on")
        return messages[turn]

    return speak


def human(renderer: Renderer, tokenizer: Tokenizer) -> Speaker:
    """Asks on standard error, and reads what the model would write up to an empty line."""

    async def speak(turn: int) -> Sequence[int]:
        say("Your turn: write what the model would write, and then an empty line. (Ctrl-D gives up.)")
        lines: list[str] = []
        while (line := await asyncio.to_thread(sys.stdin.readline)).strip():
            lines.append(line)
        if not line and not lines:
            raise CancelledEpisodeError("the person at the terminal gave up")
        return ids_of_text("".join(lines).removesuffix("\n"), renderer, tokenizer)

    return speak


def ids_of_text(text: str, renderer: Renderer, tokenizer: Tokenizer) -> list[int]:
    """A raw text as a policy samples it: its tokens, and the token that ends a turn."""
    return [*tokenizer.encode(text), *renderer.stop_ids[:1]]


def read_script(path: Path) -> list[str | Message]:
    """The messages of a file: JSON lines become Messages, anything else raw texts with lines of --- between them.

    Raises DataError that names the line which is no message, and where the file holds none.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise DataError(Problem(str(path), error.object[:20], f"not UTF-8 at byte {error.start}")) from None
    if not text.strip():
        raise DataError(Problem(str(path), text, "holds no message"))
    lines = [(number, line) for number, line in enumerate(text.split("\n"), start=1) if line.strip()]
    if lines and all(line.lstrip().startswith("{") for _, line in lines):
        return [_message(line, f"{path}:{number}") for number, line in lines]
    parts: list[list[str]] = [[]]
    for line in text.split("\n"):
        if line.strip() == SEPARATOR:
            parts.append([])
        else:
            parts[-1].append(line)
    return ["\n".join(part).strip("\n") for part in parts]


def _message(line: str, where: str) -> Message:
    try:
        said = json.loads(line)
        if not said.keys() & {"content", "tool_calls"}:
            raise KeyError("neither content nor tool_calls")
        calls = tuple(ToolCall(call["name"], call.get("arguments", {})) for call in said.get("tool_calls", ()))
        return Message(Role.ASSISTANT, str(said.get("content", "")), tool_calls=calls)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        message = f'write {{"content": "...", "tool_calls": [{{"name": "...", "arguments": {{}}}}]}}: {error}'
        raise DataError(Problem(where, line, message)) from None

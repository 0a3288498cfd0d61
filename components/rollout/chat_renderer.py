"""Conversations as turns between special tokens, in any of the forms of chat_forms.py.

What a thinking block holds stays in the context as it was sampled: nothing is taken out of earlier turns.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from components.environments.tools import Tool
from components.errors import ConfigError, DataError, Problem
from components.rollout.chat_forms import ChatForm
from components.rollout.pieces import END_THINK, THINK, Mark, Pieces, encode, joined
from components.rollout.thinking import split_thinking
from components.rollout.tokenizer import Tokenizer
from components.rollout.tool_calls import CallFormat
from components.types import Completion, Message, Role

Thinking = Literal["free", "off", "open"]
"""Whether the policy decides to think (free), finds an empty block behind the prompt (off), or an opened one (open)."""

_BEHIND_PROMPT: dict[Thinking, Pieces] = {
    "free": (),
    "off": (THINK, "\n\n", END_THINK, "\n\n"),
    "open": (THINK, "\n"),
}


@dataclass(frozen=True, slots=True)
class _Turn:
    """`replies` is true for replies of tools: those that follow each other are one turn in most forms."""

    role: str
    pieces: Pieces
    replies: bool = False


class ChatRenderer:
    """A ChatForm over a tokenizer. `ends` are more tokens that end a turn, such as a checkpoint's own list has them."""

    stop_strings: tuple[str, ...] = ()

    def __init__(
        self,
        tokenizer: Tokenizer,
        form: ChatForm,
        *,
        calls: CallFormat | None = None,
        thinking: Thinking = "free",
        ends: Sequence[int] = (),
    ) -> None:
        self._tokenizer = tokenizer
        self._form = form
        self._calls = calls or form.calls
        self._thinking: Thinking = thinking
        self._open = _required(tokenizer, form.opens)
        self._close = _required(tokenizer, form.closes)
        for piece in form.header:
            if isinstance(piece, Mark):
                _required(tokenizer, piece.text)
        begin = tokenizer.bos_token_id if form.begins is None else _required(tokenizer, form.begins)
        self._begin = [] if begin is None else [begin]
        others = [tokenizer.token_id(token) for token in (*form.also_closes, *form.ends)]
        self._closing = (self._close, *(i for i in others[: len(form.also_closes)] if i is not None))
        known = (self._close, *(i for i in others if i is not None), *ends)
        self.stop_ids = tuple(dict.fromkeys(known))

    def start(self, messages: Sequence[Message], tools: Sequence[Tool]) -> list[int]:
        """The whole first prompt: what opens the conversation, the messages, the generation prompt."""
        return self._begin + self._encoded(self._opening_turns(messages, tools)) + self._generation_prompt()

    def extend(self, completion: Completion, messages: Sequence[Message]) -> list[int]:
        """The end of the assistant's turn where the policy did not write it, the replies, the generation prompt."""
        closed = completion.token_ids[-1:] and completion.token_ids[-1] in self._closing
        closing = ([] if closed else [self._close]) + encode(self._tokenizer, (self._form.gap,))
        return closing + self._encoded(self._turns(messages)) + self._generation_prompt()

    def write(self, message: Message) -> list[int]:
        """The text and the calls, and the token that closes the turn. Raises DataError for what cannot be said so."""
        self._check_sayable(message)
        pieces = self._said(message)
        if self._thinking == "open":
            # The prompt has written the tag and its line break.
            behind: Pieces = (f"{message.thinking}\n", END_THINK, "\n\n")
            pieces = (*behind, *self._answer(message))
        return [*encode(self._tokenizer, pieces), self._close]

    def parse(self, token_ids: Sequence[int], tools: Sequence[Tool]) -> Message:
        """The assistant's text without the token that ended it, its calls, and what it thought before."""
        ids = list(token_ids)
        if ids and ids[-1] in self.stop_ids:
            ids.pop()
        text = self._tokenizer.decode(ids)
        thinking, rest = split_thinking(text, self._calls.opens, opened=self._thinking == "open")
        parsed = self._calls.parse(rest, tools)
        return Message(Role.ASSISTANT, parsed.content, parsed.calls, parsed.malformed, thinking=thinking)

    def _opening_turns(self, messages: Sequence[Message], tools: Sequence[Tool]) -> list[_Turn]:
        has_system = bool(messages) and messages[0].role is Role.SYSTEM
        system = messages[0].content if has_system else None
        listed = self._calls.instructions(tools) if tools else ()
        first, before_user = self._form.opening(system, listed)
        turns = self._turns(messages[1:] if has_system else messages)
        if before_user:
            if turns and turns[0].role == "user" and not turns[0].replies:
                turns[0] = _Turn("user", (*before_user, *turns[0].pieces))
            else:
                turns.insert(0, _Turn("user", before_user))
        return turns if first is None else [_Turn(self._form.system, first), *turns]

    def _turns(self, messages: Sequence[Message]) -> list[_Turn]:
        """Turns of a side: replies that follow each other are one, and in a form that alternates all of one side."""
        turns: list[_Turn] = []
        for message in messages:
            turn = self._turn(message)
            last = turns[-1] if turns else None
            gap = self._gap(last, turn) if last is not None else None
            if last is None or gap is None:
                turns.append(turn)
            else:
                turns[-1] = _Turn(last.role, joined((last.pieces, turn.pieces), gap), last.replies and turn.replies)
        return turns

    def _gap(self, last: _Turn, turn: _Turn) -> str | None:
        """What joins two turns to one; None where they stay two."""
        if last.replies and turn.replies:
            return self._form.between_replies
        return "\n\n" if self._form.alternates and last.role == turn.role else None

    def _turn(self, message: Message) -> _Turn:
        form = self._form
        if message.role is Role.TOOL:
            return _Turn(form.reply_role, form.reply(message.content), replies=True)
        if message.role is Role.ASSISTANT:
            return _Turn(form.assistant, self._said(message))
        text = message.content.strip() if form.strips else message.content
        return _Turn(form.system if message.role is Role.SYSTEM else "user", (text,))

    def _said(self, message: Message) -> Pieces:
        thought: Pieces = (THINK, f"\n{message.thinking}\n", END_THINK, "\n\n") if message.thinking else ()
        return (*thought, *self._answer(message))

    def _answer(self, message: Message) -> Pieces:
        calls = joined(map(self._calls.pieces, message.tool_calls), self._calls.between)
        stripped = self._form.strips or (calls and self._calls.strips)
        content = message.content.strip() if stripped else message.content
        if not calls:
            return (content,)
        return (content, self._calls.before, *calls) if content else calls

    def _encoded(self, turns: Sequence[_Turn]) -> list[int]:
        ids: list[int] = []
        for turn in turns:
            # The gap is text before a token, so it stands alone.
            ids += [self._open, *encode(self._tokenizer, (turn.role, *self._form.header, *turn.pieces)), self._close]
            ids += encode(self._tokenizer, (self._form.gap,))
        return ids

    def _generation_prompt(self) -> list[int]:
        pieces = (self._form.assistant, *self._form.header, *_BEHIND_PROMPT[self._thinking])
        return [self._open, *encode(self._tokenizer, pieces)]

    def _check_sayable(self, message: Message) -> None:
        """Whether a policy that samples this would be read as saying it. Raises DataError."""
        calls = self._calls
        if message.malformed_calls:
            raise _unsayable(message, "holds a malformed call, which nobody should learn to write")
        if message.thinking and self._thinking == "off":
            raise _unsayable(message, "holds thinking, which rendering.thinking = off leaves no room for")
        if END_THINK.text in message.thinking:
            raise _unsayable(message, f"holds thinking with {END_THINK.text} in it, which would end there")
        if split_thinking(message.content, calls.opens)[0]:
            raise _unsayable(message, f"holds {THINK.text} in its text; put what was thought into `thinking`")
        if message.tool_calls and message.content.strip() and not calls.opens:
            raise _unsayable(message, "holds text and a call; in this form a message is one of both")
        read = calls.parse(message.content, ())
        if read.calls or read.malformed:
            raise _unsayable(message, "holds text that reads as a tool call; put it into `tool_calls`")


def _unsayable(message: Message, hint: str) -> DataError:
    return DataError(Problem("message", message.content or message.thinking, hint))


def _required(tokenizer: Tokenizer, token: str) -> int:
    found = tokenizer.token_id(token)
    if found is None:
        hint = "the tokenizer has no such token; choose the renderer that the model was trained with, or plain"
        raise ConfigError(Problem("renderer", token, hint))
    return found

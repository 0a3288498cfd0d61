"""Messages <-> token ids, by appending only.

`start` renders the first prompt. From then on what was sampled is never rendered or tokenised again: `extend` gives the
ids that come after it. So the ids of a turn are always a prefix of the next turn's, and ids that the policy did not
sample (a closing token that it did not write, replies, the next generation prompt) are told from those that it did by
their position alone. `write` gives the ids that a policy would sample to say a message: what it is taught by example.
"""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from components.environments.tools import Tool
from components.errors import ConfigError, Problem
from components.rollout.chat_renderer import CHATML, GEMMA, ChatRenderer
from components.rollout.line_renderer import COMPACT, PLAIN, LineRenderer
from components.rollout.tokenizer import Tokenizer
from components.rollout.tool_calls import HERMES, CallFormat
from components.types import Completion, Message

CHAT_FORMS = {"chatml": CHATML, "gemma": GEMMA}
LINE_FORMS = {"plain": PLAIN, "compact": COMPACT}


@runtime_checkable
class Renderer(Protocol):
    """Translates for one model. Holds no state of an episode: one serves all episodes."""

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """Tokens that end a turn. The policy samples them, so they are part of the completion."""
        ...

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """Texts that end a turn; the token that completes one is part of the completion."""
        ...

    def start(self, messages: Sequence[Message], tools: Sequence[Tool]) -> list[int]:
        """The whole first prompt, with the generation prompt at its end."""
        ...

    def extend(self, completion: Completion, messages: Sequence[Message]) -> list[int]:
        """What comes after a completion: the end of the turn where the policy did not write it, the replies, the
        generation prompt."""
        ...

    def write(self, message: Message) -> list[int]:
        """What a policy samples to say this assistant message after a prompt, with the token that ends its turn.

        Raises DataError for one that cannot be said in this form.
        """
        ...

    def parse(self, token_ids: Sequence[int], tools: Sequence[Tool]) -> Message:
        """The assistant message that the policy sampled. Never raises."""
        ...


def make_renderer(name: str, tokenizer: Tokenizer, *, calls: CallFormat = HERMES) -> Renderer:
    """The renderer of a name: chatml, gemma (they write tool calls as `calls` says), plain or compact.

    Raises ConfigError for an unknown name, and when the tokenizer lacks a token of the form.
    """
    if name in CHAT_FORMS:
        return ChatRenderer(tokenizer, CHAT_FORMS[name], calls)
    if name in LINE_FORMS:
        return LineRenderer(tokenizer, LINE_FORMS[name])
    known = ", ".join([*CHAT_FORMS, *LINE_FORMS])
    raise ConfigError(Problem("renderer", name, f"no such renderer; known: {known}"))


def characters_of(name: str) -> str:
    """The characters that a line form itself writes, each once: the start of a character tokenizer's alphabet."""
    if name not in LINE_FORMS:
        raise ConfigError(Problem("renderer", name, f"only {', '.join(LINE_FORMS)} work on single characters"))
    return "".join(sorted(set(LINE_FORMS[name].characters)))

"""Messages <-> token ids, by appending only.

`start` renders the first prompt. From then on what was sampled is never rendered or tokenised again: `extend` gives the
ids that come after it. So the ids of a turn are always a prefix of the next turn's, and ids that the policy did not
sample (a closing token that it did not write, replies, the next generation prompt) are told from those that it did by
their position alone. `write` gives the ids that a policy would sample to say a message: what it is taught by example.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, get_args, runtime_checkable

from components.config import config, dump
from components.environments.tools import Tool
from components.errors import ConfigError, Problem
from components.rollout import chat_forms
from components.rollout.chat_forms import LLAMA3_DATE, ChatForm
from components.rollout.chat_renderer import ChatRenderer, Thinking
from components.rollout.line_renderer import COMPACT, PLAIN, LineRenderer
from components.rollout.tokenizer import Tokenizer
from components.rollout.tool_calls import HERMES, HERMES_OR_BARE
from components.types import Completion, Message

RendererName = Literal[
    "auto",
    "chatml",
    "smollm2",
    "qwen2_5",
    "qwen3",
    "qwen3_coder",
    "llama3",
    "gemma3",
    "gemma2",
    "plain",
    "compact",
]
"""`chatml` takes its default system line from the checkpoint's own template; `auto` chooses by what it brings."""

LINE_FORMS = {"plain": PLAIN, "compact": COMPACT}
_DEFAULT_LINES = (chat_forms.SMOLLM2_SYSTEM, chat_forms.QWEN2_5_SYSTEM)


@config
class RenderingConfig:
    """What the form of a family leaves open. A key that the renderer at hand has no use for is an error.

    `date` is the day that Llama 3's system turn names ("26 Jul 2024" unless it is set): the clock is never asked.
    `thinking` is for Qwen 3 and chatml: `off` puts an empty thinking block behind the prompt, as enable_thinking=False
    does in the family's template; `open` begins one, as the templates of models do that always think.
    `past_thinking` is `keep`: what was sampled stays in the context. `system` is for Gemma 2, which has no system role:
    `merge` opens the user's first turn with it, `refuse` (the default) is an error. `bare_calls`, for the forms with
    `<tool_call>` around JSON, also takes a message that is exactly one such object for a call.
    """

    date: str | None = None
    thinking: Thinking = "free"
    past_thinking: Literal["keep", "drop"] = "keep"
    system: Literal["refuse", "merge"] | None = None
    bare_calls: bool = False

    def __post_init__(self) -> None:
        if self.past_thinking == "drop":
            hint = (
                "is not offered: without its thinking a turn is no longer what was sampled, so that every turn would "
                "need a loss of its own; leave it at keep"
            )
            raise ConfigError(Problem("rendering.past_thinking", self.past_thinking, hint))


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


@dataclass(frozen=True, slots=True)
class _Family:
    """How to make the form of a name, and which keys of RenderingConfig it has a use for."""

    form: Callable[[Tokenizer, RenderingConfig], ChatForm]
    keys: tuple[str, ...] = ()


def _always(form: ChatForm) -> Callable[[Tokenizer, RenderingConfig], ChatForm]:
    return lambda tokenizer, settings: form


_FAMILIES = {
    "chatml": _Family(lambda tokenizer, _: chat_forms.chatml(_default_line(tokenizer)), ("thinking", "bare_calls")),
    "smollm2": _Family(_always(chat_forms.SMOLLM2), ("bare_calls",)),
    "qwen2_5": _Family(_always(chat_forms.QWEN2_5), ("bare_calls",)),
    "qwen3": _Family(_always(chat_forms.QWEN3), ("thinking", "bare_calls")),
    "qwen3_coder": _Family(_always(chat_forms.QWEN3_CODER)),
    "llama3": _Family(lambda _, settings: chat_forms.llama3(settings.date or LLAMA3_DATE), ("date",)),
    "gemma3": _Family(_always(chat_forms.GEMMA3), ("bare_calls",)),
    "gemma2": _Family(
        lambda _, settings: chat_forms.gemma2(merges=settings.system == "merge"), ("system", "bare_calls")
    ),
}


@dataclass(frozen=True, slots=True)
class Choice:
    """The renderer of a run: its name, why it is that one, and the settings that it works with. For people."""

    name: str
    why: str
    settings: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        settings = "".join(f", {key} {value}" for key, value in self.settings)
        return f"renderer {self.name} ({self.why}){settings}"


def choose(name: str, tokenizer: Tokenizer, settings: RenderingConfig | None = None) -> Choice:
    """What a name means for this tokenizer: `auto` goes by the special tokens and the chat template that it brings.

    Raises ConfigError where `auto` finds no sign of a form, for an unknown name, and for a setting without a use.
    """
    settings = settings or RenderingConfig()
    name, why = _by_signs(tokenizer) if name == "auto" else (name, "named by the recipe")
    if name not in _FAMILIES and name not in LINE_FORMS:
        known = ", ".join(get_args(RendererName))
        raise ConfigError(Problem("renderer", name, f"no such renderer; known: {known}"))
    keys = _FAMILIES[name].keys if name in _FAMILIES else ()
    said, default = dump(settings), dump(RenderingConfig())
    idle = [key for key, value in said.items() if value != default[key] and key not in keys]
    if idle:
        message = f"changes nothing with renderer {name}; leave it out"
        raise ConfigError([Problem(f"rendering.{key}", said[key], message) for key in idle])
    said |= {"date": settings.date or LLAMA3_DATE, "system": settings.system or "refuse"}
    return Choice(name, why, tuple((key, str(said[key])) for key in keys))


def make_renderer(
    name: str, tokenizer: Tokenizer, settings: RenderingConfig | None = None, *, ends: Sequence[int] = ()
) -> Renderer:
    """The renderer of a name. `ends` are more tokens that end a turn: those that the checkpoint names as its own.

    Raises ConfigError as `choose` does, and when the tokenizer lacks a token of the form.
    """
    settings = settings or RenderingConfig()
    name = choose(name, tokenizer, settings).name
    if name in LINE_FORMS:
        return LineRenderer(tokenizer, LINE_FORMS[name], ends=ends)
    form = _FAMILIES[name].form(tokenizer, settings)
    calls = HERMES_OR_BARE if settings.bare_calls and form.calls is HERMES else form.calls
    return ChatRenderer(tokenizer, form, calls=calls, thinking=settings.thinking, ends=ends)


def _by_signs(tokenizer: Tokenizer) -> tuple[str, str]:
    """(name, why) by the special tokens, and by what the chat template says where families share them."""
    template = tokenizer.chat_template or ""
    if tokenizer.token_id("<|start_header_id|>") is not None:
        if template and "Cutting Knowledge Date" not in template:
            raise _unlike("<|start_header_id|>", "names no dates, as Llama 3.1 and later do", "llama3")
        return "llama3", "the tokenizer has <|start_header_id|>"
    if tokenizer.token_id("<start_of_turn>") is not None:
        if "System role not supported" in template:
            return "gemma2", "the template has <start_of_turn> and no system role"
        return "gemma3", "the tokenizer has <start_of_turn>"
    if tokenizer.token_id("<|im_start|>") is not None:
        return _chatml_by_signs(tokenizer, template)
    hint = "the tokenizer has the special tokens of no known form; name a renderer: plain, for a base model, or compact"
    raise ConfigError(Problem("renderer", "auto", hint))


def _chatml_by_signs(tokenizer: Tokenizer, template: str) -> tuple[str, str]:
    signs = (
        (chat_forms.QWEN3_CODER_SYSTEM, "qwen3_coder"),
        (chat_forms.SMOLLM2_SYSTEM, "smollm2"),
        (chat_forms.QWEN2_5_SYSTEM, "qwen2_5"),
        ("</think>", "qwen3"),
    )
    for sign, name in signs:
        if sign in template:
            return name, f"the chat template has {sign[:60]!r}"
        if "<function=" in template:
            raise _unlike("<|im_start|>", "writes calls in tags, in another form than Qwen3-Coder", "qwen3_coder")
    if not template and tokenizer.token_id("<think>") is not None:
        return "qwen3", "the tokenizer has <|im_start|> and <think>"
    return "chatml", "the tokenizer has <|im_start|>"


def _unlike(token: str, trait: str, name: str) -> ConfigError:
    hint = f"the tokenizer has {token}, but its chat template {trait}; name a renderer, {name} if its form will do"
    return ConfigError(Problem("renderer", "auto", hint))


def _default_line(tokenizer: Tokenizer) -> str | None:
    return next((line for line in _DEFAULT_LINES if line in (tokenizer.chat_template or "")), None)


def characters_of(name: str) -> str:
    """The characters that a line form itself writes, each once: the start of a character tokenizer's alphabet."""
    if name not in LINE_FORMS:
        raise ConfigError(Problem("renderer", name, f"only {', '.join(LINE_FORMS)} work on single characters"))
    return "".join(sorted(set(LINE_FORMS[name].characters)))

"""The forms in which families of models were trained to read conversations, as data.

    ChatML       <|im_start|>user\\nHi<|im_end|>\\n<|im_start|>assistant\\n
    Llama 3      <|start_header_id|>user<|end_header_id|>\\n\\nHi<|eot_id|><|start_header_id|>assistant ...
    Gemma        <bos><start_of_turn>user\\nHi<end_of_turn>\\n<start_of_turn>model\\n

The first prompt is that of the family's own chat template, wherever that template has a form for it. Beyond it:

- Gemma knows neither tools nor replies of tools, and wants roles to alternate. The system message, then the list of
  tools, open the first turn of the user; replies are a turn of the user, of `<tool_response>` blocks; turns of one side
  that follow each other are one, with a blank line between them.
- SmolLM2 knows no tools: they are listed behind the system message, as in Qwen's form.
- Llama 3.1's template has one call in a message; here several are written with `; ` between them.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace

from components.errors import ConfigError, Problem
from components.rollout.pieces import END_RESPONSE, RESPONSE, Mark, Pieces
from components.rollout.tool_calls import HERMES, LLAMA_JSON, QWEN_XML, CallFormat

# The lines that templates put first when a conversation has no system message.
SMOLLM2_SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
QWEN2_5_SYSTEM = "You are Qwen, created by Alibaba Cloud. You are a helpful assistant."
QWEN3_CODER_SYSTEM = "You are Qwen, a helpful AI assistant that can interact with a computer to solve tasks."
LLAMA3_DATE = "26 Jul 2024"
"""The day that Llama 3.1's template names. It is a setting: a prompt never depends on the clock."""

Opening = Callable[[str | None, Pieces], tuple[Pieces | None, Pieces]]
"""(system message or None, the tool list or nothing) -> the system turn or None, and what opens the user's first."""


@dataclass(frozen=True, slots=True)
class SystemTurn:
    """A system turn with the tool list at its end; `default` is its text where a conversation has no system message."""

    default: str | None = None
    default_with_tools: str | None = None

    def __call__(self, system: str | None, tools: Pieces) -> tuple[Pieces | None, Pieces]:
        """The turn, if there is one, and nothing for the user's."""
        default = self.default_with_tools if tools else self.default
        text = default if system is None else system
        if text is None:
            return (tools or None), ()
        return ((text, "\n\n", *tools) if tools else (text,)), ()


@dataclass(frozen=True, slots=True)
class DatedSystemTurn:
    """Llama 3's: the dates come before the system message; the tool list opens the user's first turn."""

    date: str = LLAMA3_DATE

    def __call__(self, system: str | None, tools: Pieces) -> tuple[Pieces | None, Pieces]:
        """The turn, and the tool list."""
        head = "Environment: ipython\n" if tools else ""
        dates = f"Cutting Knowledge Date: December 2023\nToday Date: {self.date}\n\n"
        return (head + dates + (system or "").strip(),), tools


@dataclass(frozen=True, slots=True)
class InFirstUserTurn:
    """Gemma's: no system turn. Where `merges` is false a system message is refused, as Gemma 2's template does."""

    merges: bool = True

    def __call__(self, system: str | None, tools: Pieces) -> tuple[Pieces | None, Pieces]:
        """Nothing, and what opens the user's first turn. Raises ConfigError for a system message that is refused."""
        if system is not None and not self.merges:
            hint = "Gemma 2 has no system role; set rendering.system to merge to open the user's first turn with it"
            raise ConfigError(Problem("rendering.system", system, hint))
        before: Pieces = () if system is None else (f"{system}\n\n",)
        return None, (*before, *((*tools, "\n\n") if tools else ()))


def in_tags(text: str) -> Pieces:
    """A tool's reply in Hermes' and Qwen's form."""
    return (RESPONSE, f"\n{text}\n", END_RESPONSE)


def in_lines(text: str) -> Pieces:
    """The same in Qwen3-Coder's, which ends the last line, too; the lines of several replies follow each other."""
    return (*in_tags(text), "\n")


def in_quotes(text: str) -> Pieces:
    """A tool's reply in Llama 3's form: whatever it is, as JSON."""
    return (json.dumps(text, ensure_ascii=False),)


@dataclass(frozen=True, slots=True)
class ChatForm:
    """The special tokens around a turn, the names of the roles, and how calls and replies are written.

    A turn is `opens`, the role, `header`, its text, `closes`, `gap`. `begins` opens the whole conversation; without it
    that is the token which the tokenizer itself would begin with. `also_closes` are tokens that close a turn as well,
    and `ends` those after which a model writes nothing more; a tokenizer need not have them. Where `alternates` is
    true, turns of one side are one. `thinks` says that the family's prompts know of thinking blocks.
    """

    opens: str
    closes: str
    opening: Opening
    calls: CallFormat = HERMES
    reply: Callable[[str], Pieces] = in_tags
    reply_role: str = "user"
    between_replies: str | None = "\n"
    header: Pieces = ("\n",)
    gap: str = "\n"
    assistant: str = "assistant"
    system: str = "system"
    begins: str | None = None
    also_closes: tuple[str, ...] = ()
    ends: tuple[str, ...] = ()
    alternates: bool = False
    strips: bool = False
    thinks: bool = False


def _chatml(opening: Opening, *, thinks: bool = False) -> ChatForm:
    return ChatForm("<|im_start|>", "<|im_end|>", opening, ends=("<|endoftext|>",), thinks=thinks)


def chatml(default_system: str | None) -> ChatForm:
    """ChatML with Hermes' calls, and a line for conversations without a system message."""
    return _chatml(SystemTurn(default_system, default_system), thinks=True)


SMOLLM2 = _chatml(SystemTurn(SMOLLM2_SYSTEM, SMOLLM2_SYSTEM))
QWEN2_5 = _chatml(SystemTurn(QWEN2_5_SYSTEM, QWEN2_5_SYSTEM))
QWEN3 = _chatml(SystemTurn(), thinks=True)
QWEN3_CODER = ChatForm(
    "<|im_start|>",
    "<|im_end|>",
    SystemTurn(None, QWEN3_CODER_SYSTEM),
    calls=QWEN_XML,
    reply=in_lines,
    between_replies="",
    ends=("<|endoftext|>",),
)
GEMMA3 = ChatForm(
    "<start_of_turn>",
    "<end_of_turn>",
    InFirstUserTurn(),
    assistant="model",
    system="user",
    begins="<bos>",
    ends=("<eos>",),
    alternates=True,
    strips=True,
)


def gemma2(*, merges: bool) -> ChatForm:
    """Gemma 2's form: that of Gemma 3, but that a system message is refused unless merging it is asked for."""
    return replace(GEMMA3, opening=InFirstUserTurn(merges))


def llama3(date: str) -> ChatForm:
    """Llama 3.1, 3.2 and 3.3, on a day."""
    return ChatForm(
        "<|start_header_id|>",
        "<|eot_id|>",
        DatedSystemTurn(date),
        calls=LLAMA_JSON,
        reply=in_quotes,
        reply_role="ipython",
        between_replies=None,
        header=(Mark("<|end_header_id|>"), "\n\n"),
        gap="",
        begins="<|begin_of_text|>",
        also_closes=("<|eom_id|>",),
        ends=("<|end_of_text|>",),
        strips=True,
    )

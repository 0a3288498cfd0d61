"""Conversations as turns between special tokens: ChatML and Gemma's form.

    chatml   <|im_start|>user\\nHi<|im_end|>\\n<|im_start|>assistant\\n
    gemma    <bos><start_of_turn>user\\nHi<end_of_turn>\\n<start_of_turn>model\\n

Tools are listed at the end of the system message. Replies of tools are a user turn of `<tool_response>` blocks. Gemma
knows no system role and wants roles to alternate: the system message opens the first user turn, and messages of one
side that follow each other are one turn, a blank line between them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from components.environments.tools import Tool
from components.errors import ConfigError, Problem
from components.rollout.tokenizer import Tokenizer
from components.rollout.tool_calls import CallFormat
from components.types import Completion, Message, Role

# The line that SmolLM2's own template puts first when a conversation has no system message.
SMOLLM2_SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"


@dataclass(frozen=True, slots=True)
class ChatForm:
    """The special tokens around a turn and the names of the roles.

    `begins` opens the whole conversation, `ends` are tokens beside `closes` after which a model writes nothing more.
    """

    opens: str
    closes: str
    assistant: str
    begins: str | None = None
    ends: tuple[str, ...] = ()
    default_system: str | None = None
    system_role: bool = True
    strips: bool = False


CHATML = ChatForm(
    opens="<|im_start|>",
    closes="<|im_end|>",
    assistant="assistant",
    ends=("<|endoftext|>",),
    default_system=SMOLLM2_SYSTEM,
)
GEMMA = ChatForm(
    opens="<start_of_turn>",
    closes="<end_of_turn>",
    assistant="model",
    begins="<bos>",
    ends=("<eos>",),
    system_role=False,
    strips=True,
)


@dataclass(frozen=True, slots=True)
class _Turn:
    role: str
    text: str


class ChatRenderer:
    """A ChatForm over a tokenizer, with one way of writing tool calls."""

    stop_strings: tuple[str, ...] = ()

    def __init__(self, tokenizer: Tokenizer, form: ChatForm, calls: CallFormat) -> None:
        self._tokenizer = tokenizer
        self._form = form
        self._calls = calls
        self._open = _required(tokenizer, form.opens)
        self._close = _required(tokenizer, form.closes)
        self._begin = [] if form.begins is None else [_required(tokenizer, form.begins)]
        ends = [tokenizer.token_id(end) for end in form.ends]
        self.stop_ids = (self._close, *(i for i in ends if i is not None))

    def start(self, messages: Sequence[Message], tools: Sequence[Tool]) -> list[int]:
        """The whole first prompt: system message with the tool list, the messages, the generation prompt."""
        return self._begin + self._turns(self._with_system(messages, tools)) + self._generation_prompt()

    def extend(self, completion: Completion, messages: Sequence[Message]) -> list[int]:
        """The end of the assistant's turn where the policy did not write it, the replies, the generation prompt."""
        closed = completion.token_ids[-1:] == (self._close,)
        closing = ([] if closed else [self._close]) + self._tokenizer.encode("\n")
        return closing + self._turns(messages) + self._generation_prompt()

    def write(self, message: Message) -> list[int]:
        """The text and the calls, and the token that closes the turn."""
        return [*self._tokenizer.encode(self._text(message)), self._close]

    def parse(self, token_ids: Sequence[int], tools: Sequence[Tool]) -> Message:
        """The assistant's text without the token that ended it, and its calls."""
        ids = list(token_ids)
        if ids and ids[-1] in self.stop_ids:
            ids.pop()
        parsed = self._calls.parse(self._tokenizer.decode(ids), tools)
        return Message(Role.ASSISTANT, parsed.content, parsed.calls, parsed.malformed)

    def _with_system(self, messages: Sequence[Message], tools: Sequence[Tool]) -> list[Message]:
        has_system = bool(messages) and messages[0].role is Role.SYSTEM
        texts = [messages[0].content] if has_system else [self._form.default_system or ""]
        if tools:
            texts.append(self._calls.instructions(tools))
        text = "\n\n".join(part for part in texts if part)
        rest = list(messages[1:] if has_system else messages)
        return [Message(Role.SYSTEM, text), *rest] if text or has_system else rest

    def _turns(self, messages: Sequence[Message]) -> list[int]:
        ids: list[int] = []
        for turn in self._joined(messages):
            ids += [self._open, *self._tokenizer.encode(f"{turn.role}\n{turn.text}"), self._close]
            ids += self._tokenizer.encode("\n")
        return ids

    def _generation_prompt(self) -> list[int]:
        return [self._open, *self._tokenizer.encode(f"{self._form.assistant}\n")]

    def _joined(self, messages: Sequence[Message]) -> list[_Turn]:
        """Turns of a side: replies of tools that follow each other are one, and in Gemma's form all of one side."""
        turns: list[_Turn] = []
        previous: Role | None = None
        for message in messages:
            turn = _Turn(self._role(message.role), self._text(message))
            both_tools = previous is message.role is Role.TOOL
            if turns and turns[-1].role == turn.role and (both_tools or not self._form.system_role):
                gap = "\n" if both_tools else "\n\n"
                turns[-1] = _Turn(turn.role, f"{turns[-1].text}{gap}{turn.text}")
            else:
                turns.append(turn)
            previous = message.role
        return turns

    def _role(self, role: Role) -> str:
        if role is Role.ASSISTANT:
            return self._form.assistant
        return "system" if role is Role.SYSTEM and self._form.system_role else "user"

    def _text(self, message: Message) -> str:
        if message.role is Role.TOOL:
            return f"<tool_response>\n{message.content}\n</tool_response>"
        content = message.content.strip() if self._form.strips else message.content
        calls = [self._calls.render(call) for call in message.tool_calls]
        return "\n".join(part for part in (content, *calls) if part or not calls)


def _required(tokenizer: Tokenizer, token: str) -> int:
    found = tokenizer.token_id(token)
    if found is None:
        hint = "the tokenizer has no such token; choose the renderer that the model was trained with, or plain"
        raise ConfigError(Problem("renderer", token, hint))
    return found

"""Conversations as lines of text, for base models and small models: a question, an answer, a newline.

    plain                                   compact
    Q: 12+30                                12+30=[12+30]
    A: <tool>12+30</tool>                   42=42
    Result: 42
    A: 42

Worked examples are earlier questions and answers. A call is the text of the single argument of the only tool.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from components.environments.tools import Tool
from components.errors import ConfigError, DataError, Problem
from components.rollout.pieces import text_of
from components.rollout.tokenizer import Tokenizer
from components.rollout.tool_calls import TaggedCalls
from components.types import Completion, Message, Role

# Ends of text that a model may have been trained with, whoever trained it.
_ENDS_OF_TEXT = ("<|endoftext|>", "<|im_end|>", "<eos>", "<end_of_turn>", "</s>", "<end>")


@dataclass(frozen=True, slots=True)
class LineForm:
    """What is written around each message. `before_answer` is the generation prompt; an answer follows after `gap`."""

    system: tuple[str, str]
    question: tuple[str, str]
    result: tuple[str, str]
    before_answer: str
    gap: str
    calls: TaggedCalls
    stop_strings: tuple[str, ...]

    @property
    def characters(self) -> str:
        """Every character that the form itself writes."""
        around = (*self.question, *self.result, self.before_answer, self.gap, self.calls.opens, self.calls.closes)
        return "".join(around) + "\n"


PLAIN = LineForm(
    system=("", "\n\n"),
    question=("Q: ", "\n"),
    result=("Result: ", "\n"),
    before_answer="A:",
    gap=" ",
    calls=TaggedCalls("<tool>", "</tool>"),
    stop_strings=("\n", "</tool>"),
)
COMPACT = LineForm(
    system=("", "\n"),
    question=("", "="),
    result=("", "="),
    before_answer="",
    gap="",
    calls=TaggedCalls("[", "]"),
    stop_strings=("\n",),
)


class LineRenderer:
    """A LineForm over a tokenizer."""

    def __init__(self, tokenizer: Tokenizer, form: LineForm, *, ends: Sequence[int] = ()) -> None:
        self._tokenizer = tokenizer
        self._form = form
        self.stop_strings = form.stop_strings
        known = [tokenizer.token_id(end) for end in _ENDS_OF_TEXT]
        # A stop string that is one token can be found on the device, too.
        spelled = [tokenizer.encode(stop) for stop in form.stop_strings]
        single = (ids[0] for ids in spelled if len(ids) == 1)
        self.stop_ids = tuple(dict.fromkeys((*(i for i in known if i is not None), *single, *ends)))

    def start(self, messages: Sequence[Message], tools: Sequence[Tool]) -> list[int]:
        """The whole first prompt. Raises ConfigError for tools that this form cannot call."""
        if len(tools) > 1 or any(tool.text_argument is None for tool in tools):
            names = [tool.name for tool in tools]
            hint = "this renderer can write calls of one tool with one required text argument; use a chat form"
            raise ConfigError(Problem("renderer", names, hint))
        opening = [] if self._tokenizer.bos_token_id is None else [self._tokenizer.bos_token_id]
        return opening + self._tokenizer.encode(self._text(messages))

    def extend(self, completion: Completion, messages: Sequence[Message]) -> list[int]:
        """The end of the answer's line where the policy did not write it, the replies, the generation prompt."""
        sampled = self._tokenizer.decode(completion.token_ids)
        return self._tokenizer.encode(("" if sampled.endswith("\n") else "\n") + self._text(messages))

    def write(self, message: Message) -> list[int]:
        """The answer, or the call, up to what ends it. Raises DataError for an answer of several lines."""
        text = self._answer(message)
        if "\n" in text:
            raise DataError(Problem("content", text, "has a line break, which ends an answer in this renderer's form"))
        end = "" if text.endswith(self._form.stop_strings) else "\n"
        return self._tokenizer.encode(f"{self._form.gap}{text}{end}")

    def parse(self, token_ids: Sequence[int], tools: Sequence[Tool]) -> Message:
        """The answer's text up to the end of its line, or its call."""
        ids = list(token_ids)
        if ids and ids[-1] in self.stop_ids:
            ids.pop()
        text = self._tokenizer.decode(ids).split("\n", 1)[0].strip()
        parsed = self._form.calls.parse(text, tools)
        return Message(Role.ASSISTANT, parsed.content, parsed.calls, parsed.malformed)

    def _text(self, messages: Sequence[Message]) -> str:
        around = {Role.SYSTEM: self._form.system, Role.USER: self._form.question, Role.TOOL: self._form.result}
        lines = []
        for message in messages:
            if message.role is Role.ASSISTANT:
                lines.append(f"{self._form.before_answer}{self._form.gap}{self._answer(message)}\n")
            else:
                before, after = around[message.role]
                lines.append(f"{before}{message.content}{after}")
        return "".join(lines) + self._form.before_answer

    def _answer(self, message: Message) -> str:
        return message.content + text_of(
            piece for call in message.tool_calls for piece in self._form.calls.pieces(call)
        )

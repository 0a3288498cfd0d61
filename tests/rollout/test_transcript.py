"""A finished conversation is laid out as a rollout of it would have been."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from components.environments.calculator import CALCULATOR
from components.environments.environment import Observation
from components.errors import DataError
from components.rollout.episode import EpisodeLimits, run_episode
from components.rollout.renderer import make_renderer
from components.rollout.tokenizer import CharacterTokenizer
from components.rollout.transcript import transcript
from components.training.packing import to_sample
from components.types import Completion, FinishReason, Message, Role, SequenceId, Task, ToolCall
from tests.fakes import EchoEnvironment
from tests.rollout.tokenizers_for_tests import byte_tokenizer

BYTES = byte_tokenizer()
CALL = ToolCall("calculator", {"expression": "12+30"})
USER, ASSISTANT, TOOL = Role.USER, Role.ASSISTANT, Role.TOOL
QUESTION, CALLING = Message(USER, "12+30"), Message(ASSISTANT, "", tool_calls=(CALL,))
RESULT, ANSWER = Message(TOOL, "42", name="calculator"), Message(ASSISTANT, "42")
SUM = (QUESTION, CALLING, RESULT, ANSWER)


def marked(name, messages, tokenizer=BYTES, **keywords):
    """The text, with what is learned in brackets."""
    laid = transcript(make_renderer(name, tokenizer), messages, [CALCULATOR], **keywords)
    assert len(laid.token_ids) == len(laid.completion_mask)
    text, inside = "", False
    for token, learned in zip(laid.token_ids, laid.completion_mask, strict=True):
        text += ("«" if learned else "»") * (learned != inside) + tokenizer.decode([token])
        inside = learned
    return text + "»" * inside


def test_what_the_assistant_says_is_learned_and_nothing_around_it():
    call = '<tool_call>\n{"name": "calculator", "arguments": {"expression": "12+30"}}\n</tool_call>'
    assert marked("chatml", SUM).split("</tool_call><|im_end|>\n", 1)[1] == (
        f"<|im_start|>user\n12+30<|im_end|>\n<|im_start|>assistant\n«{call}<|im_end|>»\n"
        "<|im_start|>user\n<tool_response>\n42\n</tool_response><|im_end|>\n<|im_start|>assistant\n«42<|im_end|>»"
    )
    assert marked("plain", SUM) == "Q: 12+30\nA:« <tool>12+30</tool>»\nResult: 42\nA:« 42\n»"
    assert marked("compact", SUM, CharacterTokenizer("0123456789+-*=[]\n")) == "12+30=«[12+30]\n»42=«42\n»"


def test_the_mask_goes_by_position_as_one_token_closes_turns_of_both_sides():
    laid = transcript(make_renderer("chatml", BYTES), SUM)
    closing = [
        learned
        for i, learned in zip(laid.token_ids, laid.completion_mask, strict=True)
        if i == BYTES.token_id("<|im_end|>")
    ]
    assert closing == [False, True, False, True]


def test_worked_examples_are_context_and_what_follows_the_last_learned_message_is_left_out():
    assert marked("plain", [*SUM, *SUM], learned={5}) == (
        "Q: 12+30\nA: <tool>12+30</tool>\nResult: 42\nA: 42\nQ: 12+30\nA:« <tool>12+30</tool>»"
    )


@pytest.mark.parametrize(
    ("messages", "learned", "told"),
    [
        ([QUESTION], None, "hold no message of the assistant"),
        (SUM, {0}, "are no places of messages of the assistant"),
        ([QUESTION, Message(ASSISTANT, "two\nlines")], None, "line break"),
    ],
)
def test_what_cannot_be_laid_out_is_told(messages, learned, told):
    with pytest.raises(DataError, match=told):
        transcript(make_renderer("plain", BYTES), messages, [CALCULATOR], learned=learned)


class Saying:
    """Samples what the renderer writes for each of the messages."""

    def __init__(self, renderer, messages):
        self.lines = [tuple(renderer.write(message)) for message in messages]

    async def __call__(self, prompt_ids, *, sequence: SequenceId, max_tokens: int) -> Completion:
        ids = self.lines[sequence.turn]
        return Completion(ids, (-0.5,) * len(ids), (0,) * len(ids), FinishReason.STOP)


class Replying(EchoEnvironment):
    """Replies what it was told to, turn by turn, and ends."""

    tools = (CALCULATOR,)

    def __init__(self, opening, replies):
        super().__init__()
        self.opening, self.replies = opening, list(replies)

    async def reset(self, task):
        return Observation(tuple(self.opening))

    async def step(self, message):
        return Observation(tuple(self.replies.pop(0)), done=not self.replies)


# No line breaks, which end an answer of the form `plain`, and no "<", which may open a call.
TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="<\n"), max_size=12).map(str.strip)
SAID = st.builds(Message, st.just(ASSISTANT), TEXTS) | st.just(CALLING)
REPLIES = st.lists(st.builds(Message, st.sampled_from((USER, TOOL)), TEXTS), min_size=1, max_size=2)


@given(
    st.sampled_from(("chatml", "gemma3", "plain")), TEXTS, st.lists(st.tuples(SAID, REPLIES), min_size=1, max_size=3)
)
def test_a_transcript_is_the_sample_of_an_episode_that_went_so(name, question, turns):
    renderer = make_renderer(name, BYTES)
    opening = [Message(USER, question)]
    said, replies = [each for each, _ in turns], [each for _, each in turns]
    episode = run_episode(
        Saying(renderer, said),
        Replying(opening, replies),
        renderer,
        Task("0", question),
        limits=EpisodeLimits(max_context=100_000),
        sequence=SequenceId("0"),
    )
    played = to_sample(asyncio.run(episode), advantage=1.0)
    conversation = [*opening, *(each for message, after in turns for each in (message, *after))]
    laid = transcript(renderer, conversation, [CALCULATOR])
    assert (laid.token_ids, laid.completion_mask) == (played.token_ids, played.completion_mask)

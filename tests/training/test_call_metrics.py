"""What becomes of the calls that a policy writes, in the numbers of a step."""

import asyncio

import pytest

from components.environments.calculator import CALCULATOR
from components.environments.environment import ToolEnvironment
from components.rollout.episode import EpisodeLimits, run_episode
from components.rollout.renderer import make_renderer
from components.telemetry.spans import counters
from components.training.records import episode_numbers
from components.types import Completion, FinishReason, SequenceId, Task
from tests.rollout.tokenizers_for_tests import byte_tokenizer

BYTES = byte_tokenizer()


class Sums(ToolEnvironment):
    """One tool, and nothing to be right about."""

    tools = (CALCULATOR,)

    def tasks(self, split):
        return []

    def grade(self, task, answer):
        return 1.0


class Saying:
    """Samples one text after the other; the last one is cut by a limit."""

    def __init__(self, *texts):
        self.texts = texts

    async def __call__(self, prompt_ids, *, sequence, max_tokens):
        is_last = sequence.turn == len(self.texts) - 1
        end = () if is_last else (BYTES.token_id("<|im_end|>"),)
        ids = (*BYTES.encode(self.texts[sequence.turn]), *end)
        reason = FinishReason.LENGTH if is_last else FinishReason.STOP
        return Completion(ids, (-0.5,) * len(ids), (0,) * len(ids), reason)


def play(*texts):
    limits = EpisodeLimits(max_context=100_000, max_new_tokens=100_000)
    renderer, sequence = make_renderer("chatml", BYTES), SequenceId("0")
    return asyncio.run(run_episode(Saying(*texts), Sums(), renderer, Task("0", "?"), limits=limits, sequence=sequence))


GOOD = '<tool_call>{"name": "calculator", "arguments": {"expression": "1+1"}}</tool_call>'
BROKEN = '<tool_call>{"name": "calculator", "arguments": {expression}}</tool_call>'


def test_a_good_call_beside_a_broken_one_runs_and_both_are_answered_and_counted():
    before = counters().get("malformed_calls{kind=json}", 0)
    trajectory = play(BROKEN + GOOD, '<tool_call>{"name": "calculator", "argu')
    replies = [message.content for message in trajectory.messages if message.role == "tool"]
    assert replies[0] == "2"
    assert replies[1].startswith("error: malformed tool call: not JSON: ")
    numbers = episode_numbers([trajectory])
    assert numbers["malformed_share"] == pytest.approx(2 / 3)
    assert numbers["malformed_by_kind"] == {"json": pytest.approx(1 / 3), "cut": pytest.approx(1 / 3)}
    assert counters()["malformed_calls{kind=json}"] == before + 1


def test_without_any_call_there_is_no_share():
    numbers = episode_numbers([play("42", "42")])
    assert (numbers["malformed_share"], numbers["malformed_by_kind"]) == (0.0, {})

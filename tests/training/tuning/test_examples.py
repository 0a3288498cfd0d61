"""What is learnt is what a rollout would have been; lengths are of rendered ids (OD07); orders are of rows (CK07)."""

import asyncio
import dataclasses

import numpy as np
import pytest

from components.environments.arithmetic import Arithmetic
from components.environments.environment import Observation
from components.errors import DataError
from components.rollout.episode import EpisodeLimits, run_episode
from components.rollout.player import EnvironmentConfig, make_player
from components.training.packing import to_sample
from components.training.tuning.demonstrations import demonstrate
from components.training.tuning.examples import Example, Laid, fingerprint, fitting, lay_out_all
from components.training.tuning.order import RowOrder, split_held_out
from components.training.tuning.rows import Opening, Talk
from components.types import Completion, FinishReason, Message, Role, SequenceId, Task, ToolCall
from tests.rollout.tokenizers_for_tests import byte_tokenizer

BYTES = byte_tokenizer()
TASK = Task("12+30", "12+30", "42")


def world(renderer: str) -> EnvironmentConfig:
    options = {"operators": ["+"], "worked_examples": 1, "answer": "text"}
    return EnvironmentConfig(
        use="arithmetic", options=options, renderer=renderer, limits=EpisodeLimits(max_new_tokens=200)
    )


def played(player, messages):
    """The sample of an episode in which the policy says these messages."""
    lines = [player.renderer.write(message) for message in messages]

    async def policy(prompt_ids, *, sequence: SequenceId, max_tokens: int) -> Completion:
        ids = tuple(lines[sequence.turn])
        return Completion(ids, (-1.0,) * len(ids), (0,) * len(ids), FinishReason.STOP)

    episode = run_episode(
        policy, player.make_environment(), player.renderer, TASK, limits=player.limits, sequence=SequenceId(TASK.id)
    )
    return to_sample(asyncio.run(episode), 0.0)


@pytest.mark.parametrize("renderer", ["chatml", "gemma3", "plain", "compact"])
def test_the_ids_of_an_example_are_those_of_a_rollout_of_the_same_conversation(renderer: str) -> None:
    player = make_player(world(renderer), BYTES)
    call = Message(Role.ASSISTANT, "", (ToolCall("calculator", {"expression": "12+30"}),))
    answer = Message(Role.ASSISTANT, "42")
    wanted = played(player, [call, answer])
    talk = Talk(Opening(task=TASK.prompt), ((call, Message(Role.TOOL, "42", name="calculator"), answer),), "rows:1")
    (opened,) = asyncio.run(lay_out_all(player, [talk], TASK))
    shown = asyncio.run(demonstrate(player, TASK, with_tool=True))
    for example in (opened, shown):
        ((sample,),) = [example.row()]
        assert sample.token_ids == wanted.token_ids
        assert sample.completion_mask == wanted.completion_mask
    assert sum(wanted.completion_mask) == len(player.renderer.write(call)) + len(player.renderer.write(answer))


def of_length(*lengths: int) -> list[Example]:
    laid = [Laid(np.zeros(length, np.int32), np.ones(length, np.bool_)) for length in lengths]
    return [Example((each,), f"rows:{line}") for line, each in enumerate(laid, start=1)]


def test_a_row_of_exactly_the_limit_stays_and_one_more_token_is_too_many() -> None:
    assert len(fitting(of_length(512, 5), 512, drop=False).examples) == 2
    with pytest.raises(DataError, match="rows:2"):
        fitting(of_length(512, 513), 512, drop=False)
    kept = fitting(of_length(512, 513), 512, drop=True)
    assert ([example.where for example in kept.examples], kept.too_long) == (["rows:1"], 1)
    with pytest.raises(DataError, match="all are too long"):
        fitting(of_length(513, 600), 512, drop=True)


class Picky(Arithmetic):
    """Opens sums only."""

    async def reset(self, task: Task) -> Observation:
        int(task.prompt.partition("+")[0])
        return await super().reset(task)


def test_all_that_cannot_be_opened_or_said_is_told_by_its_row() -> None:
    player = dataclasses.replace(make_player(world("plain"), BYTES), make_environment=lambda: Picky(operators=["+"]))
    two_lines, fine = (Message(Role.ASSISTANT, "1\n2"),), (Message(Role.ASSISTANT, "3"),)
    talks = [
        Talk(Opening((Message(Role.USER, "x"),)), (two_lines,), "rows:7"),
        Talk(Opening(task="1+2"), (fine,), "rows:8"),
        Talk(Opening(task="what?"), (fine,), "rows:9"),
    ]
    with pytest.raises(DataError) as refused:
        asyncio.run(lay_out_all(player, talks, TASK))
    told = {problem.where.partition(": ")[0]: problem for problem in refused.value.problems}
    assert sorted(told) == ["rows:7", "rows:9"]
    assert told["rows:9"].where == "rows:9: prompt"
    assert told["rows:9"].message.startswith("arithmetic cannot open it as a task: ValueError: invalid literal")


def test_other_data_has_another_fingerprint() -> None:
    assert fingerprint(of_length(3, 4)) == fingerprint(of_length(3, 4))
    assert len({fingerprint(of_length(*each)) for each in [(3, 4), (4, 3), (3, 4, 1), (7,)]}) == 4


def test_rows_are_the_same_after_any_number_of_resumes_and_epochs_differ() -> None:
    """CK07: 100 rows, 2 a step, 2 epochs; stopped after 10 steps, after 5 more, and exactly between the epochs."""
    whole = RowOrder(range(100), seed=42).take(0, 200, 200)
    assert sorted(whole[:100]) == sorted(whole[100:]) == list(range(100))
    assert whole[:100] != whole[100:]
    for stops in ([20, 30], [100], [0]):
        seen, position = [], 0
        for stop in [*stops, 200]:
            order = RowOrder(range(100), seed=42)
            while position < stop:
                rows = order.take(position, 2, 200)
                seen, position = seen + rows, position + len(rows)
        assert seen == whole


def test_with_other_rows_per_step_a_resumed_run_goes_on_at_the_next_row() -> None:
    """CK08: 10 steps of 8, then 16 a step: row 81 is next. A step may reach into the next epoch."""
    order = RowOrder(range(100), seed=1)
    whole = order.take(0, 200, 200)
    assert order.take(80, 16, 200) == whole[80:96]
    assert order.take(96, 16, 200) == whole[96:112]
    assert order.take(192, 16, 200) == whole[192:]


def test_held_out_rows_are_the_same_each_time_and_never_learnt_from() -> None:
    training, held_out = split_held_out(50, 0.1, seed=3)
    assert (training, held_out) == split_held_out(50, 0.1, seed=3)
    assert len(held_out) == 5
    assert sorted(training + held_out) == list(range(50))
    assert split_held_out(3, 0.0, seed=3) == ([0, 1, 2], [])
    assert [len(part) for part in split_held_out(2, 0.9, seed=3)] == [1, 1]

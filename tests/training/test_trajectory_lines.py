"""What of a step's episodes is written down, and how many bytes of it."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders
from tokenizers.models import WordLevel

from components.rollout.tokenizer import CharacterTokenizer, FastTokenizer
from components.training.trajectory_lines import TrajectoryLines, chosen, token_texts, trajectory_record
from components.types import (
    Completion,
    Failure,
    FinishReason,
    Group,
    Message,
    Outcome,
    Role,
    Task,
    ToolCall,
    Trajectory,
    Turn,
)
from tests.rollout.tokenizers_for_tests import byte_tokenizer

CHARACTERS = CharacterTokenizer("abcdefghijklmnopqrstuvwxyz !?")


def completion(text: str, *versions: int, logprob: float = -0.25) -> Completion:
    ids = tuple(CHARACTERS.encode(text))
    return Completion(ids, (logprob,) * len(ids), versions or (0,) * len(ids), FinishReason.STOP)


def episode(task: str = "t", *, member: int = 0, reward: float | None = 0.0, text: str = "ab", **more) -> Trajectory:
    turn = Turn(tuple(CHARACTERS.encode("hi")), completion(text))
    values = {"task": Task(task, "hi"), "turns": (turn,), "messages": (Message(Role.USER, "hi"),)}
    return Trajectory(**{**values, "outcome": Outcome.FINISHED, "reward": reward, "member": member, **more})


def broken(member: int = 0) -> Trajectory:
    return episode("t", member=member, reward=None, outcome=Outcome.FAILED, failure=Failure("tool", "it broke"))


def group(*members: Trajectory) -> Group:
    return Group(members[0].task, members)


def test_turns_tell_prompt_tokens_logprobs_and_versions_as_run_lengths():
    first = Turn(tuple(CHARACTERS.encode("hi")), completion("abc", 3, 3, 4))
    seen = (*first.prompt_ids, *first.completion.token_ids, *CHARACTERS.encode("!"))
    second = Turn(seen, completion("ok", 4, 4, logprob=-1e-9), reward=0.5)
    record = trajectory_record(6, episode(turns=(first, second)), CHARACTERS)
    assert record["turns"] == [
        {
            "prompt": "hi",
            "prompt_tokens": 2,
            "tokens": ["a", "b", "c"],
            "logprobs": [-0.25, -0.25, -0.25],
            "versions": [[3, 2], [4, 1]],
            "finish": "stop",
        },
        {
            "prompt": "!",
            "prompt_tokens": 1,
            "tokens": ["o", "k"],
            "logprobs": [0.0, 0.0],
            "versions": [[4, 2]],
            "finish": "stop",
            "reward": 0.5,
        },
    ]
    assert record["staleness"] == 2
    assert "-0.0" not in json.dumps(record)


def test_gaps_are_the_trainer_s_log_probs_minus_the_engine_s_turn_by_turn():
    first = Turn(tuple(CHARACTERS.encode("hi")), completion("ab"))
    seen = (*first.prompt_ids, *first.completion.token_ids)
    trained = episode("t", member=3, turns=(first, Turn(seen, completion("c", logprob=-1.0))))
    known = {("t", 3): np.array([-0.25, -0.5, -0.75])}
    (line,) = TrajectoryLines(CHARACTERS).step(1, [group(trained)], known)
    assert [turn["gaps"] for turn in json.loads(line)["turns"]] == [[0.0, -0.25], [0.25]]
    for others in ({}, {("t", 2): known["t", 3]}, {("t", 3): np.zeros(2)}):
        (line,) = TrajectoryLines(CHARACTERS).step(1, [group(trained)], others)
        assert not any("gaps" in turn for turn in json.loads(line)["turns"])


def test_without_a_tokenizer_there_are_messages_alone():
    said = (Message(Role.ASSISTANT, "", tool_calls=(ToolCall("add", {"a": 1}),)), Message(Role.TOOL, "2", name="add"))
    record = trajectory_record(1, episode(messages=said))
    assert "turns" not in record
    assert record["messages"] == [
        {"role": "assistant", "content": "", "tool_calls": ({"name": "add", "arguments": {"a": 1}},)},
        {"role": "tool", "content": "2", "name": "add"},
    ]


def test_a_log_prob_that_is_not_finite_is_null():
    record = trajectory_record(1, episode(turns=(Turn((), completion("a", logprob=-math.inf)),)), CHARACTERS)
    assert record["turns"][0]["logprobs"] == [None]


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=24))
def test_texts_of_tokens_join_to_the_text_and_no_character_is_torn(text):
    tokenizer = byte_tokenizer()
    texts = token_texts(tokenizer, tokenizer.encode(text))
    assert "".join(texts) == text
    assert "\N{REPLACEMENT CHARACTER}" not in "".join(texts).replace(text, "")


def test_the_token_that_completes_a_character_has_all_of_it():
    tokenizer = byte_tokenizer()
    assert token_texts(tokenizer, tokenizer.encode("a€b")) == ["a", "", "", "€", "b"]


def test_bytes_that_never_become_a_character_are_told_at_the_end():
    tokenizer = byte_tokenizer()
    ids = tokenizer.encode("€")[:2]
    assert "".join(token_texts(tokenizer, ids)) == tokenizer.decode(ids)


def test_a_decoder_that_writes_spaces_between_tokens_alone_loses_none_of_them():
    inner = tokenizers.Tokenizer(WordLevel({"▁a": 0, "▁b": 1, "c": 2}))
    inner.decoder = decoders.Metaspace(prepend_scheme="always")
    assert token_texts(FastTokenizer(inner), [0, 1, 2, 0]) == ["a", " b", "c", " a"]


def test_the_best_and_the_worst_of_each_group_are_chosen_and_what_is_odd_comes_first():
    old = replace(episode(member=2, reward=0.2), turns=(Turn((), completion("a", 1)),))
    fresh = [replace(episode(member=at, reward=0.1 * at), turns=(Turn((), completion("a", 4)),)) for at in (0, 1, 3)]
    clumsy = replace(fresh[1], tool_errors=3)
    found = chosen([group(fresh[0], clumsy, old, fresh[2])], 4)
    assert [each.member for each in found] == [2, 1, 3, 0]


def test_a_failed_member_is_not_the_best_of_its_group():
    assert chosen([group(broken(0), episode(member=1, reward=-3.0))], 0)[0].member == 1


def test_tokens_have_a_limit_and_failures_are_always_written():
    lines = TrajectoryLines(CHARACTERS, limit=4_000)
    groups = [
        group(*(episode(f"t{at}", member=m, reward=float(m), text="ab" * 60) for m in (0, 1))) for at in range(40)
    ]
    failures = [json.loads(lines.failed(1, broken(at))) for at in range(30)]
    written = [json.loads(line) for line in lines.step(2, groups)]
    assert all(each["failure"]["message"] == "it broke" for each in failures)
    assert {each["task_id"] for each in written} == {f"t{at}" for at in range(40)}
    assert len(written) < 80
    assert 0 < sum("turns" in each for each in [*failures, *written]) < 30
    again = [json.loads(line) for line in lines.step(3, groups[:1])]
    assert all("turns" in each for each in again), "the next step has bytes of its own"


@pytest.mark.parametrize("count", [1, 500])
def test_of_very_many_failures_the_texts_are_left_out(count):
    lines = TrajectoryLines(None, limit=2_000)
    written = [json.loads(lines.failed(1, broken(at))) for at in range(count)]
    assert len(written) == count
    assert bool(written[-1]["messages"]) == (count == 1)


def test_a_long_text_keeps_its_beginning_and_its_end():
    record = trajectory_record(1, episode(messages=(Message(Role.TOOL, f"start{'x' * 50_000}end"),)))
    content = record["messages"][0]["content"]
    assert content.startswith("start")
    assert content.endswith("end")
    assert len(content) < 17_000
    assert "characters …]" in content

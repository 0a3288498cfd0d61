"""Rows of files. Case OD06: a row without its answer is told by file, line and field, and never learnt from."""

import json
from pathlib import Path

import pyarrow as arrow
import pytest
from pyarrow import parquet

from components.errors import DataError
from components.training.tuning.rows import read_rows
from components.types import Message, Role, ToolCall


def written(folder: Path, *rows: object) -> str:
    path = folder / "rows.jsonl"
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return str(path)


def read(file: str, *, compares: bool = False, min_reward: float | None = None, skip: bool = False):
    return read_rows((file,), compares=compares, min_reward=min_reward, skip=skip)


def test_every_bad_row_is_told_by_line_and_field_and_a_number_is_as_good_as_its_text(tmp_path: Path) -> None:
    file = written(
        tmp_path,
        {"id": "1", "prompt": "2+2?", "completion": "4"},
        {"id": "2", "prompt": "3+3?"},
        {"id": "3", "prompt": "4+4?", "completion": None},
        {"id": "4", "prompt": "5+5?", "completion": 10},
        {"id": "5", "prompt": "", "completion": "1"},
        {"id": "1", "prompt": "2+2?", "completion": "4"},
        "not json",
        {"messages": [{"role": "user", "content": "x"}]},
        {"messages": [{"role": "user", "content": "x"}, {"role": "robot", "content": "y"}]},
    )
    with pytest.raises(DataError) as refused:
        read(file)
    lines = [problem.where.removeprefix(file) for problem in refused.value.problems]
    assert lines == [
        ":2: completion", ":3: completion", ":5: prompt", ":6: id", ":7", ":8: messages", ":9: messages[1].role",
    ]  # fmt: skip
    kept = read(file, skip=True)
    assert [talk.answers[0][0].content for talk in kept.talks] == ["4", "10"]
    assert len(kept.problems) == 7


def test_many_bad_rows_alike_are_told_in_few_lines_and_no_other_fault_is_lost(tmp_path: Path) -> None:
    file = written(tmp_path, *({"prompt": "2+2?", "answer": "4"} for _ in range(49)), "not json")
    with pytest.raises(DataError) as refused:
        read(file)
    told = [
        (each.where.removeprefix(file), "(and 46 more like these)" in each.message) for each in refused.value.problems
    ]
    assert sorted(told) == [
        (":1: completion", False),
        (":2: completion", False),
        (":3: completion", True),
        (":50", False),
    ]


def test_no_row_left_is_an_error_though_bad_ones_are_skipped(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no row is left"):
        read(written(tmp_path, "{}"), skip=True)
    with pytest.raises(DataError, match="no such file"):
        read(str(tmp_path / "nothing.jsonl"))


def test_calls_are_read_as_chat_apis_and_as_trajectories_write_them(tmp_path: Path) -> None:
    call = {"type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
    opening, replied = {"role": "user", "content": "1+1"}, {"role": "tool", "content": "2", "name": "add"}
    said = {"role": "assistant", "content": None, "tool_calls": [call]}
    plain = {**said, "content": "", "tool_calls": [{"name": "add", "arguments": {"a": 1}}], "malformed_calls": []}
    file = written(tmp_path, *({"messages": [opening, each, replied]} for each in (said, plain)))
    first, second = read(file).talks
    # What stands behind the last answer is nothing to learn from.
    assert first.answers == second.answers == ((Message(Role.ASSISTANT, "", (ToolCall("add", {"a": 1}),)),),)
    assert first.opening.messages == (Message(Role.USER, "1+1"),)


def test_rows_of_parquet_are_those_of_json_and_bad_ones_are_told_by_row_and_field(tmp_path: Path) -> None:
    """A column of structs has the fields of all its rows: a call keeps its own arguments, and a message its own."""
    user, answer = {"role": "user", "content": "1+1"}, {"role": "assistant", "content": "2"}
    arguments = {"query": "x", "most": 3}
    calls = [{"name": "add", "arguments": {"a": 1}}, {"name": "search", "arguments": arguments}]
    called = [{"messages": [user, {"role": "assistant", "tool_calls": [call]}]} for call in calls]
    own = [{"name": "add", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}}]
    good = [*called, {"prompt": "1+1", "completion": "2"}, {"messages": [user, answer], "tools": json.dumps(own)}]
    bad = [
        {"messages": [user, {"role": "robot", "content": "2"}]},
        {"messages": [user]},
        {"prompt": "1+1"},
        {"messages": [user, {**answer, "tool_calls": [{"arguments": {"a": 2}}]}]},
        {"messages": [user, answer], "tools": "{"},
    ]
    fields = ("messages", "prompt", "completion", "tools")
    table = arrow.Table.from_pylist([{name: row.get(name) for name in fields} for row in [*good, *bad]])
    file = str(tmp_path / "rows.parquet")
    parquet.write_table(table, file, row_group_size=2)
    found, wanted = read(file, skip=True), read(written(tmp_path, *good))
    same = [tuple((talk.opening, talk.answers) for talk in each.talks) for each in (found, wanted)]
    assert same[0] == same[1]
    assert [dict(talk.answers[0][0].tool_calls[0].arguments) for talk in found.talks[:2]] == [{"a": 1}, arguments]
    assert [tool.name for tool in found.talks[3].opening.tools or ()] == ["add"]
    assert [problem.where.removeprefix(file) for problem in found.problems] == [
        ":5: messages[1].role", ":6: messages", ":7: completion", ":8: messages[1].tool_calls[0]", ":9: tools",
    ]  # fmt: skip


def test_of_a_runs_trajectories_those_with_the_reward_are_learnt_from(tmp_path: Path) -> None:
    messages = [{"role": "user", "content": "1+1"}, {"role": "assistant", "content": "2"}]
    rewards = [1.0, 0.0, None, 0.5]
    found = read(written(tmp_path, *({"messages": messages, "reward": r} for r in rewards)), min_reward=0.5)
    assert (len(found.talks), found.below) == (2, 2)


def test_pairs_are_read_with_a_prompt_and_as_two_conversations(tmp_path: Path) -> None:
    user, good, bad = (
        {"role": r, "content": c} for r, c in (("user", "hi"), ("assistant", "yes"), ("assistant", "no"))
    )
    file = written(
        tmp_path,
        {"prompt": [user], "chosen": "yes", "rejected": "no"},
        {"messages": [user], "chosen": good, "rejected": [bad]},
        {"prompt": "hi", "chosen": [user, good], "rejected": [user, bad]},
    )
    talks = read(file, compares=True).talks
    assert len({(talk.opening, talk.answers) for talk in talks}) == 1
    assert talks[0].opening.messages == (Message(Role.USER, "hi"),)
    same = written(tmp_path, {"prompt": "hi", "chosen": "yes", "rejected": "yes"})
    with pytest.raises(DataError, match="same as the chosen"):
        read(same, compares=True)

"""Function calls in the BFCL format: all rows load or are named, several values may be right. Case TP15."""

import json
from pathlib import Path
from typing import Any

import pytest

from components.environments.tasks.function_calls import FunctionCalls, grade_calls, same_value
from components.errors import ConfigError, DataError
from components.types import MalformedCall, Message, Role, ToolCall
from tests.environments.tasks.playing import play, say, splits


@pytest.fixture(scope="module")
def transcripts(shared: Path) -> Path:
    return shared / "cases" / "files" / "transcripts"


def simple(folder: Path, **options: Any) -> dict[str, Any]:
    name = "BFCL_v4_simple_python.first40"
    return {"questions": [f"{folder}/{name}.jsonl"], "answers": [f"{folder}/{name}.answers.jsonl"], **options}


def test_all_questions_load_and_are_solved_by_the_first_of_the_right_values(transcripts: Path) -> None:
    names = ("simple_python.first40", "live_parallel", "irrelevance.first20")
    files = [f"{transcripts}/BFCL_v4_{name}" for name in names]
    options = {"questions": [f"{f}.jsonl" for f in files], "answers": [f"{f}.answers.jsonl" for f in files[:2]]}
    train, test = splits(FunctionCalls, **options)
    assert len(train) + len(test) == 40 + 16 + 20
    assert 5 < len(test) < 30
    environment = FunctionCalls(**options)
    for task in train + test:
        solved = play(environment, task, environment.solution(task))
        assert solved.reward == 1.0, (task.id, solved.reasons)
        assert play(environment, task, [say("hm")]).reward == float(task.id.startswith("irrelevance"))


def test_dotted_names_and_types_that_are_not_json_schema_are_tools(transcripts: Path) -> None:
    environment = FunctionCalls(**simple(transcripts))
    tasks = [task for split in ("train", "test") for task in environment.tasks(split)]
    (task,) = [task for task in tasks if task.id == "simple_python_22"]
    gcd = Message(Role.ASSISTANT, "", tool_calls=(ToolCall("math.gcd", {"num1": 12, "num2": 15}),))
    played = play(environment, task, [gcd])
    assert (played.reward, played.reasons) == (1.0, {"reward": "1 calls match"})
    assert environment.tools[0].parameters["type"] == "object"


GROUND = [{"get": {"city": ["Boston, MA", "Boston"], "unit": ["", "celsius"]}}, {"add": {"n": [3.0], "tags": [["a"]]}}]
GET = ToolCall("get", {"city": "boston ma"})
ADD = ToolCall("add", {"n": 3, "tags": ["A"]})


@pytest.mark.parametrize(
    ("calls", "reward", "reason"),
    [
        ((GET, ADD), 1.0, "2 calls match"),
        ((ADD, ToolCall("get", {"city": "Boston", "unit": "celsius"})), 1.0, "2 calls match"),
        ((GET,), 0.0, "the call of add is missing"),
        ((), 0.0, "the call of get, add is missing"),
        ((GET, GET, ADD), 0.0, "'get': is not among the right calls"),
        ((ToolCall("get", {"city": "Rome"}), ADD), 0.0, "argument city is 'Rome', right is 'Boston, MA'"),
        ((ToolCall("get", {"city": "Boston", "unit": "kelvin"}), ADD), 0.0, "argument unit is 'kelvin'"),
        ((ToolCall("get", {"city": "Boston", "now": True}), ADD), 0.0, "argument 'now' is not wanted"),
        ((GET, ToolCall("add", {"n": 3})), 0.0, "argument tags is missing"),
        ((GET, ToolCall("add", {"n": True, "tags": ["a"]})), 0.0, "argument n is True"),
        ((GET, ToolCall("put", {})), 0.0, "'put': is not among the right calls"),
        ((GET,) * 60, 0.0, "60 calls, 2 are right"),
    ],
)
def test_calls_are_matched_in_any_order_and_the_first_that_is_wrong_is_told(calls, reward, reason) -> None:
    grade = grade_calls(calls, GROUND)
    assert grade.reward == reward
    assert reason in grade.reason


@pytest.mark.parametrize(
    ("value", "right", "same"),
    [
        ("San-Francisco", "san francisco", True),
        (1, 1.0, True),
        (1, True, False),
        (True, True, True),
        ("1", 1, False),
        ([1, 2], [1, 2], True),
        ([2, 1], [1, 2], False),
        ({"a": 1}, {"a": [1, 2], "b": ["", 3]}, True),
        ({"a": 1, "c": 1}, {"a": [1]}, False),
        ({}, {"a": [1]}, False),
        (None, None, True),
    ],
)
def test_values_are_compared_by_the_written_rules(value, right, same) -> None:
    assert same_value(value, right) is same


def test_a_call_where_none_is_right_and_a_malformed_one_are_wrong(transcripts: Path) -> None:
    environment = FunctionCalls([f"{transcripts}/BFCL_v4_irrelevance.first20.jsonl"])
    task = next(iter(environment.tasks("train")))
    call = Message(Role.ASSISTANT, "", tool_calls=(ToolCall("f", {}),))
    assert play(environment, task, [call]).reasons == {"reward": "'f': no call is right"}
    cut = Message(Role.ASSISTANT, "", malformed_calls=(MalformedCall("{", "the JSON ends too early"),))
    played = play(environment, task, [cut])
    assert (played.reward, played.reasons) == (0.0, {"reward": "a call is malformed: the JSON ends too early"})
    assert played.observations[-1].tool_use.malformed == 1


FUNCTION = {"name": "f", "parameters": {"type": "dict", "properties": {"a": {"type": "float"}}}}
ROW = {"id": "1", "question": [[{"role": "user", "content": "do it"}]], "function": [FUNCTION]}


def test_rows_that_cannot_be_used_are_named_by_field(tmp_path: Path) -> None:
    bad = [
        ROW,
        ROW | {"id": 5},
        ROW | {"id": "2", "question": "do it"},
        ROW | {"id": "3", "function": []},
        ROW | {"id": "4", "function": [{"name": "f", "parameters": {"type": "thing"}}]},
        ROW,
    ]
    answers = [{"id": "1", "ground_truth": [{"f": {"a": 1}}]}]
    for name, rows in (("q", bad), ("a", answers)):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    files = {"questions": [f"{tmp_path}/q.jsonl"], "answers": [f"{tmp_path}/a.jsonl"], "test_share": 0.99}
    with pytest.raises(DataError) as caught:
        FunctionCalls(**files).tasks("test")
    assert [problem.where.removeprefix(f"{tmp_path}/") for problem in caught.value.problems] == [
        "a.jsonl:1: ground_truth",
        "q.jsonl:2: id",
        "q.jsonl:3: question",
        "q.jsonl:4: function",
        "q.jsonl:5: function[0].parameters.type",
        "q.jsonl:6: id",
    ]
    read = FunctionCalls(**files, on_problem="skip").read("test")
    assert ([task.id for task in read.tasks], len(read.problems)) == (["1"], 6)
    with pytest.raises(DataError, match="this split has no question"):
        FunctionCalls(**files, on_problem="skip").tasks("train")


def test_options_that_cannot_work_are_told() -> None:
    with pytest.raises(ConfigError, match="name at least one file"):
        FunctionCalls([])
    with pytest.raises(ConfigError, match="between 0 and 1"):
        FunctionCalls(["q.jsonl"], test_share=1.0)

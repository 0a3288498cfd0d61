"""Rows become tasks, or problems by line and field. Case OD06."""

import asyncio
import json
from pathlib import Path

import pytest

from components.environments.datasets import Fields, read_tasks
from components.environments.environment import environment_factory
from components.environments.graders import grade_number
from components.environments.gsm8k import Gsm8k, calculator_demonstrations
from components.environments.rewards import as_reward_parts
from components.errors import ConfigError, DataError
from components.types import Message, Role, ToolCall
from tests.environments.tasks.playing import play

SHARED = Path(__file__).resolve().parents[2].parent / "shared"
FIELDS = Fields(prompt="question", answer="answer", id="id")
ROWS = """{"id":"1","question":"2+2?","answer":"4"}
{"id":"2","question":"3+3?"}
{"id":"3","question":"4+4?","answer":null}
{"id":"4","question":"5+5?","answer":10}
{"id":"5","question":"","answer":"1"}
{"id":"1","question":"2+2?","answer":"4"}
not json
"""


def write(tmp_path, text, name="rows.jsonl"):
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_every_unusable_row_is_reported_with_its_line_and_field(tmp_path):
    path = write(tmp_path, ROWS)
    with pytest.raises(DataError) as caught:
        read_tasks(path, FIELDS)
    assert [problem.where.removeprefix(path) for problem in caught.value.problems] == [
        ":2: answer",
        ":3: answer",
        ":5: question",
        ":6: id",
        ":7",
    ]


def test_skipping_keeps_the_good_rows_and_counts_the_others(tmp_path):
    read = read_tasks(write(tmp_path, ROWS), FIELDS, on_problem="skip")
    assert [(task.id, task.answer) for task in read.tasks] == [("1", "4"), ("4", "10")]
    assert len(read.problems) == 5


def test_a_file_without_a_good_row_is_an_error_even_when_skipping(tmp_path):
    with pytest.raises(DataError, match="not JSON"):
        read_tasks(write(tmp_path, "not json\n"), FIELDS, on_problem="skip")
    with pytest.raises(DataError, match="no rows"):
        read_tasks(write(tmp_path, "\n\n"), FIELDS, on_problem="skip")
    with pytest.raises(DataError, match="no such file"):
        read_tasks(str(tmp_path / "nowhere.jsonl"), FIELDS)


def test_a_line_separator_inside_of_a_text_ends_no_row(tmp_path):
    row = json.dumps({"id": "1", "question": "one\u2028two\u0085three", "answer": "4"}, ensure_ascii=False)
    assert [task.prompt for task in read_tasks(write(tmp_path, row + "\r\n"), FIELDS).tasks] == [
        "one\u2028two\u0085three"
    ]


def test_bytes_that_are_no_text_are_named(tmp_path):
    (tmp_path / "rows.jsonl").write_bytes(b'{"id": "\xff"}')
    with pytest.raises(DataError, match=r"rows\.jsonl:1: not UTF-8 at byte 8"):
        read_tasks(str(tmp_path / "rows.jsonl"), FIELDS)


@pytest.mark.parametrize("answer", ["no mark 4", "#### four", "#### 4 or 5"])
def test_a_gsm8k_row_without_a_gold_number_is_named(tmp_path, answer):
    write(tmp_path, json.dumps({"question": "2+2?", "answer": answer}), "train.jsonl")
    with pytest.raises(DataError, match=r"train.jsonl:1: answer"):
        Gsm8k(data=str(tmp_path)).tasks("train")


def test_gsm8k_tasks_hold_the_gold_answer_and_the_solution(tmp_path):
    solution = "Half is 48/2 = <<48/2=24>>24.\nIn all <<48+24=72>>72.\n#### 72"
    write(tmp_path, json.dumps({"question": "How many?", "answer": solution}), "test.jsonl")
    (task,) = Gsm8k(data=str(tmp_path)).tasks("test")
    assert (task.id, task.prompt, task.answer) == ("gsm8k-test-1", "How many?", "72")
    assert calculator_demonstrations(task) == [("48/2", "24"), ("48+24", "72")]


def test_all_gold_answers_of_gsm8k_grade_as_right():
    if not (SHARED / "data" / "gsm8k").is_dir():
        pytest.skip("GSM8K is not beside the repository")
    environment = Gsm8k(data=str(SHARED / "data" / "gsm8k"))
    tasks = [*environment.tasks("train"), *environment.tasks("test")]
    assert len(tasks) == 8792
    assert [task.id for task in tasks if environment.grade(task, task.data["answer"]).reward != 1.0] == []
    assert [task.id for task in tasks if grade_number(f"It is {task.answer}.", task.answer).reward != 1.0] == []


def _play_gsm8k(tmp_path: Path, *messages: Message, **options: float) -> dict[str, float]:
    row = {"question": "6 trays of 14 rolls?", "answer": "6*14 = <<6*14=84>>84\n#### 84"}
    for split in ("train", "test"):
        (tmp_path / f"{split}.jsonl").write_text(json.dumps(row) + "\n", encoding="utf-8")

    async def play() -> dict[str, float]:
        environment = Gsm8k(str(tmp_path), **options)
        await environment.reset(next(iter(environment.tasks("train"))))
        for message in messages:
            await environment.step(message)
        return as_reward_parts(await environment.reward(), "play")

    return asyncio.run(play())


CALL = Message(Role.ASSISTANT, "", tool_calls=(ToolCall("calculator", {"expression": "6*14"}),))
BAD_CALL = Message(Role.ASSISTANT, "", tool_calls=(ToolCall("calculator", {"expression": "6*"}),))


@pytest.mark.parametrize(
    ("messages", "parts"),
    [
        ((CALL, Message(Role.ASSISTANT, "so\n#### 84")), {"answer": 1.0, "format": 0.2, "tool": 0.1}),
        ((Message(Role.ASSISTANT, "so\n#### 83"),), {"answer": 0.0, "format": 0.2, "tool": 0.0}),
        ((BAD_CALL, Message(Role.ASSISTANT, "84")), {"answer": 1.0, "format": 0.0, "tool": 0.0}),
        ((CALL,), {"answer": 0.0, "format": 0.0, "tool": 0.1}),
    ],
    ids=["all", "wrong number", "no mark, failed call", "cut after the call"],
)
def test_parts_of_the_gsm8k_reward_are_named_and_weighted(tmp_path, messages, parts):
    assert _play_gsm8k(tmp_path, *messages, format_weight=0.2, tool_weight=0.1) == parts


def test_without_weights_the_gsm8k_reward_is_the_answer_alone(tmp_path):
    assert _play_gsm8k(tmp_path, Message(Role.ASSISTANT, "84")) == {"answer": 1.0}


def test_a_weight_that_nothing_can_earn_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="tool_weight"):
        Gsm8k(str(tmp_path), tool="none", tool_weight=0.1)


def _row(tmp_path: Path) -> str:
    answer = "6*14 = <<6*14=84>>84\nand 84-20 = <<84-20=64>>64\n#### 64"
    return write(tmp_path, json.dumps({"question": "6 trays of 14 rolls, 20 sold?", "answer": answer}), "train.jsonl")


@pytest.mark.parametrize("tool", ["calculator", "none"])
def test_the_gold_solution_of_gsm8k_is_played_with_its_sums_as_calls(tmp_path, tool):
    environment = Gsm8k(str(Path(_row(tmp_path)).parent), tool=tool)
    (task,) = environment.tasks("train")
    played = play(environment, task, environment.solution(task))
    assert (played.reward, played.reasons) == (1.0, {"answer": "64 is right"})
    assert "<<" not in environment.solution(task)[-1].content
    calls = [each.messages[0].content for each in played.observations[1:-1]]
    assert calls == (["84", "64"] if tool == "calculator" else [])
    assert environment_factory("gsm8k", {"data": str(tmp_path), "tool": tool})().system_prompt
    with pytest.raises(ConfigError, match="has no effect, as gsm8k runs no code"):
        environment_factory("gsm8k", {"data": str(tmp_path), "tool": tool}, isolation="process")


def test_gsm8k_with_python_runs_the_models_code_and_leaves_no_folder(tmp_path):
    _row(tmp_path)
    environment = environment_factory("gsm8k", {"data": str(tmp_path), "tool": "python"}, isolation="process")()
    (task,) = environment.tasks("train")
    played = play(environment, task, environment.solution(task))
    assert [each.messages[0].content for each in played.observations[1:-1]] == ["84", "64"]
    assert played.parts == {"answer": 1.0}
    assert "Python code" in environment.system_prompt

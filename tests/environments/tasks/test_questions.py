"""A data set of one's own, with each of the graders."""

import asyncio
import json
from pathlib import Path

import pytest

from components.environments.environment import environment_factory
from components.environments.rewards import Grade
from components.environments.tasks import questions
from components.environments.tasks.questions import Questions
from components.errors import ConfigError, DataError
from tests.environments.tasks.playing import play, say


def data(folder: Path, answer: str) -> str:
    path = folder / "rows.jsonl"
    path.write_text(json.dumps({"ask": "What?", "gold": answer}) + "\n", encoding="utf-8")
    return str(path)


@pytest.mark.parametrize(
    ("grader", "gold", "right", "wrong"),
    [
        ("number", "1,200", "It is $1,200.", "12"),
        ("exact", "Lima", "Lima", "lima"),
        ("loose", "Lima", "the lima!", "Rome"),
        ("latex", "\\frac12", "\\boxed{0.5}", "\\boxed{2}"),
    ],
)
def test_each_grader_knows_right_from_wrong(tmp_path, grader, gold, right, wrong):
    environment = Questions(data(tmp_path, gold), grader, "ask", "gold")
    (task,) = environment.tasks("train")
    assert (task.id, task.prompt, task.answer) == ("train-1", "What?", gold)
    assert [play(environment, task, [say(text)]).reward for text in (right, wrong)] == [1.0, 0.0]
    assert play(environment, task, environment.solution(task)).reward == 1.0


def test_unit_tests_grade_the_last_code_block(tmp_path):
    tests = "assert double(2) == 4\nassert double('a') == 'aa'"
    options = {"data": data(tmp_path, tests), "grader": "unit_tests", "prompt_field": "ask", "answer_field": "gold"}
    environment = environment_factory("questions", options, isolation="process")()
    (task,) = environment.tasks("test")
    code = "```python\ndef double(x):\n    return {}\n```"
    both = play(environment, task, [say(f"First:\n{code.format('1')}\nBetter:\n{code.format('x * 2')}")])
    assert (both.reward, both.reasons) == (1.0, {"reward": "all 2 tests passed"})
    half = play(environment, task, [say(code.format("4"))])
    assert half.reward == 0.5
    assert "1 of 2 tests passed" in half.reasons["reward"]


def test_a_judge_is_asked_with_question_answer_and_reference(tmp_path, monkeypatch):
    class Stern:
        async def grade(self, question, answer, reference):
            return Grade(0.5, f"{question} {answer} {reference}")

    monkeypatch.setattr(questions, "shared_judge", lambda settings: Stern())
    settings = {"endpoint": "http://host/v1", "model": "m", "rubric": "r"}
    environment = Questions(data(tmp_path, "4"), "judge", "ask", "gold", judge=settings)
    (task,) = environment.tasks("train")
    assert play(environment, task, [say("four")]).reasons == {"reward": "What? four 4"}


def test_options_and_rows_that_cannot_work_are_told(tmp_path):
    for options in ({"grader": "judge"}, {"grader": "exact", "judge": {"model": "m"}}):
        with pytest.raises(ConfigError, match="judge"):
            Questions(data(tmp_path, "4"), **options)
    with pytest.raises(ConfigError, match=r"judge.endpoint"):
        Questions(data(tmp_path, "4"), "judge", judge={"endpoint": "x", "model": "m", "rubric": "r"})
    with pytest.raises(DataError, match=r"rows\.jsonl:1: gold: 'four' is not exactly one number"):
        Questions(data(tmp_path, "four"), "number", "ask", "gold").tasks("train")
    with pytest.raises(DataError, match="question: the row has other fields"):
        asyncio.run(asyncio.to_thread(Questions(data(tmp_path, "four"), "exact").tasks, "train"))

"""LaTeX answers are compared as mathematics, and no answer holds a grader up. Cases RW05, RW11."""

import asyncio
import time
from pathlib import Path

import pytest

from components.environments.latex import grade_latex
from components.errors import GraderFailedError


def grade(*pairs):
    async def all_at_once():
        return await asyncio.gather(*(grade_latex(text, gold) for text, gold in pairs))

    return asyncio.run(all_at_once())


def test_what_means_the_same_is_right_and_what_does_not_is_wrong():
    right = [
        ("It is \\boxed{\\frac{1}{2}}.", "0.5"),
        ("\\boxed{1} or rather \\boxed{x^2+2x+1}", "(x+1)^2"),
        ("The answer is $\\frac{3}{4}$.", "\\frac34"),
        ("\\boxed{(1,2]}", "(1,2]"),
        ("\\boxed{\\{1,2\\}}", "\\{2,1\\}"),
        ("\\boxed{2^{10000}}", "2^{10000}"),
    ]
    wrong = [("\\boxed{3}", "4"), ("\\boxed{[1,2]}", "(1,2)"), ("no idea", "4"), ("", "4")]
    grades = grade(*right, *wrong)
    assert [each.reward for each in grades] == [1.0] * 6 + [0.0] * 4
    assert grades[0].reason == "'\\\\frac{1}{2}' is right"
    assert grades[6].reason == "'3' is not '4'"
    assert grades[8].reason == "no mathematics is found in 'no idea'"


def test_hostile_answers_are_wrong_in_time_run_nothing_and_leave_the_grader_at_work(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    started = time.monotonic()
    hostile = {
        "\\boxed{9^{9^{9^{9}}}}": "power of a power",
        "\\boxed{9**9**9**9}": "power of a power",
        "\\boxed{7^{999999999}}": "huge exponent",
        "\\boxed{" + "\\frac{1}{" * 60 + "1" + "}" * 60 + "}": "nested",
        "\\boxed{" + "1+" * 2000 + "1}": "more than 1000",
        "\\boxed{__import__('os').system('touch owned')}": "is not",
        "\\boxed{1/0}": "is not",
        "\\boxed{" + "\\frac{1}{1+" * 28 + "1" + "}" * 28 + "}": "takes too long",
    }
    grades = grade(*((text, "1") for text in hostile))
    assert [each.reward for each in grades] == [0.0] * len(hostile)
    assert [told in each.reason for told, each in zip(hostile.values(), grades, strict=True)] == [True] * len(hostile)
    assert grade(("\\boxed{2}", "1+1"))[0].reward == 1.0
    assert time.monotonic() - started < 90
    assert not Path("owned").exists()


def test_a_gold_answer_that_is_no_mathematics_is_the_graders_failure():
    with pytest.raises(GraderFailedError, match="cannot be read as mathematics"):
        grade(("\\boxed{2}", " "))

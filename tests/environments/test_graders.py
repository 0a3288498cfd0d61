"""What counts as the answer and what is the same number. Cases RW06, RW07, RW08."""

import json
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from components.environments.graders import final_number, grade_exact, grade_number, numbers_in
from components.errors import GraderFailedError

SHARED = Path(__file__).resolve().parents[2].parent / "shared"


@pytest.mark.parametrize(
    ("text", "gold"),
    [
        ("The total is 72 clips, altogether.", "72"),
        ("The answer is 72, in total, so the farmer earns that much.", "72"),
        ("72.", "72"),
        ("72 .", "72"),
        ("#### 72", "72"),
        ("**72**", "72"),
        ("\\boxed{$9{,}500}", "9500"),
        ("\\boxed{8,000}", "8,000"),
        ("10,000", "10000"),
        ("1,575,000", "1,575,000"),
        ("$29.00.", "29"),
        ("$18.00", "18"),
        ("3/4", "0.75"),
        ("50%", "50"),
        ("1e3", "1000"),
        ("1 3/4", "1.75"),
        ("\\frac{3}{4}", "0.75"),
        ("it is .5", "0.5"),
        ("-$5", "-5"),
        ("$-5", "-5"),
        ("(-5)", "-5"),
        ("\N{MINUS SIGN}7", "-7"),
        ("10-5", "5"),
        ("- 5 apples", "5"),
        ("\N{ARABIC-INDIC DIGIT THREE}\N{ARABIC-INDIC DIGIT FOUR}", "34"),
        ("1\N{NO-BREAK SPACE}575\N{NO-BREAK SPACE}000", "1575000"),
        ("12/4=3", "3"),
        ("28.999999999999996", "29"),
        ("0.333333333", "1/3"),
        ("#### 72\nThat is 3 more than 69.", "72"),
        ("first #### 1, then #### 72", "72"),
        ("\\boxed{72} of 100", "72"),
        ("The answer is 72 ####", "72"),
    ],
)
def test_right(text, gold):
    assert grade_number(text, gold).reward == 1.0


@pytest.mark.parametrize(
    ("text", "gold"),
    [
        ("500", "9,500"),
        ("1,2,3", "123"),
        ("29.5", "29"),
        ("3/4", "4"),
        ("50%", "0.5"),
        ("1575001", "1575000"),
        ("72 and then 73", "72"),
        ("#### 71 (not 72)", "72"),
        ("no number here,", "72"),
        ("", "0"),
        ("seventy-two", "72"),
        ("5", "-5"),
        ("1e-7", "0"),
        ("1e999999999", "1"),
        ("9" * 500, "9"),
    ],
)
def test_wrong(text, gold):
    assert grade_number(text, gold).reward == 0.0


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("It is 72.", "72 is right"),
        ("It is 1/3", "1/3 is wrong, 72 is right"),
        ("no idea", "the answer holds no number; 72 is right"),
        ("9" * 300, f"{'9' * 60}... is wrong, 72 is right"),
    ],
)
def test_a_grade_says_what_was_found_and_what_is_right(text, reason):
    assert grade_number(text, "72").reason == reason


@pytest.mark.parametrize(
    ("text", "gold", "loose", "reward"),
    [
        (" Lima\n", "Lima", False, 1.0),
        ("lima", "Lima", False, 0.0),
        ("Cafe\u0301", "Café", False, 1.0),
        ("the  Port of Lima!", "Port of Lima", True, 1.0),
        ("Lima, Peru", ("Lima", "lima peru"), True, 1.0),
        ("Limas", "Lima", True, 0.0),
        ("", "Lima", True, 0.0),
    ],
)
def test_texts_are_equal_strictly_or_loosely(text, gold, loose, reward):
    grade = grade_exact(text, gold, loose=loose)
    assert grade.reward == reward
    assert grade.reason.startswith(repr(text) + (" is right" if reward else " is not "))


@pytest.mark.parametrize("gold", ["", " ", (), ("Lima", "the")])
def test_an_empty_gold_text_is_the_graders_failure(gold):
    with pytest.raises(GraderFailedError, match="is empty"):
        grade_exact("Lima", gold, loose=True)


def test_numbers_are_read_in_order_and_lists_are_lists():
    assert numbers_in("1,2,3 and 1,234 and 2/3 in 1/2/3, 5/0; v1.2.3") == [
        *map(Fraction, ("1", "2", "3", "1234", "2/3", "1", "2", "3", "5", "0")),
        *map(Fraction, ("1.2", "3")),
    ]


@pytest.mark.parametrize("gold", ["", "none", "1 or 2"])
def test_a_gold_answer_that_is_not_one_number_is_the_graders_failure(gold):
    with pytest.raises(GraderFailedError, match="exactly one number"):
        grade_number("1", gold)


@given(st.integers(-(10**12), 10**12))
def test_every_way_of_writing_an_int_is_that_int(value):
    for text in (f"{value}", f"{value:,}", f"${value:,}.00", f"**{value}**", f"so {value}.", f"#### {value:,}"):
        assert final_number(text) == value


@given(st.text(alphabet="0123456789,./-+eE$ #\\boxed{}frac\u2212\u00a0٣½", max_size=80))
def test_any_text_gives_an_exact_number_or_none(text):
    number = final_number(text)
    assert number is None or isinstance(number, Fraction)


def test_the_longest_texts_are_read_from_their_end():
    assert final_number("1,1/2 " * 300_000 + "#### 72") == 72


def test_rows_with_commas_grade_their_own_answers():
    rows = SHARED / "cases" / "files" / "gsm8k" / "gsm8k_rows.jsonl"
    if not rows.is_file():
        pytest.skip("the case bank is not beside the repository")
    answers = [json.loads(line)["answer"] for line in rows.read_text(encoding="utf-8").split("\n") if line]
    with_commas = [answer for answer in answers if "," in answer.rsplit("####", 1)[1]]
    assert len(with_commas) >= 5
    assert [grade_number(answer, answer.rsplit("####", 1)[1]).reward for answer in answers] == [1.0] * len(answers)


def test_the_marks_of_the_public_example_solutions_are_matched():
    """Of each test problem four solutions, which end with "A: " and a number, and whether they are right."""
    examples = SHARED / "data" / "gsm8k" / "example_model_solutions.jsonl"
    if not examples.is_file():
        pytest.skip(f"{examples.name} of openai/grade-school-math is not beside the repository")
    rows = [json.loads(line) for line in examples.read_text(encoding="utf-8").split("\n") if line]
    marked = [
        (grade_number(solution["solution"], row["ground_truth"].rsplit("A:", 1)[1]).reward, solution["is_correct"])
        for row in rows
        for solution in row.values()
        if isinstance(solution, dict)
    ]
    assert len(marked) == 4 * 1319
    assert [pair for pair in marked if pair[0] != pair[1]] == []

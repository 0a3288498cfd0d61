"""Countdown: every problem has a solution, only an expression of its numbers that makes the target is right."""

import re
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from components.environments.tasks.countdown import Countdown, ExpressionError, evaluate, grade_expression
from components.errors import ConfigError
from tests.environments.tasks.playing import play, say, splits


@pytest.mark.parametrize("options", [{}, {"numbers": [5, 6], "use_all": True}, {"numbers": [2], "high": 12}])
def test_every_problem_is_solved_by_the_expression_that_it_was_made_with(options):
    counts = {"train_tasks": 20, "test_tasks": 10}
    train, test = splits(Countdown, **options, **counts)
    assert (len(train), len(test)) == (20, 10)
    environment = Countdown(**options, **counts)
    for task in train + test:
        solved = play(environment, task, environment.solution(task))
        assert (solved.reward, solved.done) == (1.0, True), (task, solved.reasons)
    assert play(environment, train[0], [say("1+1")]).reward == 0.0


def test_the_number_of_train_tasks_does_not_change_the_test_tasks():
    assert list(Countdown(train_tasks=10).tasks("test")) == list(Countdown(train_tasks=20).tasks("test"))


@pytest.mark.parametrize(
    ("answer", "reward", "reason"),
    [
        ("25*4-4", 1.0, "25*4-4 is 96"),
        ("First 25 × 4.\nAnswer: (25 × 4) − 4 = 96", 1.0, "(25 * 4) - 4 is 96"),
        ("**25*4-4**", 1.0, "25*4-4 is 96"),
        ("25*(4-4/25)", 0.0, "uses 25, which is not given, or not that often"),
        ("4*25-3-1", 0.0, "uses 3, 1, which is not given, or not that often"),
        ("25*4", 0.0, "25*4 is 100, not 96"),
        ("25/4", 0.0, "25/4 is 25/4, not 96"),
        ("", 0.0, "'' cannot be read: it is empty"),
        ("I do not know", 0.0, "'I do not know' cannot be read: only whole numbers"),
        ("25*4-", 0.0, "it ends too early"),
        ("(25*4", 0.0, "a ) is missing"),
        ("25/(4-4)", 0.0, "it divides by 0"),
        ("25 4", 0.0, "'4' is not expected there"),
        ("4**25", 0.0, "'*' is not expected there"),
        ("25.0*4-4", 0.0, "only whole numbers"),
        ("__import__('os').system('touch owned')", 0.0, "only whole numbers"),
        ("(" * 50 + "4" + ")" * 50, 0.0, "parentheses are nested more than 20 deep"),
        ("4+" * 400 + "4", 0.0, "more than 200"),
    ],
)
def test_what_is_right_and_why(answer, reward, reason):
    grade, _ = grade_expression(answer, [4, 4, 25], 96)
    assert grade.reward == reward
    assert reason in grade.reason


def test_all_numbers_may_be_asked_for():
    assert grade_expression("4*4", [4, 4, 25], 16, use_all=True)[0].reason == "leaves out 25"


def test_an_expression_that_keeps_to_the_rules_may_earn_a_part():
    environment = Countdown(format_weight=0.2, train_tasks=1, test_tasks=1)
    (task,) = environment.tasks("train")
    assert play(environment, task, environment.solution(task)).parts == {"answer": 1.0, "format": 0.2}
    allowed = str(task.data["numbers"][0])
    assert play(environment, task, [say(allowed)]).parts == {"answer": 0.0, "format": 0.2}
    assert play(environment, task, [say("no idea")]).parts == {"answer": 0.0, "format": 0.0}


EXPRESSIONS = st.recursive(
    st.integers(1, 99).map(str),
    lambda inner: st.tuples(inner, st.sampled_from("+-*/"), inner).map(lambda parts: f"({''.join(parts)})"),
    max_leaves=8,
)


@given(EXPRESSIONS)
def test_values_are_exact_and_every_number_is_counted(expression):
    numbers = re.findall(r"\d+", expression)
    # Python's own, over fractions.
    try:
        expected = eval(re.sub(r"(\d+)", r"Fraction(\1)", expression), {"Fraction": Fraction})
    except ZeroDivisionError:
        with pytest.raises(ExpressionError, match="divides by 0"):
            evaluate(expression)
        return
    assert evaluate(expression) == (expected, list(map(int, numbers)))


@pytest.mark.parametrize(
    ("options", "where"),
    [
        ({"numbers": [1]}, "numbers"),
        ({"high": 1}, "high, target_high"),
        ({"worked_examples": 3}, "worked_examples"),
        ({"test_tasks": 0}, "test_tasks"),
    ],
)
def test_options_that_cannot_work_are_told(options, where):
    with pytest.raises(ConfigError) as caught:
        Countdown(**options)
    assert [problem.where for problem in caught.value.problems] == [where]


def test_more_problems_than_there_are_is_told():
    with pytest.raises(ConfigError, match="different problems were found"):
        list(Countdown(numbers=[2], high=3, target_high=10, train_tasks=5000).tasks("train"))
    with pytest.raises(ConfigError, match='must be "train" or "test"'):
        list(Countdown().tasks("dev"))

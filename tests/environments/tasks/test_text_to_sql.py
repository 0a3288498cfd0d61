"""Text to SQL: every question has a query that answers it, and a query is known by its result."""

import hashlib

import pytest

from components.environments.sql import Rows
from components.environments.tasks.shop import asked, write_shop
from components.environments.tasks.text_to_sql import TextToSql, grade_rows
from components.errors import ConfigError
from components.types import Task
from tests.environments.tasks.playing import play, splits


def test_the_shop_is_the_same_every_time(tmp_path):
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        write_shop(tmp_path / name, seed=seed)
    first, same, other = (hashlib.sha256((tmp_path / name).read_bytes()).digest() for name in "abc")
    assert first == same != other
    assert len({each.question for each in asked()}) == len(list(asked()))


def test_every_question_is_answered_by_its_query_and_not_by_another():
    train, test = splits(TextToSql)
    assert (len(train), len(test)) == (250, 60)
    environment = TextToSql()
    for task in [*train, *test]:
        assert environment.grade(task, task.answer).reward == 1.0
    for task in train[:10]:
        solved = play(environment, task, environment.solution(task))
        assert (solved.reward, solved.observations[-1].done) == (1.0, True)
    assert environment.grade(train[0], "SELECT 'nothing of the kind'").reward == 0.0
    assert "CREATE TABLE order_items" in environment.system_prompt


COUNT = Task("t", "How many customers live in Corwick?", "SELECT COUNT(*) FROM customers WHERE town = 'Corwick'")
LIST = Task("t", "Lamps by price", "SELECT name FROM products WHERE category = 'lamps' ORDER BY price")


@pytest.mark.parametrize(
    ("task", "answer", "reward", "reason"),
    [
        (COUNT, "It is\n```sql\nselect sum(town = 'Corwick') + 0.0 from customers;\n```", 1.0, "the result is right"),
        (COUNT, "SELECT COUNT(*) FROM customers", 0.0, "the result holds (80,), which is not right"),
        (COUNT, "SELECT town, COUNT(*) FROM customers", 0.0, "the result has 2 columns, 1 are right"),
        (COUNT, "SELECT town FROM customers", 0.0, "the result has 80 rows, 1 are right"),
        (COUNT, "12", 0.0, "the query fails: near"),
        (COUNT, "", 0.0, "the query fails: this is no query"),
        (COUNT, "DROP TABLE customers", 0.0, "the query fails: not authorized"),
        (COUNT, "SELECT COUNT(*) FROM clients", 0.0, "the query fails: no such table: clients"),
        (LIST, "SELECT name FROM products WHERE category = 'lamps' ORDER BY price", 1.0, "the result is right, 8 rows"),
        (LIST, "SELECT name FROM products WHERE category = 'lamps' ORDER BY price DESC", 0.0, "but not their order"),
    ],
)
def test_a_query_is_known_by_its_result(task, answer, reward, reason):
    graded = TextToSql().grade(task, answer)
    assert graded.reward == reward
    assert reason in graded.reason


def test_a_query_that_does_not_end_is_ended():
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT COUNT(*) FROM n"
    assert "took longer than" in TextToSql().grade(COUNT, endless).reason


def test_rows_are_compared_as_a_multiset_up_to_rounding():
    def rows(*values):
        return Rows(("a",), tuple((value,) for value in values))

    assert grade_rows(rows(2, 1.0), rows(1, 2.0000000001), ordered=False).reward == 1.0
    assert grade_rows(rows(1, 1, 2), rows(1, 2, 2), ordered=False).reward == 0.0
    assert grade_rows(rows(None), rows(0), ordered=False).reward == 0.0


def test_without_the_tool_the_query_is_the_first_message():
    environment = TextToSql(tool=False, train_tasks=5, test_tasks=5)
    task = next(iter(environment.tasks("train")))
    assert play(environment, task, environment.solution(task)).reward == 1.0
    with pytest.raises(ConfigError, match="questions beside"):
        TextToSql(train_tasks=5000)

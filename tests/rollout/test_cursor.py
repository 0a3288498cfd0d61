"""The order of tasks is a function of the seed, and a position is all that a resume needs."""

from itertools import islice

import pytest

from components.errors import CheckpointError, DataError
from components.rollout.cursor import TaskCursor
from components.types import Task

TASKS = [Task(id=str(number), prompt=f"{number}?") for number in range(100)]


def ids(cursor: TaskCursor, count: int) -> list[str]:
    return [admission.task.id for admission in islice(cursor, count)]


def resumed(cursor: TaskCursor) -> TaskCursor:
    again = TaskCursor(TASKS, seed=42)
    again.resume(cursor.position, cursor.fingerprint)
    return again


@pytest.mark.parametrize("stops", [(20, 10), (0,), (100,), (100, 0, 50)])
def test_any_number_of_resumes_gives_the_order_of_an_uninterrupted_run(stops):
    whole = ids(TaskCursor(TASKS, seed=42), 200)
    cursor, seen = TaskCursor(TASKS, seed=42), []
    for stop in stops:
        seen += ids(cursor, stop)
        cursor = resumed(cursor)
    seen += ids(cursor, 200 - len(seen))
    assert seen == whole


def test_every_epoch_holds_every_task_once_in_another_order():
    order = ids(TaskCursor(TASKS, seed=42), 200)
    assert sorted(order[:100]) == sorted(order[100:]) == sorted(task.id for task in TASKS)
    assert order[:100] != order[100:]


def test_positions_that_were_trained_on_out_of_order_are_left_out_after_a_resume():
    cursor = TaskCursor(TASKS, seed=42)
    whole = ids(TaskCursor(TASKS, seed=42), 6)
    cursor.resume(2, cursor.fingerprint, done=[3, 4])
    assert ids(cursor, 2) == [whole[2], whole[5]]


def test_a_position_of_other_data_is_refused():
    with pytest.raises(CheckpointError, match="same data"):
        TaskCursor(TASKS, seed=42).resume(3, "0123456789abcdef")


def test_a_doubled_id_is_refused_by_name():
    with pytest.raises(DataError, match="'7' stands twice"):
        TaskCursor([*TASKS, TASKS[7]], seed=0)


def test_no_task_at_all_is_refused():
    with pytest.raises(DataError, match="no task"):
        TaskCursor([], seed=0)

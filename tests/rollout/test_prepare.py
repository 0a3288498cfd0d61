"""Tasks on their way from an environment to the trainer."""

import json
from collections.abc import Iterable
from pathlib import Path

import pytest

from components.environments.arithmetic import Arithmetic
from components.errors import DataError
from components.rollout.prepare import read_tasks, write_tasks
from components.types import Task


class Listed(Arithmetic):
    """Plays whatever it is given."""

    def __init__(self, train: list[list[str]], test: list[list[str]]) -> None:
        super().__init__()
        self._listed = {"train": train, "test": test}

    def tasks(self, split: str) -> Iterable[Task]:
        return (Task(name, prompt, "0", {"row": {"deep": [1, "ü"]}}) for name, prompt in self._listed[split])


def write(
    folder: Path, train: list[list[str]], test: list[list[str]], section: dict[str, int] | None = None
) -> dict[str, object]:
    environment = {"use": f"{__name__}:Listed", "options": {"train": train, "test": test}}
    return write_tasks(
        section=json.dumps(section or {}), environment=json.dumps(environment), seed=0, folder=str(folder / "tasks")
    )


def test_tasks_come_back_as_they_were(tmp_path: Path) -> None:
    facts = write(tmp_path, [["a", "1+1"], ["b", "line\u2028break\nand ü"]], [["c", "1+1"]])
    assert facts == {"train_tasks": 2, "test_tasks": 1, "prompts_in_both_splits": 1}
    assert read_tasks(tmp_path / "tasks", "train")[1] == Task(
        "b", "line\u2028break\nand ü", "0", {"row": {"deep": [1, "ü"]}}
    )
    assert [task.id for task in read_tasks(tmp_path / "tasks", "test")] == ["c"]


def test_a_limit_takes_from_the_front(tmp_path: Path) -> None:
    write(tmp_path, [["a", "x"], ["b", "y"], ["c", "z"]], [["d", "x"]], {"train_tasks": 2})
    assert [task.id for task in read_tasks(tmp_path / "tasks", "train")] == ["a", "b"]


def test_every_unusable_task_is_told_before_anything_trains_on_it(tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        write(tmp_path, [["a", "x"], ["b", " "], ["a", "y"]], [["c", "x"]])
    told = [(problem.where.rpartition(", ")[2], problem.message[:14]) for problem in caught.value.problems]
    assert told == [("task 1 of split train", "the prompt is "), ("task 2 of split train", "the id stands ")]


def test_an_empty_split_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="split test: there is no task"):
        write(tmp_path, [["a", "x"]], [])


def test_tasks_that_are_gone_are_told_with_the_step_that_makes_them(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="the output of prepare_data is gone"):
        read_tasks(tmp_path, "train")


def test_a_damaged_line_is_told_with_its_number(tmp_path: Path) -> None:
    (tmp_path / "train.jsonl").write_text('{"id": "a", "prompt": "x"}\n{"id": "b", "promt": "x"}\n')
    with pytest.raises(DataError, match=r"train\.jsonl:2: is no task"):
        read_tasks(tmp_path, "train")


class Limited(Listed):
    """Gives each task the limits that its prompt spells."""

    def tasks(self, split: str) -> Iterable[Task]:
        return (Task(name, prompt, "0", limits=json.loads(prompt)) for name, prompt in self._listed[split])


def test_limits_travel_with_a_task_and_a_limit_that_is_none_is_told(tmp_path: Path) -> None:
    def write_limited(prompt: str) -> None:
        options = {"train": [["a", prompt]], "test": [["b", "{}"]]}
        environment = json.dumps({"use": f"{__name__}:Limited", "options": options})
        write_tasks(section="{}", environment=environment, seed=0, folder=str(tmp_path))

    write_limited('{"max_turns": 2, "max_seconds": 1.5}')
    assert read_tasks(tmp_path, "train")[0].limits == {"max_turns": 2, "max_seconds": 1.5}
    with pytest.raises(DataError, match=r"task 0 of split train: limits\.max_turn: unknown key"):
        write_limited('{"max_turn": 2}')

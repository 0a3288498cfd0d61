"""What makes problems, and how many -> a train and a test split that share none."""

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol, runtime_checkable

from components.errors import ConfigError, Problem
from components.types import Message, Task

_PATIENCE = 2000
"""Draws in a row that gave nothing new: then there are no others, or too few to go on looking for."""


@runtime_checkable
class Solved(Protocol):
    """An environment that knows how its tasks are solved."""

    def solution(self, task: Task) -> Sequence[Message]:
        """The assistant messages, turn by turn, of an episode that earns the whole reward."""
        ...


def check_split(split: str) -> None:
    """Raises ConfigError for a split that is neither train nor test."""
    if split not in ("train", "test"):
        raise ConfigError(Problem("split", split, 'must be "train" or "test"'))


def check_counts(train_tasks: int, test_tasks: int) -> list[Problem]:
    """What is wrong with the sizes of the splits."""
    counts = {"train_tasks": train_tasks, "test_tasks": test_tasks}
    return [Problem(name, count, "must be 1 or more") for name, count in counts.items() if count < 1]


def drawn_tasks(draw: Callable[[], Task | None], split: str, *, train_tasks: int, test_tasks: int) -> list[Task]:
    """The tasks of a split out of an endless supply, told apart by id. `draw` starts anew with every call of
    this, and gives None where chance has made something that is no problem.

    The test tasks come first, so that the number of train tasks does not change them. Raises ConfigError for an unknown
    split, and where the supply has too few different ones.
    """
    check_split(split)
    wanted = test_tasks if split == "test" else test_tasks + train_tasks
    tasks = list(_different(draw, wanted))
    if len(tasks) < wanted:
        message = f"only {len(tasks)} different problems were found with these options; ask for fewer"
        raise ConfigError(Problem("train_tasks, test_tasks", {"train": train_tasks, "test": test_tasks}, message))
    return tasks if split == "test" else tasks[test_tasks:]


def _different(draw: Callable[[], Task | None], wanted: int) -> Iterator[Task]:
    seen: set[str] = set()
    known = 0
    while len(seen) < wanted and known < _PATIENCE:
        task = draw()
        if task is None or task.id in seen:
            known += 1
            continue
        seen.add(task.id)
        known = 0
        yield task

"""Tasks -> the order in which a run plays them: shuffled anew each epoch, its position counted in tasks.

The order is a function of (seed, epoch) and nothing else, so a position is all that a checkpoint has to remember.
"""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from components.errors import CheckpointError, DataError
from components.types import Task


@dataclass(frozen=True, slots=True)
class Admission:
    """A task on its way into the run. `position` counts admissions from 0 over the whole run."""

    task: Task
    epoch: int
    position: int


class TaskCursor(Iterator[Admission]):
    """Endless: after the last task of an epoch comes the first of the next, in another order.

    Raises DataError when there is no task, or when an id stands twice (a sample could not be told from another).
    """

    def __init__(self, tasks: Sequence[Task], *, seed: int) -> None:
        if not tasks:
            raise DataError("there is no task to play; every row was filtered, or the data is empty")
        _refuse_doubled_ids(tasks)
        self._tasks = tasks
        self._seed = seed
        self._order: tuple[int, np.ndarray] | None = None
        self._done: frozenset[int] = frozenset()
        self.position = 0

    def __next__(self) -> Admission:
        while self.position in self._done:
            self.position += 1
        epoch, row = divmod(self.position, len(self._tasks))
        if self._order is None or self._order[0] != epoch:
            self._order = epoch, np.random.default_rng([self._seed, epoch]).permutation(len(self._tasks))
        admission = Admission(task=self._tasks[self._order[1][row]], epoch=epoch, position=self.position)
        self.position += 1
        return admission

    @property
    def fingerprint(self) -> str:
        """A hash over the ids, prompts and answers in file order: the data that a position belongs to."""
        digest = hashlib.sha256()
        for task in self._tasks:
            digest.update(repr((task.id, task.prompt, task.answer)).encode())
        return digest.hexdigest()[:16]

    def resume(self, position: int, fingerprint: str, done: Iterable[int] = ()) -> None:
        """Go on at `position`, leaving out the later positions in `done`, which were trained on out of order.

        Raises CheckpointError when the position belongs to other data.
        """
        if fingerprint != self.fingerprint:
            raise CheckpointError(
                f"the checkpoint was made on tasks {fingerprint}, and these are tasks {self.fingerprint}; "
                "resume with the same data, or start a new run"
            )
        self.position = position
        self._done = frozenset(done)


def _refuse_doubled_ids(tasks: Sequence[Task]) -> None:
    seen: set[str] = set()
    for task in tasks:
        if task.id in seen:
            raise DataError(f"the task id {task.id!r} stands twice in the data; every task needs an id of its own")
        seen.add(task.id)

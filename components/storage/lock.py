"""One process at a time in a local folder; the system frees the lock when its holder dies, however it dies."""

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from components.storage.files import is_remote
from components.storage.place import ConflictError, Uri

_LOOK_SECONDS = 0.2


@contextmanager
def sole_process(lock: Uri, *, patience: float, on_wait: Callable[[str], None]) -> Iterator[None]:
    """Hold the lock file `lock` for a block. Another holder has `patience` seconds to end, and `on_wait` is told of it.

    Raises ConflictError naming the holder. On gs:// there is nothing to hold, as a lock could outlive its holder: there
    the log that the process writes tells a second writer (`LineLog`).
    """
    if is_remote(lock):
        yield
        return
    path = Path(lock)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+") as file:
        _acquire(file.fileno(), path, patience, on_wait)
        file.truncate(0)
        file.write(f"process {os.getpid()}")
        file.flush()
        yield


def is_held(lock: Uri) -> bool | None:
    """Whether a process holds the lock file now; None on gs://, where nobody can know."""
    if is_remote(lock):
        return None
    try:
        with Path(lock).open() as file:
            fcntl.flock(file.fileno(), fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def _acquire(descriptor: int, path: Path, patience: float, on_wait: Callable[[str], None]) -> None:
    deadline: float | None = None
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            holder = path.read_text() or "another process"
        if deadline is None:
            deadline = time.monotonic() + patience
            on_wait(f"{holder} still works in {path.parent}; waiting up to {patience:g} s for it to end")
        if time.monotonic() > deadline:
            raise ConflictError(f"{holder} works in {path.parent}; wait until it has ended, or stop it")
        time.sleep(_LOOK_SECONDS)

"""Data that code makes -> a file of this process, made once and gone with it."""

import functools
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

_lock = threading.Lock()
_folders: list[tempfile.TemporaryDirectory[str]] = []


def made_file(name: str, make: Callable[[Path], None]) -> Path:
    """The file of this name; `make` writes it where this is the first call. Raises what `make` raises."""
    with _lock:
        path = _folder() / name
        if not path.is_file():
            unfinished = path.with_suffix(".unfinished")
            make(unfinished)
            unfinished.rename(path)
        return path


@functools.cache
def _folder() -> Path:
    _folders.append(tempfile.TemporaryDirectory(prefix="headrace-tasks-"))
    return Path(_folders[0].name)

"""The local file system as a place: temporary name, flush, rename."""

import fcntl
import os
import shutil
import time
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from components.storage.place import PARTIAL, ConflictError, LogEnd


class Disk:
    """The local file system. A generation is the time of change in nanoseconds, made to grow with every write."""

    def read(self, uri: str) -> bytes:
        return Path(uri).read_bytes()

    def read_versioned(self, uri: str) -> tuple[bytes, int]:
        # One open file, so that both answers are of the same file when another takes its name meanwhile.
        with Path(uri).open("rb") as file:
            return file.read(), os.fstat(file.fileno()).st_mtime_ns

    def write(self, uri: str, data: bytes, expected: int | None) -> int:
        path = Path(uri)
        path.parent.mkdir(parents=True, exist_ok=True)
        with _folder_lock(path.parent):
            current = path.stat().st_mtime_ns if path.is_file() else 0
            if expected is not None and expected != current:
                raise ConflictError(f"{uri} has generation {current}, not {expected}: somebody else wrote it")
            generation = max(time.time_ns(), current + 1)
            with renamed_at_end(path) as partial:
                partial.write_bytes(data)
                os.utime(partial, ns=(generation, generation))
        return generation

    def upload(self, source: Path, uri: str) -> None:
        path = Path(uri)
        path.parent.mkdir(parents=True, exist_ok=True)
        with renamed_at_end(path) as partial:
            shutil.copyfile(source, partial)

    def download(self, uri: str, target: Path) -> None:
        shutil.copyfile(uri, target)

    def open_log(self, uri: str) -> LogEnd:
        path = Path(uri)
        if not path.is_file():
            return 0, 0
        if not (text := path.read_bytes()).endswith(b"\n"):
            os.truncate(path, text.rfind(b"\n") + 1)
        return 0, path.stat().st_size

    def append(self, uri: str, data: bytes, end: LogEnd) -> LogEnd:
        path = Path(uri)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as file:
            if file.tell() != end[1]:
                raise ConflictError(f"{uri} has {file.tell()} bytes, not {end[1]}: somebody else writes it")
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        return 0, end[1] + len(data)

    def size(self, uri: str) -> int | None:
        path = Path(uri)
        return path.stat().st_size if path.is_file() else None

    def walk(self, folder: str) -> Iterable[str]:
        for where, _, names in os.walk(folder):
            yield from (os.path.join(where, name) for name in names)

    def delete(self, uri: str) -> None:
        Path(uri).unlink(missing_ok=True)

    def remove_empty_folders(self, folder: str) -> None:
        for where, _, _ in os.walk(folder, topdown=False):
            if not os.listdir(where):
                os.rmdir(where)


@contextmanager
def renamed_at_end(path: Path) -> Iterator[Path]:
    """A temporary name beside `path`, flushed to the disk and renamed when the block ends well."""
    partial = path.with_name(f".{path.name}.{uuid.uuid4().hex}{PARTIAL}")
    try:
        yield partial
        _flush(partial)
        partial.rename(path)
        _flush(path.parent)
    finally:
        partial.unlink(missing_ok=True)


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _folder_lock(folder: Path) -> Iterator[None]:
    """Held by one writer of a folder at a time, in whatever process; the system frees it when its holder dies."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)

"""The local file system as a place: temporary name, flush, rename."""

import errno
import fcntl
import os
import shutil
import time
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

from components.storage.place import PARTIAL, ConflictError, LogEnd, StorageError

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


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
                raise ConflictError(f"{uri} has generation {current}, not {expected}: {_who_wrote(current)}")
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
            return LogEnd()
        if not (text := path.read_bytes()).endswith(b"\n"):
            os.truncate(path, text.rfind(b"\n") + 1)
        return LogEnd(size=path.stat().st_size)

    def append(self, uri: str, data: bytes, end: LogEnd) -> LogEnd:
        path = Path(uri)
        path.parent.mkdir(parents=True, exist_ok=True)
        with _room_for(path), path.open("ab") as file:
            if file.tell() != end.size:
                raise ConflictError(f"{uri} has {file.tell()} bytes, not {end.size}: somebody else writes it")
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        return LogEnd(size=end.size + len(data))

    def size(self, uri: str) -> int | None:
        path = Path(uri)
        return path.stat().st_size if path.is_file() else None

    def walk(self, folder: str) -> Iterable[tuple[str, int]]:
        for where, _, names in os.walk(folder, onerror=_unless_missing):
            for path in (os.path.join(where, name) for name in names):
                with suppress(FileNotFoundError):  # deleted since
                    # A link that leads nowhere is listed, too: whoever copies the folder has to be told.
                    yield path, (os.stat if os.path.exists(path) else os.lstat)(path).st_size

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
        with _room_for(path):
            yield partial
            _flush(partial)
            partial.rename(path)
            _flush(path.parent)
    finally:
        partial.unlink(missing_ok=True)


@contextmanager
def _room_for(path: Path) -> Iterator[None]:
    """Names the file that a full disk keeps from being written: the system says only that some disk is full."""
    try:
        yield
    except OSError as error:
        if error.errno not in _FULL:
            raise
        free = shutil.disk_usage(path.parent).free / 1e9
        raise StorageError(
            f"{path} cannot be written: {error.strerror} ({free:.1f} GB are free there). Nothing half-written counts; "
            "make room and run the same command again"
        ) from error


def _unless_missing(error: OSError) -> None:
    """A listing that passes over what it may not read would be a lie."""
    if not isinstance(error, FileNotFoundError | NotADirectoryError):
        raise error


def _who_wrote(generation: int) -> str:
    if not generation:
        return "somebody else deleted it"
    return f"somebody else wrote it at {datetime.fromtimestamp(generation / 1e9, UTC):%F %T} UTC"


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

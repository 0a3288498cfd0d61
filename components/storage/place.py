"""What a place to store files must do, and what can go wrong there."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple, Protocol, runtime_checkable

from components.errors import HeadraceError

Uri = str | os.PathLike[str]

PARTIAL = ".partial"
"""How the name of a file ends that is still being written."""


class LogEnd(NamedTuple):
    """Where a log ends. A local file has no use for its generation and checksum; without a file all are 0."""

    generation: int = 0
    size: int = 0
    checksum: int = 0


class ConflictError(HeadraceError):
    """Somebody else wrote first: the generation is not the expected one."""


class StorageError(HeadraceError, OSError):
    """The storage cannot do what it is asked, or did not answer well for as long as it is waited for.

    An OSError, too, as is everything that goes wrong with a file.
    """


class AccessError(StorageError, PermissionError):
    """The rights, or the credentials, are missing."""


@runtime_checkable
class Place(Protocol):
    """What a place to store files must do. URIs are whole; a missing file raises FileNotFoundError.

    `walk` gives each file below a folder with its size in bytes.
    """

    def read(self, uri: str) -> bytes: ...
    def read_versioned(self, uri: str) -> tuple[bytes, int]: ...
    def write(self, uri: str, data: bytes, expected: int | None) -> int: ...
    def upload(self, source: Path, uri: str) -> None: ...
    def download(self, uri: str, target: Path) -> None: ...
    def open_log(self, uri: str) -> LogEnd: ...
    def append(self, uri: str, data: bytes, end: LogEnd) -> LogEnd: ...
    def size(self, uri: str) -> int | None: ...
    def walk(self, folder: str) -> Iterable[tuple[str, int]]: ...
    def delete(self, uri: str) -> None: ...
    def remove_empty_folders(self, folder: str) -> None: ...

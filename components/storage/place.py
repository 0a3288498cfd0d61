"""What a place to store files must do, and what can go wrong there."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol, runtime_checkable

from components.errors import HeadraceError

Uri = str | os.PathLike[str]

PARTIAL = ".partial"
"""How the name of a file ends that is still being written."""


LogEnd = tuple[int, int]
"""Where a log ends: its generation (0 where there is none, or where files have no use for one) and its bytes."""


class ConflictError(HeadraceError):
    """Somebody else wrote first: the generation is not the expected one."""


@runtime_checkable
class Place(Protocol):
    """What a place to store files must do. URIs are whole; a missing file raises FileNotFoundError."""

    def read(self, uri: str) -> bytes: ...
    def read_versioned(self, uri: str) -> tuple[bytes, int]: ...
    def write(self, uri: str, data: bytes, expected: int | None) -> int: ...
    def upload(self, source: Path, uri: str) -> None: ...
    def download(self, uri: str, target: Path) -> None: ...
    def open_log(self, uri: str) -> LogEnd: ...
    def append(self, uri: str, data: bytes, end: LogEnd) -> LogEnd: ...
    def size(self, uri: str) -> int | None: ...
    def walk(self, folder: str) -> Iterable[str]: ...
    def delete(self, uri: str) -> None: ...
    def remove_empty_folders(self, folder: str) -> None: ...

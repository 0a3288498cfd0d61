"""One file, on a local path or a gs:// URI: read, write, look, copy, delete."""

import functools
import hashlib
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

from components.errors import ConfigError, Problem
from components.storage.disk import Disk, renamed_at_end
from components.storage.place import PARTIAL, Place, Uri

_DISK = Disk()


def place_of(uri: Uri) -> Place:
    """The place that a path or URI points into. Raises ConfigError for a scheme that is not gs://."""
    return _bucket() if is_remote(uri) else _DISK


@functools.cache
def _bucket() -> Place:
    # Google's client is slow to import, and local work has no use for it.
    from components.storage.bucket import Bucket

    return Bucket()


def read_bytes(uri: Uri) -> bytes:
    """The content. Raises FileNotFoundError."""
    return place_of(uri).read(str(uri))


def read_text(uri: Uri) -> str:
    """The content as UTF-8. Raises FileNotFoundError."""
    return read_bytes(uri).decode()


def read_versioned(uri: Uri) -> tuple[bytes, int]:
    """The content and its generation, read together. Raises FileNotFoundError."""
    return place_of(uri).read_versioned(str(uri))


def write_bytes(uri: Uri, data: bytes, *, if_generation_match: int | None = None) -> int:
    """Write a file whole or not at all, its folders included, and return its generation.

    Raises ConflictError where `if_generation_match` is given and is not the file's generation (0: no file).
    """
    return place_of(uri).write(str(uri), data, if_generation_match)


def write_text(uri: Uri, text: str, *, if_generation_match: int | None = None) -> int:
    """`write_bytes` of UTF-8."""
    return write_bytes(uri, text.encode(), if_generation_match=if_generation_match)


def exists(uri: Uri) -> bool:
    """Whether there is a file, or a folder that holds one."""
    place = place_of(uri)
    return place.size(str(uri)) is not None or any(not name.endswith(PARTIAL) for name, _ in place.walk(str(uri)))


def size(uri: Uri) -> int:
    """Bytes of a file. Raises FileNotFoundError."""
    found = place_of(uri).size(str(uri))
    if found is None:
        raise FileNotFoundError(str(uri))
    return found


def list_files(folder: Uri) -> list[str]:
    """All files below a folder, as sorted paths or URIs. Files that are still being written are not among them."""
    return sorted(_whole_files(folder))


def list_sizes(folder: Uri) -> dict[str, int]:
    """`list_files`, each with its size in bytes, by one look at all of them."""
    return dict(sorted(_whole_files(folder).items()))


def delete(uri: Uri) -> None:
    """Delete one file. A file that is not there is no error."""
    place_of(uri).delete(str(uri))


def join(base: Uri, *parts: str) -> str:
    """Put names below a path or URI. Raises ValueError for a part that leads out of `base`."""
    names = [name for part in parts for name in PurePosixPath(part).parts]
    if any(name in ("..", "/") for name in names):
        raise ValueError(f"cannot put {parts} below {base}: a part must not be absolute and must not hold '..'")
    return "/".join([str(base).rstrip("/"), *names])


def is_remote(uri: Uri) -> bool:
    """Whether the URI is on GCS. Raises ConfigError for a scheme that is not gs://."""
    scheme, separator, _ = str(uri).partition("://")
    if separator and scheme != "gs":
        raise ConfigError(Problem(where="storage", value=str(uri), message="a place is a local path or a gs:// URI"))
    return bool(separator)


def checksum(uri: Uri) -> str:
    """SHA-256 of a file in hexadecimal. Raises FileNotFoundError."""
    with _local_copy(uri) as path, path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def upload(source: Path, uri: Uri) -> None:
    """Copy a local file to a path or URI, whole or not at all, without holding it in memory."""
    place_of(uri).upload(source, str(uri))


def download(uri: Uri, target: Path) -> None:
    """Copy a file from a path or URI to a local file, whole or not at all. Raises FileNotFoundError."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with renamed_at_end(target) as partial:
        place_of(uri).download(str(uri), partial)


def _whole_files(folder: Uri) -> dict[str, int]:
    return {name: size for name, size in place_of(folder).walk(str(folder)) if not name.endswith(PARTIAL)}


@contextmanager
def _local_copy(uri: Uri) -> Iterator[Path]:
    """A local path with the content of `uri`: the file itself, or a copy that is gone after the block."""
    if not is_remote(uri):
        yield Path(uri)
        return
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder, "copy")
        download(uri, copy)
        yield copy

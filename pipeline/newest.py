"""A prefix under which new data arrives -> its newest whole folder, and a hash of what is in it.

    gs://bucket/tasks/2026-11-29/train.jsonl
    gs://bucket/tasks/2026-11-30/train.jsonl
    gs://bucket/tasks/2026-11-30/_SUCCESS

    find_newest("gs://bucket/tasks") == Newest("gs://bucket/tasks/2026-11-30", "5f0c...")

Two answers are equal where a run would train on the very same files. The storage is asked anew each time.
"""

import hashlib
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from components import storage
from components.errors import DataError, Problem

DONE = ("_SUCCESS", "sha256sums.txt")
"""Files that say a folder is whole: the one that data tools write last, and the one of `storage.upload_folder`."""

_PARALLEL_READS = 8


@dataclass(frozen=True, slots=True)
class Newest:
    """A folder, and SHA-256 over the names and contents of its files."""

    folder: str
    content: str


def find_newest(prefix: str) -> Newest:
    """The last folder below `prefix` by name, numbers in names compared as numbers: `day-10` is after `day-9`.

    A folder counts when it holds one of DONE; where no folder below the prefix does, every one with files counts.
    Raises DataError where there is none.
    """
    prefix = prefix.rstrip("/")
    files: dict[str, list[str]] = {}
    for uri in storage.list_files(prefix):
        folder, slash, name = uri.removeprefix(f"{prefix}/").partition("/")
        if slash:
            files.setdefault(folder, []).append(name)
    whole = [folder for folder, names in files.items() if any(mark in names for mark in DONE)] or list(files)
    data = [folder for folder in whole if any(name not in DONE for name in files[folder])]
    if not data:
        raise DataError(Problem("data", prefix, "there is no folder with files below this prefix"))
    folder = storage.join(prefix, max(data, key=_natural))
    return Newest(folder, content_hash(folder))


def content_hash(folder: str) -> str:
    """SHA-256 over the names and contents of the files of a folder, whatever says that it is whole not among them.

    Contents are read, or taken from the folder's list of checksums where it has one.
    """
    names = [uri.removeprefix(f"{folder}/") for uri in storage.list_files(folder)]
    data = [name for name in names if name not in DONE]
    sums = _sums(folder, data)
    digest = hashlib.sha256()
    for name in data:
        digest.update(f"{sums[name]}  {name}\n".encode())
    return digest.hexdigest()


def _sums(folder: str, names: list[str]) -> dict[str, str]:
    try:
        listed = storage.read_checksums(folder)
    except FileNotFoundError:
        listed = {}
    unlisted = [name for name in names if name not in listed]
    with ThreadPoolExecutor(_PARALLEL_READS) as pool:
        found = pool.map(lambda name: storage.checksum(storage.join(folder, name)), unlisted)
        return listed | dict(zip(unlisted, found, strict=True))


def _natural(name: str) -> list[tuple[int, str]]:
    """Numbers before words, and by their value: 10 after 9."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]

"""Folders of a run: claimed by one, copied whole with checksums, deleted only by who made them."""

import tempfile
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from components.errors import DataError, Problem
from components.storage.files import (
    checksum,
    delete,
    download,
    join,
    list_files,
    place_of,
    read_text,
    upload,
    write_text,
)
from components.storage.place import ConflictError, Uri

Result = TypeVar("Result")

OWN_MARKER = ".headrace"
"""The file that says a folder was made by Headrace and may be deleted by it."""

_CHECKSUMS = "sha256sums.txt"
_PARALLEL_TRANSFERS = 8


def claim_folder(folder: Uri, owner: str) -> None:
    """Make a folder this run's own. Of several runs that try, exactly one succeeds.

    Raises ConflictError with the owner's text where it has been claimed.
    """
    marker = join(folder, OWN_MARKER)
    while True:
        with suppress(ConflictError):
            write_text(marker, owner, if_generation_match=0)
            return
        with suppress(FileNotFoundError):  # its owner has deleted it in between: it is free
            found = read_text(marker)
            raise ConflictError(f"{folder} is already in use by: {found}. Take another name, or delete it first")


def delete_folder(folder: Uri) -> None:
    """Delete all files below a claimed folder, the marker last. Raises ConflictError where there is no marker."""
    marker = join(folder, OWN_MARKER)
    if place_of(marker).size(marker) is None:
        raise ConflictError(f"{folder} is not deleted: it holds no {OWN_MARKER}, so it was not made by Headrace")
    _in_parallel(delete, [file for file, _ in place_of(folder).walk(str(folder)) if file != marker])
    delete(marker)
    place_of(folder).remove_empty_folders(str(folder))


def upload_folder(source: Path, target: Uri) -> None:
    """Copy a local folder to a path or URI; the list of checksums is written last and says that the copy is whole.

    Over another folder's copy, `target` is not whole from the first changed file to the last.
    """
    files = [file for file in list_files(source) if Path(file).name != _CHECKSUMS]
    names = [Path(file).relative_to(source).as_posix() for file in files]
    sums = _in_parallel(checksum, files)
    text = "".join(f"{each}  {name}\n" for each, name in zip(sums, names, strict=True))
    listing = join(target, _CHECKSUMS)
    with suppress(FileNotFoundError):
        if read_text(listing) != text:
            delete(listing)
    _in_parallel(lambda name: upload(source / name, join(target, name)), names)
    write_text(listing, text)


def download_folder(source: Uri, target: Path) -> None:
    """Copy a folder that `upload_folder` wrote into a new local folder, whole or not at all, checksums compared.

    Raises FileNotFoundError where the copy at `source` is not whole, DataError where a file is missing or has changed,
    and ConflictError where `target` is there already.
    """
    sums = read_checksums(source)
    if target.exists():
        raise ConflictError(f"{target} is there already; a folder is downloaded into a new one")
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}.") as temporary:
        folder = Path(temporary, target.name)
        folder.mkdir()
        _in_parallel(lambda name: _download_checked(join(source, name), folder / name, sums[name]), list(sums))
        folder.rename(target)


def read_checksums(folder: Uri) -> dict[str, str]:
    """SHA-256 by name of a folder that `upload_folder` wrote. Raises FileNotFoundError where it is not whole."""
    lines = read_text(join(folder, _CHECKSUMS)).splitlines()
    return {name: digest for digest, _, name in (line.partition("  ") for line in lines)}


def _download_checked(uri: str, target: Path, digest: str) -> None:
    try:
        download(uri, target)
    except FileNotFoundError:
        raise DataError(
            Problem(where=uri, value=digest, message="is listed in the folder's checksums and is missing")
        ) from None
    found = checksum(target)
    if found != digest:
        raise DataError(Problem(where=uri, value=found, message=f"has changed since it was written with {digest}"))


def _in_parallel(work: Callable[[str], Result], items: Iterable[str]) -> list[Result]:
    with ThreadPoolExecutor(_PARALLEL_TRANSFERS) as pool:
        return list(pool.map(work, items))

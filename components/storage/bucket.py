"""Google Cloud Storage as a place: checked on the way up and down, and told apart from what others do meanwhile.

The dangerous fault is an answer that is lost after the work was done: the client tries again and is told that somebody
else was faster (412), which was itself. So each object carries the mark of the write that made it, and, where it was
written over a known generation, the marks of the writes before. That tells one's own work even when it has already
been superseded.

Content is summed (CRC32C) here, sent with its checksum, which the server compares before the object appears, and
compared again on what the server says it holds. Large files go up in chunks, of which only the broken one is repeated.
Nothing relies on more than Google promises: whoever lists or reads after a write sees that write.
"""

import base64
import io
import os
import socket
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

import google_crc32c
from google.api_core.exceptions import (
    GoogleAPICallError,
    NotFound,
    PreconditionFailed,
    RequestRangeNotSatisfiable,
)
from google.cloud.storage.exceptions import DataCorruption

from components.storage.google_client import bucket_and_name, explained, require_bucket
from components.storage.patience import PATIENCE, in_short, patiently
from components.storage.place import PARTIAL, ConflictError, LogEnd, StorageError

Content = TypeVar("Content")

CHUNK_BYTES = 8 << 20
"""A part of a resumable upload, which is held in memory; a multiple of 256 KiB. Smaller files go up in one request."""

_TRIES = 4
"""How often content is sent or fetched that arrives damaged, or whose upload the server has forgotten."""
_BEGIN_AGAIN = frozenset({400, 404, 410})
"""Answers to an upload that has to begin again: refused for its checksum (or for good), or forgotten by the server."""
_REMEMBERED_WRITES = 8
_ABANDONED = timedelta(hours=1)


class Bucket:
    """Google Cloud Storage. Generations are its own."""

    def read(self, uri: str) -> bytes:
        return _content(uri, None)

    def read_versioned(self, uri: str) -> tuple[bytes, int]:
        while True:
            generation: int = _look(uri).generation
            try:
                return _content(uri, generation), generation
            except ConflictError:
                continue  # written again between the two requests: look again

    def write(self, uri: str, data: bytes, expected: int | None) -> int:
        return _put(uri, io.BytesIO(data), expected)

    def upload(self, source: Path, uri: str) -> None:
        with source.open("rb") as content:
            _put(uri, content, None)

    def download(self, uri: str, target: Path) -> None:
        def fetch(blob: Any) -> tuple[None, int]:
            blob.download_to_filename(target, **_options(uri))
            with target.open("rb") as content:
                return None, _checksum(content)

        _fetched(uri, fetch)

    def open_log(self, uri: str) -> LogEnd:
        """Where it ends. There is nothing to mend: an object is whole. Parts that a kill has left are removed."""
        self._delete_abandoned_parts(uri)
        found = _find(uri)
        return LogEnd(found.generation, found.size, _number(found.crc32c)) if found else LogEnd()

    def append(self, uri: str, data: bytes, end: LogEnd) -> LogEnd:
        size, checksum = end.size + len(data), google_crc32c.extend(end.checksum, data)
        if not end.generation:
            return LogEnd(self.write(uri, data, 0), size, checksum)
        part, log = _blob(f"{uri}.{uuid.uuid4().hex}{PARTIAL}"), _blob(uri)
        generations = [end.generation, self.write(_uri(part), data, 0)]
        log.metadata = {"writer": _writer()}
        try:
            with explained(uri):
                log.compose(
                    [log, part],
                    if_generation_match=end.generation,
                    if_source_generation_match=generations,
                    **_options(uri),
                )
        except PreconditionFailed:
            # Either somebody else writes it, or the answer was lost and the second try has found the first one's work.
            log = _look(uri)
            if (log.size, _number(log.crc32c)) != (size, checksum):
                raise _conflict(log, f"has {log.size} bytes, not {end.size}") from None
        finally:
            with suppress(StorageError), explained(uri), suppress(NotFound):
                part.delete(**_options(uri))
        if (log.size, _number(log.crc32c)) != (size, checksum):
            raise StorageError(
                f"{uri}: the server has put together something else than was sent; nobody may go on from it"
            )
        return LogEnd(log.generation, size, checksum)

    def size(self, uri: str) -> int | None:
        if not bucket_and_name(uri)[1]:
            return None
        found = _find(uri)
        return found.size if found else None

    def walk(self, folder: str) -> Iterable[tuple[str, int]]:
        bucket, name = bucket_and_name(folder)
        return _listed(bucket, f"{name.rstrip('/')}/" if name else "")

    def delete(self, uri: str) -> None:
        found = _find(uri)
        if found is None:
            return
        # A second try, after a lost answer, must not delete what somebody has put in its place.
        with explained(uri), suppress(NotFound, PreconditionFailed):
            _blob(uri).delete(if_generation_match=found.generation, **_options(uri))

    def remove_empty_folders(self, folder: str) -> None:
        """Nothing to do: there are no folders."""

    def _delete_abandoned_parts(self, uri: str) -> None:
        bucket, name = bucket_and_name(uri)
        with explained(uri):
            parts = list(bucket.list_blobs(prefix=f"{name}.", **_options(uri)))
        for part in parts:
            if part.name.endswith(PARTIAL) and datetime.now(UTC) - part.time_created > _ABANDONED:
                self.delete(_uri(part))


def _options(uri: str) -> dict[str, Any]:
    """What each request of Google's client is given."""
    return {"retry": patiently(uri), "timeout": PATIENCE.answer}


def _blob(uri: str) -> Any:
    bucket, name = bucket_and_name(uri)
    return bucket.blob(name)


def _uri(blob: Any) -> str:
    return f"gs://{blob.bucket.name}/{blob.name}"


def _find(uri: str) -> Any:
    """The object as it is now, or None."""
    try:
        return _look(uri)
    except FileNotFoundError:
        return None


def _look(uri: str) -> Any:
    """The object as it is now. Raises FileNotFoundError."""
    blob = _blob(uri)
    with explained(uri):
        blob.reload(**_options(uri))
    return blob


def _listed(bucket: Any, prefix: str) -> Iterator[tuple[str, int]]:
    uri = f"gs://{bucket.name}/{prefix}"
    with explained(uri):
        for blob in bucket.list_blobs(prefix=prefix, fields="items(name,size),nextPageToken", **_options(uri)):
            if not blob.name.endswith("/"):  # an empty object that a console made to show a folder
                yield _uri(blob), blob.size


def _content(uri: str, generation: int | None) -> bytes:
    """The bytes of an object. Raises ConflictError where `generation` is given and is not the object's."""

    def fetch(blob: Any) -> tuple[bytes, int]:
        data: bytes = blob.download_as_bytes(if_generation_match=generation, **_options(uri))
        return data, google_crc32c.value(data)

    try:
        return _fetched(uri, fetch)
    except PreconditionFailed:
        raise ConflictError(f"{uri} is not of generation {generation} any more") from None


def _fetched(uri: str, fetch: Callable[[Any], tuple[Content, int]]) -> Content:
    """What `fetch` gets of an object beside its CRC32C, once that is what the server says."""
    last: object = "other bytes than the server says it holds"
    for _ in range(_TRIES):
        blob = _blob(uri)
        try:
            with explained(uri, unless=(NotFound, DataCorruption, RequestRangeNotSatisfiable)):
                content, checksum = fetch(blob)
        except NotFound:
            # A download that was cut goes on with the same generation, which is gone when the object was written anew.
            _look(uri)
        except (DataCorruption, RequestRangeNotSatisfiable) as error:
            last = in_short(error)
        else:
            # The client compares whole downloads only, and none that went on after a cut.
            if blob.content_encoding == "gzip" or blob.crc32c in (None, _text(checksum)):
                return content
    raise StorageError(f"{uri} has arrived damaged {_TRIES} times in a row, last with: {last}")


def _put(uri: str, content: io.BufferedIOBase, expected: int | None) -> int:
    """Send content, and give the generation that it became. `expected` as in `files.write_bytes`."""
    checksum, size, mark = _checksum(content), content.tell(), uuid.uuid4().hex
    metadata = {"write": mark, "writer": _writer(), **_marks_before(uri, expected)}
    last: object = "another checksum than that of what was sent"
    for _ in range(_TRIES):
        blob = _blob(uri)
        blob.chunk_size, blob.metadata, blob.crc32c = CHUNK_BYTES, metadata, _text(checksum)
        content.seek(0)
        try:
            _send(blob, uri, content, size, expected)
        except PreconditionFailed:
            return _own_generation(uri, mark, expected)
        except _UploadBrokenError as error:
            last = error
        else:
            if (blob.size, blob.crc32c) == (size, _text(checksum)):
                return blob.generation
        found = _find(uri)
        if found is not None and _metadata(found).get("write") == mark and found.crc32c == _text(checksum):
            return found.generation
    raise StorageError(f"{uri} could not be sent whole in {_TRIES} tries, last with: {last}")


class _UploadBrokenError(Exception):
    """An upload has to begin again."""


def _send(blob: Any, uri: str, content: io.BufferedIOBase, size: int, expected: int | None) -> None:
    """Upload. The client's own checksums stay out: it would delete the object where an answer shows another one."""
    try:
        with explained(uri, unless=(GoogleAPICallError,)):
            blob.upload_from_file(content, size=size, if_generation_match=expected, checksum=None, **_options(uri))
    except GoogleAPICallError as error:
        if error.code in _BEGIN_AGAIN:
            require_bucket(uri)
            raise _UploadBrokenError(in_short(error)) from error
        with explained(uri):
            raise
    except ValueError as error:
        # How the client says that the server has kept less of a chunk than it was sent.
        raise _UploadBrokenError(in_short(error)) from error


def _marks_before(uri: str, expected: int | None) -> dict[str, str]:
    """The marks of the writes that made `expected` and what was before it, for the object that takes its place.

    Raises ConflictError where the object is of another generation.
    """
    if not expected:
        return {}
    found = _find(uri)
    if found is None or found.generation != expected:
        raise _conflict(found, f"is not of generation {expected} any more", uri)
    metadata = _metadata(found)
    marks = [f"{expected}:{metadata.get('write', '')}", *metadata.get("before", "").split()]
    return {"before": " ".join(marks[:_REMEMBERED_WRITES])}


def _own_generation(uri: str, mark: str, expected: int | None) -> int:
    """The generation that the write `mark` made. Raises ConflictError where it was not made."""
    found = _find(uri)
    metadata = _metadata(found) if found else {}
    if metadata.get("write") == mark:
        return found.generation
    for generation, _, before in (each.partition(":") for each in metadata.get("before", "").split()):
        if before == mark:
            return int(generation)
    raise _conflict(found, f"is not of generation {expected} any more" if expected else "is there already", uri)


def _conflict(found: Any, what: str, uri: str = "") -> ConflictError:
    if found is None:
        return ConflictError(f"{uri} {what}: somebody else has deleted it")
    writer = _metadata(found).get("writer", "somebody else")
    return ConflictError(f"{_uri(found)} {what}: {writer} wrote generation {found.generation} at {found.updated:%F %T}")


def _metadata(found: Any) -> dict[str, str]:
    return found.metadata or {}


def _writer() -> str:
    return f"somebody else (process {os.getpid()} on {socket.gethostname()})"


def _checksum(content: io.BufferedIOBase) -> int:
    """CRC32C of a stream, which is read to its end."""
    content.seek(0)
    checksum = 0
    while block := content.read(1 << 20):
        checksum = google_crc32c.extend(checksum, block)
    return checksum


def _text(checksum: int) -> str:
    return base64.b64encode(checksum.to_bytes(4, "big")).decode()


def _number(checksum: str) -> int:
    return int.from_bytes(base64.b64decode(checksum), "big")

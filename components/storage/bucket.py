"""Google Cloud Storage as a place: checked on the way up and down, and told apart from what others do meanwhile.

How content is sent is in `sending.py`. What is fetched is compared with the checksum that the server keeps. Nothing
relies on more than Google promises: whoever looks, lists or reads after a write sees that write.
"""

import io
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

import google_crc32c
import requests.exceptions
from google.api_core.exceptions import NotFound, PreconditionFailed, RequestRangeNotSatisfiable
from google.cloud.storage.exceptions import DataCorruption

from components.storage.google_client import blob_of, bucket_and_name, explained, find, look, options, uri_of
from components.storage.place import PARTIAL, ConflictError, LogEnd, StorageError
from components.storage.sending import TRIES, conflict, crc32c_of, number_of, put, text_of, writer
from components.storage.trying import in_short

Content = TypeVar("Content")

_BROKEN = (DataCorruption, RequestRangeNotSatisfiable, requests.exceptions.RequestException)
"""A download that has to begin again. The client does not repeat a request that is refused in an answer that is cut."""
_ABANDONED = timedelta(hours=1)


class Bucket:
    """Google Cloud Storage. Generations are its own."""

    def read(self, uri: str) -> bytes:
        return _content(uri, None)

    def read_versioned(self, uri: str) -> tuple[bytes, int]:
        while True:
            generation: int = look(uri).generation
            try:
                return _content(uri, generation), generation
            except ConflictError:
                continue  # written again between the two requests: look again

    def write(self, uri: str, data: bytes, expected: int | None) -> int:
        return put(uri, io.BytesIO(data), expected)

    def upload(self, source: Path, uri: str) -> None:
        with source.open("rb") as content:
            put(uri, content, None)

    def download(self, uri: str, target: Path) -> None:
        def fetch(blob: Any) -> tuple[None, int]:
            blob.download_to_filename(target, **options(uri))
            with target.open("rb") as content:
                return None, crc32c_of(content)

        _fetched(uri, fetch)

    def open_log(self, uri: str) -> LogEnd:
        """Where it ends. There is nothing to mend: an object is whole. Parts that a kill has left are removed."""
        self._delete_abandoned_parts(uri)
        found = find(uri)
        return LogEnd(found.generation, found.size, number_of(found.crc32c)) if found else LogEnd()

    def append(self, uri: str, data: bytes, end: LogEnd) -> LogEnd:
        size, checksum = end.size + len(data), google_crc32c.extend(end.checksum, data)
        if not end.generation:
            return LogEnd(self.write(uri, data, 0), size, checksum)
        part, log = blob_of(f"{uri}.{uuid.uuid4().hex}{PARTIAL}"), blob_of(uri)
        generations = [end.generation, self.write(uri_of(part), data, 0)]
        log.metadata = {"writer": writer()}
        try:
            with explained(uri):
                log.compose(
                    [log, part],
                    if_generation_match=end.generation,
                    if_source_generation_match=generations,
                    **options(uri),
                )
        except PreconditionFailed:
            # Either somebody else writes it, or the answer was lost and the second try has found the first one's work.
            log = look(uri)
            if (log.size, number_of(log.crc32c)) != (size, checksum):
                raise conflict(log, f"has {log.size} bytes, not {end.size}") from None
        finally:
            with suppress(StorageError), explained(uri), suppress(NotFound):
                part.delete(**options(uri))
        if (log.size, number_of(log.crc32c)) != (size, checksum):
            raise StorageError(
                f"{uri}: the server has put together something else than was sent; nobody may go on from it"
            )
        return LogEnd(log.generation, size, checksum)

    def size(self, uri: str) -> int | None:
        if not bucket_and_name(uri)[1]:
            return None
        found = find(uri)
        return found.size if found else None

    def walk(self, folder: str) -> Iterable[tuple[str, int]]:
        bucket, name = bucket_and_name(folder)
        return _listed(bucket, f"{name.rstrip('/')}/" if name else "")

    def delete(self, uri: str) -> None:
        found = find(uri)
        if found is None:
            return
        # A second try, after a lost answer, must not delete what somebody has put in its place.
        with explained(uri), suppress(NotFound, PreconditionFailed):
            blob_of(uri).delete(if_generation_match=found.generation, **options(uri))

    def remove_empty_folders(self, folder: str) -> None:
        """Nothing to do: there are no folders."""

    def _delete_abandoned_parts(self, uri: str) -> None:
        bucket, name = bucket_and_name(uri)
        with explained(uri):
            parts = list(bucket.list_blobs(prefix=f"{name}.", **options(uri)))
        for part in parts:
            if part.name.endswith(PARTIAL) and datetime.now(UTC) - part.time_created > _ABANDONED:
                self.delete(uri_of(part))


def _listed(bucket: Any, prefix: str) -> Iterator[tuple[str, int]]:
    uri = f"gs://{bucket.name}/{prefix}"
    with explained(uri):
        for blob in bucket.list_blobs(prefix=prefix, fields="items(name,size),nextPageToken", **options(uri)):
            if not blob.name.endswith("/"):  # an empty object that a console made to show a folder
                yield uri_of(blob), blob.size


def _content(uri: str, generation: int | None) -> bytes:
    """The bytes of an object. Raises ConflictError where `generation` is given and is not the object's."""

    def fetch(blob: Any) -> tuple[bytes, int]:
        data: bytes = blob.download_as_bytes(if_generation_match=generation, **options(uri))
        return data, google_crc32c.value(data)

    try:
        return _fetched(uri, fetch)
    except PreconditionFailed:
        raise ConflictError(f"{uri} is not of generation {generation} any more") from None


def _fetched(uri: str, fetch: Callable[[Any], tuple[Content, int]]) -> Content:
    """What `fetch` gets of an object beside its CRC32C, once that is what the server says."""
    last: object = "other bytes than the server says it holds"
    for _ in range(TRIES):
        blob = blob_of(uri)
        try:
            with explained(uri, unless=(NotFound, *_BROKEN)):
                content, checksum = fetch(blob)
        except NotFound:
            # A download that was cut goes on with the same generation, which is gone when the object was written anew.
            look(uri)
        except _BROKEN as error:
            last = in_short(error)
        else:
            # The client compares whole downloads only, and none that went on after a cut.
            if blob.content_encoding == "gzip" or blob.crc32c in (None, text_of(checksum)):
                return content
    raise StorageError(f"{uri} has arrived damaged {TRIES} times in a row, last with: {last}")

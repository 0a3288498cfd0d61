"""Bytes -> an object of Google Cloud Storage: whole, checked before it appears, and known for one's own afterwards.

The dangerous fault is an answer that is lost after the work was done: the client tries again and is told that somebody
else was faster (412), which was itself. So each object carries the mark of the write that made it, and, where it was
written over a known generation, the marks of the writes before. That tells one's own work even when it has already
been superseded.

Content goes with its checksum (CRC32C), which the server compares before the object appears, and is compared again with
what the server then says it holds. Large content goes up in chunks: after a fault the upload goes on from what has
arrived, and only one that the server has forgotten begins again.
"""

import base64
import io
import os
import re
import socket
import uuid
from typing import Any, NamedTuple

import google_crc32c
import requests
from google.api_core.exceptions import GoogleAPICallError, PreconditionFailed, from_http_response

from components.storage.google_client import blob_of, explained, find, options, require_bucket, uri_of
from components.storage.patience import PATIENCE
from components.storage.place import ConflictError, StorageError
from components.storage.trying import in_short, patiently

CHUNK_BYTES = 8 << 20
"""What is larger goes up in parts of this size, each held in memory: a multiple of 256 KiB, as Google asks for."""

TRIES = 4
"""How often content is sent or fetched that arrives damaged, or whose upload the server has forgotten."""

_BEGIN_AGAIN = frozenset({400, 404, 410})
"""Answers to an upload that has to begin again: refused for its checksum (or for good), or forgotten by the server."""
_REMEMBERED_WRITES = 8
_KEPT = re.compile(r"bytes=0-(\d+)")


class _Sent(NamedTuple):
    """What the server says of an object that it has made."""

    generation: int
    size: int
    crc32c: str


class _UploadBrokenError(Exception):
    """An upload has to begin again."""


def put(uri: str, content: io.BufferedIOBase, expected: int | None) -> int:
    """Send content, and give the generation that it became. `expected` is the generation that it may replace, if any.

    Raises ConflictError where the object is of another generation.
    """
    checksum, size, mark = text_of(crc32c_of(content)), content.tell(), uuid.uuid4().hex
    metadata = {"write": mark, "writer": writer(), **_marks_before(uri, expected)}
    last: object = "another checksum than that of what was sent"
    for _ in range(TRIES):
        blob = blob_of(uri)
        blob.metadata, blob.crc32c = metadata, checksum
        try:
            sent = _send(blob, content, size, expected)
        except PreconditionFailed:
            return _own_generation(uri, mark, expected)
        except _UploadBrokenError as error:
            last = error
        else:
            if sent[1:] == (size, checksum):
                return sent.generation
        found = find(uri)
        if found is not None and _metadata(found).get("write") == mark and found.crc32c == checksum:
            return found.generation
    raise StorageError(f"{uri} could not be sent whole in {TRIES} tries, last with: {last}")


def _send(blob: Any, content: io.BufferedIOBase, size: int, expected: int | None) -> _Sent:
    uri = uri_of(blob)
    try:
        with explained(uri, unless=(GoogleAPICallError,)):
            if size > CHUNK_BYTES:
                return _send_in_chunks(blob, content, size, expected)
            content.seek(0)
            # The client's own comparison stays out: it deletes the object where an answer shows another checksum.
            blob.upload_from_file(content, size=size, if_generation_match=expected, checksum=None, **options(uri))
            return _Sent(blob.generation, blob.size, blob.crc32c)
    except GoogleAPICallError as error:
        if error.code in _BEGIN_AGAIN:
            require_bucket(uri)
            raise _UploadBrokenError(in_short(error)) from error
        with explained(uri):
            raise


def _send_in_chunks(blob: Any, content: io.BufferedIOBase, size: int, expected: int | None) -> _Sent:
    """A resumable upload. The client's own one cannot go on where the server has kept less of a chunk than was sent."""
    uri = uri_of(blob)
    url = blob.create_resumable_upload_session(size=size, if_generation_match=expected, checksum=None, **options(uri))
    # The URL of the upload is its own right: it needs no credentials.
    with requests.Session() as session:
        send, start = patiently(uri)(_send_chunk), 0
        while True:
            content.seek(start)
            answer = send(session, url, content.read(CHUNK_BYTES), start, size)
            if answer.status_code != 308:
                made = answer.json()
                return _Sent(int(made["generation"]), int(made["size"]), made["crc32c"])
            kept = _KEPT.fullmatch(answer.headers.get("range", ""))
            before, start = start, int(kept[1]) + 1 if kept else 0
            if start <= before:
                raise _UploadBrokenError(f"the server keeps {start} bytes, and no more")


def _send_chunk(session: requests.Session, url: str, chunk: bytes, start: int, size: int) -> requests.Response:
    """One part. Bytes of it that have arrived before are passed over by the server."""
    headers = {"Content-Range": f"bytes {start}-{start + len(chunk) - 1}/{size}"}
    answer = session.put(url, data=chunk, headers=headers, timeout=PATIENCE.answer, allow_redirects=False)
    if answer.status_code not in (200, 201, 308):
        raise from_http_response(answer)
    return answer


def _marks_before(uri: str, expected: int | None) -> dict[str, str]:
    """The marks of the writes that made `expected` and what was before it, for the object that takes its place.

    Raises ConflictError where the object is of another generation.
    """
    if not expected:
        return {}
    found = find(uri)
    if found is None or found.generation != expected:
        raise conflict(found, f"is not of generation {expected} any more", uri)
    metadata = _metadata(found)
    marks = [f"{expected}:{metadata.get('write', '')}", *metadata.get("before", "").split()]
    return {"before": " ".join(marks[:_REMEMBERED_WRITES])}


def _own_generation(uri: str, mark: str, expected: int | None) -> int:
    """The generation that the write `mark` made. Raises ConflictError where it was not made."""
    found = find(uri)
    metadata = _metadata(found) if found else {}
    if metadata.get("write") == mark:
        return found.generation
    for generation, _, before in (each.partition(":") for each in metadata.get("before", "").split()):
        if before == mark:
            return int(generation)
    raise conflict(found, f"is not of generation {expected} any more" if expected else "is there already", uri)


def conflict(found: Any, what: str, uri: str = "") -> ConflictError:
    """Says who was faster: the one that wrote `found`, or, where it is None, deleted `uri`."""
    if found is None:
        return ConflictError(f"{uri} {what}: somebody else has deleted it")
    who = _metadata(found).get("writer", "somebody else")
    return ConflictError(f"{uri_of(found)} {what}: {who} wrote generation {found.generation} at {found.updated:%F %T}")


def _metadata(found: Any) -> dict[str, str]:
    return found.metadata or {}


def writer() -> str:
    """This process, as others are told of it."""
    return f"somebody else (process {os.getpid()} on {socket.gethostname()})"


def crc32c_of(content: io.BufferedIOBase) -> int:
    """CRC32C of a stream, which is read to its end."""
    content.seek(0)
    checksum = 0
    while block := content.read(1 << 20):
        checksum = google_crc32c.extend(checksum, block)
    return checksum


def text_of(checksum: int) -> str:
    """A CRC32C as Google writes it."""
    return base64.b64encode(checksum.to_bytes(4, "big")).decode()


def number_of(checksum: str) -> int:
    """A CRC32C that Google has written."""
    return int.from_bytes(base64.b64decode(checksum), "big")

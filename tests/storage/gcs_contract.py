"""Requests to Google Cloud Storage -> answers of fake-gcs-server, with the promises kept that it leaves out.

The emulator is a real server, and yet stores an upload whose checksum is wrong, lets `compose` and DELETE pass whatever
the generation is, and loses its way in a resumable upload of which a part is sent twice. Google's storage does not
(cloud.google.com/storage/docs: data-validation, request-preconditions, performing-resumable-uploads), and just these
promises are what survives a bad network. So they are kept here, in front of it.
"""

import base64
import hashlib
import http.client
import json
import re
import threading
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, quote, urlencode, urlsplit

import google_crc32c

_RANGE = re.compile(r"bytes (?:(\d+)-(\d+)|\*)/(\d+|\*)")
_SINGLE = ("content-length", "transfer-encoding", "connection")


@dataclass(frozen=True)
class Request:
    """`target` is path and query; names of headers are in lower case."""

    method: str
    target: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def path(self) -> str:
        return urlsplit(self.target).path

    @property
    def query(self) -> dict[str, str]:
        return {name: values[0] for name, values in parse_qs(urlsplit(self.target).query).items()}

    @property
    def is_upload(self) -> bool:
        """Whether it carries content of an object."""
        return self.query.get("uploadType") == "multipart" or (self.is_chunk and bool(self.body))

    @property
    def is_chunk(self) -> bool:
        return "upload_id" in self.query

    @property
    def is_download(self) -> bool:
        return self.method == "GET" and self.query.get("alt") == "media"


@dataclass(frozen=True)
class Answer:
    """Headers without those that speak of one connection."""

    status: int
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass
class _Session:
    """A resumable upload; `answer` is there once it has come to its end."""

    target: str
    metadata: dict[str, Any]
    content_type: str
    content: bytearray = field(default_factory=bytearray)
    answer: Answer | None = None


class _Local(threading.local):
    """What each thread has of its own."""

    connection: http.client.HTTPConnection | None = None


class Contract:
    """Answers requests; may be called by many threads. `upstream` and `own` are the emulator's URL and the one here."""

    def __init__(self, upstream: str, own: str) -> None:
        self._upstream, self._own = upstream, own
        self._local = _Local()
        self._changes = threading.Lock()
        self._sessions: dict[str, _Session] = {}

    def perform(self, request: Request) -> Answer:
        """What Google's storage would do and say."""
        if request.method == "GET":
            return self._forward(request)
        # One change after another: what is looked at here must not change before the emulator acts.
        with self._changes:
            if request.is_chunk:
                return self._continue(request)
            if request.query.get("uploadType") == "resumable":
                return self._begin(request)
            if request.query.get("uploadType") == "multipart":
                metadata, content = parts_of(request)
                return self._refused_content(metadata, content) or self._forward(request)
            if request.path.endswith("/compose"):
                return self._refused_compose(request) or self._forward(request)
            if request.method == "DELETE":
                return self._refused_generation(request.path, request.query) or self._forward(request)
            return self._forward(request)

    def forget(self, upload_id: str) -> None:
        """Lose a resumable upload, as Google's storage may at any time."""
        self._sessions.pop(upload_id, None)

    def _begin(self, request: Request) -> Answer:
        metadata = json.loads(request.body)
        object_path = f"/storage/v1{request.path.removeprefix('/upload/storage/v1')}/{quote(metadata['name'], safe='')}"
        if refused := self._refused_generation(object_path, request.query):
            return refused
        upload_id = uuid.uuid4().hex
        content_type = request.headers.get("x-upload-content-type", "application/octet-stream")
        self._sessions[upload_id] = _Session(request.target, metadata, content_type)
        return Answer(200, headers={"Location": f"{self._own}{request.path}?upload_id={upload_id}"})

    def _continue(self, request: Request) -> Answer:
        session = self._sessions.get(request.query["upload_id"])
        if session is None:
            return _error(404, "the upload is not known")
        found = _RANGE.fullmatch(request.headers["content-range"])
        if found is None:
            return _error(400, "no range")
        if session.answer is None and found[1]:
            start = int(found[1])
            if start > len(session.content):
                return _error(400, "there is a gap before these bytes")
            # Bytes that are here already are not looked at again.
            session.content += request.body[len(session.content) - start :]
        if session.answer is None and found[3] == str(len(session.content)):
            return self._finish(session)
        if session.answer is not None:
            return session.answer
        received = {"Range": f"bytes=0-{len(session.content) - 1}"} if session.content else {}
        return Answer(308, headers=received)

    def _finish(self, session: _Session) -> Answer:
        content = bytes(session.content)
        answer = self._refused_content(session.metadata, content)
        if answer is None:
            url = urlsplit(session.target)
            target = f"{url.path}?{urlencode({**_flat(url.query), 'uploadType': 'multipart'})}"
            answer = self._forward(_multipart(target, session.metadata, session.content_type, content))
        if answer.status == 200:
            session.answer = answer
            session.content.clear()
        return answer

    def _refused_content(self, metadata: Mapping[str, Any], content: bytes) -> Answer | None:
        found = {
            "crc32c": base64.b64encode(google_crc32c.value(content).to_bytes(4, "big")).decode(),
            "md5Hash": base64.b64encode(hashlib.md5(content).digest()).decode(),
        }
        for name, value in found.items():
            if metadata.get(name, value) != value:
                return _error(400, f'Provided {name} "{metadata[name]}" doesn\'t match calculated {name} "{value}".')
        return None

    def _refused_compose(self, request: Request) -> Answer | None:
        path = request.path.removesuffix("/compose")
        for source in json.loads(request.body)["sourceObjects"]:
            conditions = {name: str(value) for name, value in source.get("objectPreconditions", {}).items()}
            place = f"{path.rsplit('/', 1)[0]}/{quote(source['name'], safe='')}"
            if refused := self._refused_generation(place, conditions):
                return refused
        return self._refused_generation(path, request.query)

    def _refused_generation(self, path: str, conditions: Mapping[str, str]) -> Answer | None:
        """412 where the object at `path` is not of the generation that is demanded."""
        demanded = conditions.get("ifGenerationMatch")
        if demanded is None:
            return None
        found = self._forward(Request("GET", path, {}, b""))
        generation = json.loads(found.body)["generation"] if found.status == 200 else "0"
        if generation == demanded:
            return None
        return _error(412, "At least one of the pre-conditions you specified did not hold.")

    def _forward(self, request: Request) -> Answer:
        connection = self._connection()
        headers = {name: value for name, value in request.headers.items() if name not in ("host", *_SINGLE)}
        connection.request(request.method, request.target, body=request.body or None, headers=headers)
        answer = connection.getresponse()
        body = answer.read()
        kept = {name: value for name, value in answer.getheaders() if name.lower() not in _SINGLE}
        if "json" in kept.get("Content-Type", "") and not request.is_download:
            body = body.replace(self._upstream.encode(), self._own.encode())
        return Answer(answer.status, body, kept)

    def _connection(self) -> http.client.HTTPConnection:
        if self._local.connection is None:
            self._local.connection = http.client.HTTPConnection(urlsplit(self._upstream).netloc)
        return self._local.connection


def parts_of(request: Request) -> tuple[dict[str, Any], bytes]:
    """Metadata and content of a multipart upload."""
    boundary = re.search(r'boundary="?([^";]+)', request.headers["content-type"])
    assert boundary is not None, request.headers
    _, head, rest = request.body.split(b"--" + boundary[1].encode(), 2)
    content, _, _ = rest.rpartition(b"\r\n--" + boundary[1].encode())
    return json.loads(head.split(b"\r\n\r\n", 1)[1]), content.split(b"\r\n\r\n", 1)[1]


def _multipart(target: str, metadata: Mapping[str, Any], content_type: str, content: bytes) -> Request:
    boundary = uuid.uuid4().hex
    head = f"--{boundary}\r\ncontent-type: application/json\r\n\r\n{json.dumps(metadata)}\r\n"
    head += f"--{boundary}\r\ncontent-type: {content_type}\r\n\r\n"
    body = head.encode() + content + f"\r\n--{boundary}--".encode()
    return Request("POST", target, {"content-type": f'multipart/related; boundary="{boundary}"'}, body)


def _flat(query: str) -> dict[str, str]:
    return {name: values[0] for name, values in parse_qs(query).items()}


def _error(status: int, message: str) -> Answer:
    error = {"error": {"code": status, "message": message, "errors": [{"message": message}]}}
    return Answer(status, json.dumps(error).encode(), {"Content-Type": "application/json"})

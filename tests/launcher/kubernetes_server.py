"""A Kubernetes API over HTTP for tests: lists, watches as chunked streams, logs with follow, and faults on demand.

    with KubernetesServer() as server:
        api = server.client()

Only what `rules` allow is answered; the rest is 403, as it is for a service account with no more rights than that.
"""

import contextlib
import json
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import yaml
from kubernetes import client

from components.launcher.cluster import RULES
from tests.launcher.kubernetes_store import ApiError, Object, Store

SERVED = {
    ("", "v1"): ("pods", "events", "serviceaccounts", "resourcequotas"),
    ("jobset.x-k8s.io", "v1alpha2"): ("jobsets",),
    ("kueue.x-k8s.io", "v1beta1"): ("localqueues", "workloads"),
}
Rules = Sequence[tuple[str, str, tuple[str, ...]]]


@dataclass
class PodLog:
    """Lines with their times; `closed` when no more will come."""

    lines: list[tuple[datetime, str]] = field(default_factory=list)
    closed: bool = False


@dataclass(frozen=True)
class Call:
    """A request, taken apart."""

    verb: str
    group: str
    version: str
    namespace: str
    plural: str
    name: str
    subresource: str
    query: dict[str, str]

    @property
    def resource(self) -> str:
        return f"{self.plural}/{self.subresource}" if self.subresource else self.plural


class KubernetesServer:
    """The server, and handles for a test to disturb it. `served` are the API groups that this cluster has."""

    def __init__(self, rules: Rules = RULES, *, without: str = "") -> None:
        self.store = Store()
        self.logs: dict[str, PodLog] = {}
        self.rules = rules
        self.served = {api: plurals for api, plurals in SERVED.items() if api[0] != without or not without}
        self.calls: Counter[tuple[str, str]] = Counter()
        self.faults: dict[tuple[str, str], list[int]] = {}
        self._streams: set[socket.socket] = set()
        handler = type("Handler", (_Handler,), {"server_of_test": self})
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._http.daemon_threads = True
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.01,), daemon=True)

    def __enter__(self) -> "KubernetesServer":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._http.shutdown()
        self.cut_streams()
        self._http.server_close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._http.server_address[1]}"

    def client(self) -> client.ApiClient:
        """The official client, pointed here."""
        return client.ApiClient(client.Configuration(host=self.url))

    def write_kubeconfig(self, path: Path, namespace: str) -> None:
        """What a process needs to find this server by itself."""
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "test",
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test", "namespace": namespace}}],
            "clusters": [{"name": "test", "cluster": {"server": self.url}}],
            "users": [{"name": "test", "user": {}}],
        }
        path.write_text(yaml.safe_dump(document), encoding="utf-8")

    def fail_next(self, verb: str, resource: str, status: int, times: int = 1) -> None:
        """Answer the next requests of this kind with a fault.

        0 breaks the connection instead of an answer; -1 does so after the work of a `create` was done.
        """
        self.faults.setdefault((verb, resource), []).extend([status] * times)

    def cut_streams(self) -> int:
        """Break every stream that is open, in the middle of a line. Gives how many there were."""
        with self.store.changed:
            streams, self._streams = self._streams, set()
        for stream in streams:
            with contextlib.suppress(OSError):
                stream.sendall(b'20\r\n{"type": "MODIFIED", "obj')
                stream.shutdown(socket.SHUT_RDWR)
        return len(streams)

    def log(self, pod: str, line: str) -> None:
        """A line that a pod's program has written."""
        with self.store.changed:
            self.logs.setdefault(pod, PodLog()).lines.append((datetime.now(UTC), line))
            self.store.changed.notify_all()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_of_test: KubernetesServer

    def do_GET(self) -> None:
        self._answer("get")

    def do_POST(self) -> None:
        self._answer("create")

    def do_PUT(self) -> None:
        self._answer("update")

    def do_DELETE(self) -> None:
        self._answer("delete")

    def log_message(self, *_: Any) -> None:
        """Say nothing."""

    def _answer(self, method: str) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(length)) if length else None
        try:
            call = self._taken_apart(method)
            server = self.server_of_test
            server.calls[call.verb, call.resource] += 1
            self._refuse(call)
            waiting = server.faults.get((call.verb, call.resource))
            if waiting:
                status = waiting.pop(0)
                if status == -1:
                    server.store.create(call.plural, call.namespace, body or {})
                if status <= 0:
                    self.close_connection = True
                    return
                raise ApiError(status, "Fault", "on demand")
            self._serve(call, body)
        except ApiError as error:
            self._send(error.status, error.body)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    def _taken_apart(self, method: str) -> Call:
        url = urlsplit(self.path)
        query = {name: values[-1] for name, values in parse_qs(url.query).items()}
        parts = url.path.strip("/").split("/")
        group, version = ("", parts[1]) if parts[0] == "api" else (parts[1], parts[2])
        rest = parts[2:] if parts[0] == "api" else parts[3:]
        if rest[:1] != ["namespaces"] or rest[2] not in self.server_of_test.served.get((group, version), ()):
            raise ApiError(404, "NotFound", "the server could not find the requested resource")
        name, subresource = [*rest[3:], "", ""][:2]
        verb = method
        if method == "get" and not name:
            verb = "watch" if query.get("watch") in ("true", "True", "1") else "list"
        return Call(verb, group, version, rest[1], rest[2], name, subresource, query)

    def _refuse(self, call: Call) -> None:
        allowed = self.server_of_test.rules
        if not any((call.group, call.resource) == rule[:2] and call.verb in rule[2] for rule in allowed):
            message = f'User "test" cannot {call.verb} resource "{call.resource}" in API group "{call.group}"'
            raise ApiError(403, "Forbidden", message)

    def _serve(self, call: Call, body: Object | None) -> None:
        store = self.server_of_test.store
        if call.subresource == "log":
            self._serve_log(call)
        elif call.verb == "watch":
            self._serve_watch(call)
        elif call.verb == "list":
            with store.changed:
                items = [each for each in store.all_of(call.plural, call.namespace) if _matches(call, each)]
                metadata = {"resourceVersion": str(store.version)}
            self._send(200, {"kind": "List", "apiVersion": "v1", "metadata": metadata, "items": items})
        elif call.verb == "get":
            self._send(200, store.get(call.plural, call.namespace, call.name))
        elif call.verb == "create":
            self._send(201, store.create(call.plural, call.namespace, body or {}))
        elif call.verb == "update":
            self._send(200, store.update(call.plural, body or {}))
        else:
            self._send(200, store.delete(call.plural, call.namespace, call.name, body))

    def _serve_watch(self, call: Call) -> None:
        store = self.server_of_test.store
        version = int(call.query["resourceVersion"])
        deadline = time.monotonic() + float(call.query.get("timeoutSeconds", "300"))
        with self._chunks():
            while time.monotonic() < deadline:
                try:
                    with store.changed:
                        changes = store.since(version)
                        if not changes:
                            store.changed.wait(min(0.5, max(0.0, deadline - time.monotonic())))
                            changes = store.since(version)
                        version = max(version, store.version)
                except ApiError as error:
                    self._chunk({"type": "ERROR", "object": error.body})
                    return
                for change in changes:
                    self._send_change(call, change.kind, change.plural, change.found)
                if not changes and call.query.get("allowWatchBookmarks"):
                    mark = {"kind": "Bookmark", "metadata": {"resourceVersion": str(version)}}
                    self._chunk({"type": "BOOKMARK", "object": mark})

    def _send_change(self, call: Call, kind: str, plural: str, found: Object) -> None:
        if plural == call.plural and found["metadata"]["namespace"] == call.namespace and _matches(call, found):
            self._chunk({"type": kind, "object": found})

    def _serve_log(self, call: Call) -> None:
        server = self.server_of_test
        pod = server.store.get("pods", call.namespace, call.name)
        if pod["status"]["phase"] == "Pending":
            message = f'container "worker" in pod "{call.name}" is waiting to start: ContainerCreating'
            raise ApiError(400, "BadRequest", message)
        lines = list(self._log_lines(call))
        if call.query.get("follow") not in ("true", "True"):
            self._send_text("".join(lines))
            return
        sent = len(lines)
        skipped = len(server.logs.get(call.name, PodLog()).lines) - sent
        with self._chunks():
            for line in lines:
                self._chunk_of(line.encode())
            while True:
                with server.store.changed:
                    log = server.logs.setdefault(call.name, PodLog())
                    fresh = log.lines[skipped + sent :]
                    if not fresh and log.closed:
                        return
                    if not fresh:
                        server.store.changed.wait(0.5)
                for each in fresh:
                    self._chunk_of(_log_line(call, *each).encode())
                sent += len(fresh)

    def _log_lines(self, call: Call) -> Iterator[str]:
        with self.server_of_test.store.changed:
            lines = list(self.server_of_test.logs.get(call.name, PodLog()).lines)
        if "sinceSeconds" in call.query:
            after = datetime.now(UTC) - timedelta(seconds=int(call.query["sinceSeconds"]))
            lines = [each for each in lines if each[0] >= after]
        if "tailLines" in call.query:
            lines = lines[max(0, len(lines) - int(call.query["tailLines"])) :]
        return (_log_line(call, *each) for each in lines)

    def _send(self, status: int, body: Object) -> None:
        self._send_text(json.dumps(body), status)

    def _send_text(self, text: str, status: int = 200) -> None:
        content = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    @contextlib.contextmanager
    def _chunks(self) -> Iterator[None]:
        server = self.server_of_test
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.wfile.flush()
        with server.store.changed:
            server._streams.add(self.connection)
        try:
            yield
            self.wfile.write(b"0\r\n\r\n")
        finally:
            with server.store.changed:
                server._streams.discard(self.connection)

    def _chunk(self, event: Object) -> None:
        self._chunk_of(json.dumps(event).encode() + b"\n")

    def _chunk_of(self, content: bytes) -> None:
        self.wfile.write(f"{len(content):x}\r\n".encode() + content + b"\r\n")
        self.wfile.flush()


def _log_line(call: Call, moment: datetime, text: str) -> str:
    """As a kubelet writes it: nanoseconds, without the zeros at their end."""
    if call.query.get("timestamps") not in ("true", "True"):
        return f"{text}\n"
    fraction = f"{moment.microsecond:06d}".rstrip("0")
    stamp = moment.strftime("%Y-%m-%dT%H:%M:%S") + (f".{fraction}" if fraction else "") + "Z"
    return f"{stamp} {text}\n"


def _matches(call: Call, found: Object) -> bool:
    labels = found["metadata"].get("labels", {})
    for requirement in filter(None, call.query.get("labelSelector", "").split(",")):
        name, _, value = requirement.partition("=")
        if labels.get(name) != value:
            return False
    for requirement in filter(None, call.query.get("fieldSelector", "").split(",")):
        name, _, value = requirement.partition("=")
        if name != "metadata.name" or found["metadata"]["name"] != value:
            return False
    return True

"""A Kubeflow Pipelines 2.17 server as `kfp.Client` sees it: the v2beta1 REST API over HTTP, without a cluster behind.

It keeps what is sent, refuses what the server refuses (see kfp_contract), pages its lists, and lets runs move on: with
each look at a run, by one picture of `story`.
"""

import contextlib
import json
import re
import threading
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from email.parser import BytesParser
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.pipeline.kfp_contract import (
    DENIED,
    EXISTS,
    HTTP,
    INTERNAL,
    INVALID,
    NOT_FOUND,
    UNKNOWN_USER,
    RefusedError,
    check_cron,
    check_fields,
    check_parameters,
    read_pipeline,
    select,
)

Body = dict[str, Any]
Picture = tuple[str, dict[str, str]]

ROOT = "/apis/v2beta1"
ENDED = ("SUCCEEDED", "FAILED", "CANCELED", "SKIPPED")
NEVER = "1970-01-01T00:00:00Z"

STORY: list[Picture] = [
    ("PENDING", {}),
    ("RUNNING", {"resolve-recipe": "RUNNING"}),
    ("RUNNING", {"resolve-recipe": "SUCCEEDED", "train": "RUNNING"}),
    ("SUCCEEDED", {"resolve-recipe": "SUCCEEDED", "train": "SUCCEEDED"}),
]
"""States of a run and of its tasks, look by look; the last one stays."""

PAGE = "<html><body>Sign in</body></html>"


@dataclass
class Call:
    """One request, as it came."""

    method: str
    path: str
    query: dict[str, str]
    body: Any


@dataclass
class KfpServer:
    """What the server holds, and how it behaves; a test looks at both and changes both."""

    token: str = ""
    cookie: str = ""
    admitted: list[tuple[str, str]] = field(default_factory=list)
    """Authorization and cookie of every request that was let in."""
    login_page: bool = False
    multi_user: bool = False
    denied: str = ""
    """Requests whose path begins like this are not permitted."""
    failures: list[int] = field(default_factory=list)
    """HTTP statuses that the next requests get instead of an answer."""
    story: list[Picture] = field(default_factory=lambda: list(STORY))
    error: str = ""
    """What the server says of a run that failed."""
    url: str = ""
    calls: list[Call] = field(default_factory=list)
    pipelines: dict[str, Body] = field(default_factory=dict)
    versions: dict[str, Body] = field(default_factory=dict)
    experiments: dict[str, Body] = field(default_factory=dict)
    runs: dict[str, Body] = field(default_factory=dict)
    schedules: dict[str, Body] = field(default_factory=dict)
    looks: dict[str, int] = field(default_factory=dict)
    stories: dict[str, list[Picture]] = field(default_factory=dict)
    clock: int = 0

    @contextlib.contextmanager
    def serve(self) -> Iterator["KfpServer"]:
        """Answer on a free port of this machine."""
        server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        self.url = f"http://127.0.0.1:{server.server_port}"
        try:
            yield self
        finally:
            server.shutdown()
            thread.join()
            server.server_close()

    def made(self, method: str, path: str) -> list[Call]:
        """The requests of a kind; `path` is a pattern of what comes after the root."""
        return [call for call in self.calls if call.method == method and re.fullmatch(ROOT + path, call.path)]

    def fire(self, name: str) -> str | None:
        """A schedule's time has come: the id of the run that its controller starts, None where it may not."""
        (due,) = [each for each in self.schedules.values() if each["display_name"] == name]
        own = [run for run in self.runs.values() if run.get("recurring_run_id") == due["recurring_run_id"]]
        running = [run for run in own if run["state"] not in ENDED]
        if due["status"] != "ENABLED" or len(running) >= int(due["max_concurrency"]):
            return None
        keys = ("experiment_id", "pipeline_version_reference", "runtime_config")
        body = {"display_name": f"{name} {len(own) + 1}", **{key: due[key] for key in keys}}
        run = self.create_run(body)
        run["recurring_run_id"] = due["recurring_run_id"]
        return run["run_id"]

    def answer(self, call: Call, headers: Any) -> Any:
        """The JSON of an answer. Raises RefusedError."""
        self._admit(call, headers)
        for method, pattern, function in self._routes():
            found = re.fullmatch(ROOT + pattern, call.path)
            if found and method == call.method:
                return function(call, *found.groups())
        raise RefusedError(NOT_FOUND, "Not Found")

    def _admit(self, call: Call, headers: Any) -> None:
        bearer = not self.token or headers.get("authorization") == f"Bearer {self.token}"
        if not bearer or (self.cookie and headers.get("cookie") != self.cookie):
            raise RefusedError(UNKNOWN_USER, "Request header error: there is no user identity header.")
        if self.denied and call.path.startswith(f"{ROOT}{self.denied}"):
            raise RefusedError(DENIED, "User 'me' is not authorized with reason: RBAC")
        self.admitted.append((headers.get("authorization") or "", headers.get("cookie") or ""))

    def _routes(self) -> list[tuple[str, str, Callable[..., Any]]]:
        one, many = "/([^/:]+)", ""
        return [
            ("GET", "/healthz", lambda call: {"multi_user": True} if self.multi_user else {}),
            ("POST", "/experiments", self._create_experiment),
            ("GET", f"/experiments{many}", lambda call: self._list(call, "experiments", self.experiments)),
            ("POST", "/pipelines", self._create_pipeline),
            ("GET", f"/pipelines{many}", lambda call: self._list(call, "pipelines", self.pipelines)),
            ("POST", "/pipelines/upload_version", self._upload_version),
            ("GET", f"/pipelines{one}", lambda call, key: _known(self.pipelines, "Pipeline", key)),
            ("GET", f"/pipelines{one}/versions", self._list_versions),
            ("GET", f"/pipelines{one}/versions{one}", lambda c, p, key: _known(self.versions, "PipelineVersion", key)),
            ("POST", "/runs", lambda call: self.create_run(call.body)),
            ("GET", f"/runs{many}", lambda call: self._list(call, "runs", self.runs)),
            ("GET", f"/runs{one}", lambda call, key: self._look(key)),
            ("POST", f"/runs{one}:terminate", lambda call, key: self._terminate(key)),
            ("POST", "/recurringruns", self._create_schedule),
            ("GET", f"/recurringruns{many}", lambda call: self._list(call, "recurringRuns", self.schedules)),
            ("GET", f"/recurringruns{one}", lambda call, key: _known(self.schedules, "Job", key)),
            ("POST", f"/recurringruns{one}:enable", lambda call, key: self._set_status(key, "ENABLED")),
            ("POST", f"/recurringruns{one}:disable", lambda call, key: self._set_status(key, "DISABLED")),
            ("DELETE", f"/recurringruns{one}", self._delete_schedule),
        ]

    def _list(self, call: Call, name: str, items: dict[str, Body]) -> Body:
        if self.multi_user and not (call.query.get("namespace") or call.query.get("experiment_id")):
            raise RefusedError(INVALID, "Invalid input error: namespace cannot be empty in multi-user mode")
        chosen = select(list(items.values()), call.query.get("filter", ""))
        if call.query.get("sort_by", "").endswith("desc"):
            chosen = chosen[::-1]
        start = int(call.query.get("page_token") or 0)
        size = min(int(call.query.get("page_size") or 20), 200)
        page = chosen[start : start + size]
        more = {"next_page_token": str(start + size)} if start + size < len(chosen) else {}
        return ({name: page, "total_size": len(chosen)} if page else {}) | more

    def _list_versions(self, call: Call, pipeline_id: str) -> Body:
        own = {key: each for key, each in self.versions.items() if each["pipeline_id"] == pipeline_id}
        return self._list(Call("GET", call.path, {**call.query, "namespace": "any"}, None), "pipeline_versions", own)

    def _create_experiment(self, call: Call) -> Body:
        body = check_fields(call.body, "V2beta1Experiment")
        name = body.get("display_name")
        if any(each["display_name"] == name for each in self.experiments.values()):
            raise RefusedError(EXISTS, f"Failed to create a new experiment. The name {name} already exists.")
        return self._keep(self.experiments, "experiment_id", {**body, "storage_state": "AVAILABLE"})

    def _create_pipeline(self, call: Call) -> Body:
        body = check_fields(call.body, "V2beta1Pipeline")
        name = body.get("name") or body.get("display_name")
        if not name:
            raise RefusedError(INVALID, "name is required")
        if any(each["name"] == name for each in self.pipelines.values()):
            raise RefusedError(EXISTS, f"Failed to create a new pipeline. The name {name} already exist.")
        return self._keep(self.pipelines, "pipeline_id", {"display_name": name, **body, "name": name})

    def _upload_version(self, call: Call) -> Body:
        pipeline, name = call.query.get("pipelineid", ""), call.query.get("name", "")
        if pipeline not in self.pipelines or not name or len(name) > 127:
            raise RefusedError(INVALID, "Failed to create a pipeline version")
        if any((each["pipeline_id"], each["name"]) == (pipeline, name) for each in self.versions.values()):
            raise RefusedError(EXISTS, "Failed to create a pipeline version")
        spec = read_pipeline(call.body)
        body = {"pipeline_id": pipeline, "name": name, "display_name": name, "pipeline_spec": spec}
        return self._keep(self.versions, "pipeline_version_id", body)

    def create_run(self, body: Body) -> Body:
        """Start a run as the API does."""
        check_fields(body, "V2beta1Run")
        self._check_order(body)
        state = {"state": "PENDING", "storage_state": "AVAILABLE", "finished_at": NEVER}
        run = self._keep(self.runs, "run_id", {**body, **state})
        self.stories[run["run_id"]] = list(self.story)
        self.looks[run["run_id"]] = -1
        return run

    def _check_order(self, body: Body) -> None:
        """What runs and schedules have in common."""
        if not body.get("display_name"):
            raise RefusedError(INVALID, "The run name is empty. Please specify a valid name")
        if body.get("experiment_id") not in self.experiments:
            raise RefusedError(NOT_FOUND, f"Experiment {body.get('experiment_id')} not found")
        version = self.versions.get(body.get("pipeline_version_reference", {}).get("pipeline_version_id", ""))
        if version is None:
            raise RefusedError(INTERNAL, "Failed to create a run due to error fetching manifest")
        check_parameters(version["pipeline_spec"], body.get("runtime_config", {}).get("parameters", {}))

    def _look(self, key: str) -> Body:
        """A run as it is now; then it moves on."""
        run = _known(self.runs, "Run", key)
        story = self.stories[key]
        self.looks[key] = min(self.looks[key] + 1, len(story) - 1)
        state, tasks = story[self.looks[key]]
        self.clock += 60
        run["state"] = state
        run["run_details"] = {"task_details": _details(run, tasks, state)}
        if state in ENDED:
            run["finished_at"] = _moment(self.clock)
        if state == "FAILED":
            run["error"] = {"code": 13, "message": self.error}
        return run

    def _terminate(self, key: str) -> Body:
        run = _known(self.runs, "Run", key)
        if run["state"] in (*ENDED, "CANCELING"):
            raise RefusedError(INVALID, f"Failed to terminate a run {key}. Row not found")
        run["state"] = "CANCELING"
        self.stories[key], self.looks[key] = [("CANCELING", {}), ("CANCELED", {})], -1
        return {}

    def _create_schedule(self, call: Call) -> Body:
        body = check_fields(call.body, "V2beta1RecurringRun")
        self._check_order(body)
        check_cron(body["trigger"]["cron_schedule"]["cron"])
        status = {"ENABLE": "ENABLED", "DISABLE": "DISABLED"}[body["mode"]]
        concurrency = str(body.get("max_concurrency", 0))
        kept = {**body, "status": status, "max_concurrency": concurrency}
        return self._keep(self.schedules, "recurring_run_id", kept)

    def _set_status(self, key: str, status: str) -> Body:
        _known(self.schedules, "Job", key)["status"] = status
        return {}

    def _delete_schedule(self, call: Call, key: str) -> Body:
        """Kubernetes deletes what a schedule owns with it, the workflows of its runs, unless they are orphaned."""
        _known(self.schedules, "Job", key)
        if call.query.get("propagation_policy") != "ORPHAN":
            for run in self.runs.values():
                if run.get("recurring_run_id") == key and run["state"] not in ENDED:
                    self.stories[run["run_id"]] = [("FAILED", {})]
        del self.schedules[key]
        return {}

    def _keep(self, items: dict[str, Body], key: str, body: Body) -> Body:
        self.clock += 1
        body = {**body, key: str(uuid.uuid4()), "created_at": _moment(self.clock)}
        items[body[key]] = body
        return body


def _known(items: dict[str, Body], kind: str, key: str) -> Body:
    if key not in items:
        raise RefusedError(NOT_FOUND, f"{kind} {key} not found")
    return items[key]


def _details(run: Body, tasks: dict[str, str], state: str) -> list[Body]:
    """Tasks as the engine's nodes: each in the company of its driver and its pod, and one for the whole run."""
    names = {"post-training-x7k2p": state, "root": state, "root-driver": "SUCCEEDED"} if tasks else {}
    for name, each in tasks.items():
        names |= {name: each, f"{name}-driver": "SUCCEEDED"} | ({"executor": each} if each != "SKIPPED" else {})
    return [
        {
            "run_id": run["run_id"],
            "task_id": str(uuid.uuid5(uuid.UUID(run["run_id"]), name)),
            "display_name": name,
            "create_time": run["created_at"],
            "start_time": _moment(number),
            "end_time": _moment(number + 90) if each in ENDED else NEVER,
            "state": each,
            "child_tasks": [{"pod_name": f"{name}-pod"}],
        }
        for number, (name, each) in enumerate(names.items())
    ]


def _moment(second: int) -> str:
    return f"2026-01-01T{second // 3600:02d}:{second // 60 % 60:02d}:{second % 60:02d}Z"


def _handler(server: KfpServer) -> type[BaseHTTPRequestHandler]:
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = 1 << 16  # an answer in one piece: two pieces wait for each other on a kept connection

        def _serve(self) -> None:
            parts = urlsplit(self.path)
            query = {name: values[0] for name, values in parse_qs(parts.query).items()}
            call = Call(self.command, parts.path, query, self._body())
            with lock:
                server.calls.append(call)
                if server.login_page:
                    return self._send(200, PAGE, "text/html")
                if server.failures:
                    return self._send(server.failures.pop(0), "upstream connect error", "text/plain")
                try:
                    status, answer = 200, server.answer(call, self.headers)
                except RefusedError as refused:
                    status, answer = HTTP[refused.code], self._error(call, refused)
                return self._send(status, json.dumps(answer), "application/json")

        def _error(self, call: Call, refused: RefusedError) -> Body:
            if "upload" in call.path and refused.code != UNKNOWN_USER:
                return {"error_message": str(refused), "error_details": str(refused)}
            return {"code": refused.code, "message": str(refused), "details": []}

        def _body(self) -> Any:
            raw = self.rfile.read(int(self.headers.get("content-length") or 0))
            kind = self.headers.get("content-type", "")
            if kind.startswith("multipart/form-data"):
                parts = BytesParser().parsebytes(f"Content-Type: {kind}\r\n\r\n".encode() + raw).get_payload()
                (file,) = [
                    part for part in parts if part.get_param("name", header="content-disposition") == "uploadfile"
                ]
                return file.get_payload(decode=True)
            return json.loads(raw) if raw else None

        def _send(self, status: int, text: str, kind: str) -> None:
            self.send_response(status)
            self.send_header("content-type", kind)
            self.send_header("content-length", str(len(text.encode())))
            self.end_headers()
            self.wfile.write(text.encode())

        do_GET = do_POST = do_DELETE = _serve  # noqa: N815 (names of http.server)

        def log_message(self, *arguments: object) -> None:
            """Nothing: a test looks at `calls`."""

    return Handler

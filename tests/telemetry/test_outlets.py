"""Each outlet against the program that it is for, or against a server that reads what that program would."""

import json
import socket
import struct
import subprocess
import sys
import threading
import urllib.request
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from tensorboardX.proto.event_pb2 import Event

from components.telemetry.outlets import mlflow
from components.telemetry.outlets.opened import TelemetryConfig, open_outlets
from components.telemetry.outlets.outlet import scalars
from components.telemetry.outlets.prometheus import Prometheus
from components.telemetry.spans import clear, record
from components.telemetry.timeline import POLICY, STEP, Timeline
from pipeline.closing import close_run

NUMBERS = {
    "step": 1,
    "reward_mean": 0.5,
    "tokens": {"generated": 120, "trained": 100, "failed": 20, "in_flight": 7},
    "trainer_seconds": {"busy": 2.0, "waiting for tools": 1.0},
    "engine_seconds": {"busy": 3.0},
    "episodes": 8,
    "failures": {"tool": 1},
    "tools": {"search": {"calls": 5, "errors": {"timeout": 2}, "p50": 0.1, "p95": 0.2, "p99": 0.2, "max": 0.2}},
    "environments": {
        "arithmetic": {
            "episodes": 8,
            "errors": {"grader": 1},
            "acts": {"grade": {"calls": 3, "p50": 0.1, "max": 0.4, "seconds": 0.6, "histogram": [0] * 6 + [2, 0, 1]}},
        }
    },
    "alerts": ["failures"],
}


def opened(folder, **settings):
    return open_outlets(
        TelemetryConfig(**settings), str(folder), model="smollm2", environment="arithmetic", parameters={"seed": 1}
    )


def events(file) -> list[Event]:
    """TensorBoard's records: length, checksum, message, checksum."""
    data, found = file.read_bytes(), []
    while data:
        (length,) = struct.unpack("<Q", data[:8])
        found.append(Event.FromString(data[12 : 12 + length]))
        data = data[16 + length :]
    return found


def test_tensorboard_reads_every_number(tmp_path):
    outlets = opened(tmp_path, spans=False)
    outlets.step(1, NUMBERS)
    outlets.close()
    (file,) = (tmp_path / "tensorboard").iterdir()
    values = {value.tag: (event.step, value.simple_value) for event in events(file) for value in event.summary.value}
    assert values["reward_mean"] == (1, 0.5)
    assert values["tools/search/errors/timeout"] == (1, 2.0)
    assert len(values) == len(list(scalars(NUMBERS))) - 1  # all but the step itself


def test_no_process_of_a_run_pays_for_torch():
    """tensorboardX would import it, and with it come seconds and 180 MB."""
    found = "import sys, components.training.run; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", found], capture_output=True, text=True, check=True).stdout == "False\n"


def test_prometheus_scrapes_counters_that_add_up_and_the_last_gauges():
    outlet = Prometheus(0, host="127.0.0.1")
    outlet.step(1, NUMBERS)
    outlet.step(2, NUMBERS | {"reward_mean": 0.75})
    with urllib.request.urlopen(f"http://127.0.0.1:{outlet.port}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    outlet.close()
    for line in (
        "headrace_step 2.0",
        "headrace_reward_mean 0.75",
        'headrace_tokens_total{fate="trained"} 200.0',
        'headrace_role_seconds_total{role="trainer",state="waiting for tools"} 2.0',
        'headrace_tool_calls_total{outcome="ok",tool="search"} 6.0',
        'headrace_tool_calls_total{outcome="timeout",tool="search"} 4.0',
        'headrace_failures_total{kind="tool"} 2.0',
        'headrace_alerts_total{rule="failures"} 2.0',
        'headrace_environment_episodes_total{environment="arithmetic"} 16.0',
        'headrace_environment_errors_total{environment="arithmetic",kind="grader"} 2.0',
        'headrace_environment_seconds_bucket{act="grade",environment="arithmetic",le="0.05"} 0.0',
        'headrace_environment_seconds_bucket{act="grade",environment="arithmetic",le="0.1"} 4.0',
        'headrace_environment_seconds_bucket{act="grade",environment="arithmetic",le="+Inf"} 6.0',
        'headrace_environment_seconds_count{act="grade",environment="arithmetic"} 6.0',
        'headrace_environment_seconds_sum{act="grade",environment="arithmetic"} 1.2',
    ):
        assert line in lines, line
    assert not any(f'fate="{level}"' in line for line in lines for level in ("in_flight", "generated"))


@pytest.fixture
def collector():
    """A server that takes OTLP over HTTP and keeps what it got."""
    got: list[ExportTraceServiceRequest] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            assert self.path == "/v1/traces"
            assert self.headers["Content-Type"] == "application/x-protobuf"
            got.append(ExportTraceServiceRequest.FromString(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *words: object) -> None:
            """Quiet."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", got
    server.shutdown()
    server.server_close()
    thread.join()


def play(name: str) -> None:
    timeline = Timeline(name)
    timeline.enter(POLICY)
    timeline.note(input_tokens=12, output_tokens=5, finish_reason="stop", version=3)
    timeline.enter(STEP)
    timeline.call("search", "timeout", 0.25)
    timeline.end(outcome="finished", reward=1.0)


def plain(value) -> object:
    kind = value.WhichOneof("value")
    return [plain(each) for each in value.array_value.values] if kind == "array_value" else getattr(value, kind)


def test_a_collector_gets_whole_episodes_by_the_names_of_the_genai_conventions(tmp_path, collector):
    endpoint, got = collector
    clear()
    outlets = opened(tmp_path, tensorboard=False, otlp_endpoint=endpoint, keep_every=1)
    play("task/0/0/0")
    outlets.step(1, NUMBERS)
    outlets.close()
    spans = [
        span for request in got for each in request.resource_spans for scope in each.scope_spans for span in scope.spans
    ]
    by_name = {span.name: {pair.key: plain(pair.value) for pair in span.attributes} for span in spans}
    chat = by_name["chat smollm2"]
    assert chat["gen_ai.operation.name"] == "chat"
    assert (chat["gen_ai.usage.input_tokens"], chat["gen_ai.usage.output_tokens"]) == (12, 5)
    assert chat["gen_ai.response.finish_reasons"] == ["stop"]
    assert by_name["invoke_agent arithmetic"]["gen_ai.agent.name"] == "arithmetic"
    tool = by_name["execute_tool search"]
    assert (tool["gen_ai.tool.name"], tool["error.type"]) == ("search", "timeout")
    ids = {span.span_id: span for span in spans}
    (root,) = [span for span in spans if not span.parent_span_id]
    assert root.name == "invoke_agent arithmetic"
    assert all(span.parent_span_id in ids for span in spans if span is not root)
    lines = [json.loads(line) for line in (tmp_path / "spans.jsonl").read_text().splitlines()]
    assert {line["id"] for line in lines} == {span.span_id.hex() for span in spans}


def test_an_outlet_that_fails_is_told_of_once_and_costs_the_run_nothing(tmp_path, capsys):
    outlets = opened(tmp_path, otlp_endpoint="http://127.0.0.1:9", keep_every=1)
    for step in (1, 2):
        record("weight_sync", 0.0, 1.0)
        outlets.step(step, NUMBERS)
    outlets.close()
    assert capsys.readouterr().err.count("OTLP gets nothing more") == 1
    assert (tmp_path / "tensorboard").exists()
    assert len((tmp_path / "spans.jsonl").read_text().splitlines()) == 2  # the file goes on


def test_a_port_that_is_taken_and_a_tracker_that_is_not_there_cost_the_run_nothing(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(mlflow, "wanted", lambda: pytest.importorskip("mlflow") is not None)
    monkeypatch.setenv(mlflow.VARIABLE, "http://127.0.0.1:9")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", 0))
        taken.listen()
        outlets = opened(tmp_path, spans=False, prometheus_port=taken.getsockname()[1])
    for step in (1, 2):
        outlets.step(step, NUMBERS)
    outlets.close()
    told = capsys.readouterr().err
    assert told.count("Prometheus gets nothing") == told.count("MLflow gets nothing more") == 1


def test_mlflow_gets_parameters_and_numbers_and_finds_a_run_again(tmp_path, monkeypatch):
    pytest.importorskip("mlflow")
    # The package without a server has no other store that is local.
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv(mlflow.VARIABLE, f"file://{tmp_path}/tracking")
    parameters = {"seed": 1, "train": {"steps": 3, "text": "x" * 900, "mesh": None}}
    for step in (1, 2):
        outlet = mlflow.MlFlow(str(tmp_path / "run"), experiment="headrace", parameters=parameters)
        outlet.step(step, NUMBERS)
        outlet.close()
    from mlflow import MlflowClient

    run = MlflowClient().get_run(outlet.run_id)
    assert run.data.params["train.steps"] == "3"
    assert run.data.metrics["tokens/trained"] == 100.0
    assert [each.step for each in MlflowClient().get_metric_history(outlet.run_id, "reward_mean")] == [1, 2]


def test_mlflow_keeps_a_runs_files_and_how_it_ended(tmp_path, monkeypatch):
    pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv(mlflow.VARIABLE, f"file://{tmp_path}/tracking")
    run, adapter = tmp_path / "run", tmp_path / "adapter"
    manifest = {"exact": {"train": {"telemetry": {"mlflow_experiment": "mine"}}}}
    for file, text in {
        run / "manifest.json": json.dumps(manifest),
        run / "recipe.yaml": "{}",
        run / "summary.json": json.dumps({"recipe": "sums"}),
        adapter / "README.md": "# card",
    }.items():
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
    outlet = mlflow.MlFlow(str(run), experiment="mine", parameters={"seed": 1})
    outlet.step(1, NUMBERS)
    outlet.close()
    mlflow.keep_files(str(run), {"adapter": [str(adapter / "README.md")]}, experiment="mine")
    close_run(str(run), step="export", error="ProofError: they differ")
    from mlflow import MlflowClient

    client = MlflowClient()
    names = {each.path for folder in ("", "adapter") for each in client.list_artifacts(outlet.run_id, folder)}
    assert names == {"report.html", "manifest.json", "recipe.yaml", "summary.json", "adapter", "adapter/README.md"}
    assert client.get_run(outlet.run_id).info.status == "FAILED"
    page = Path(client.download_artifacts(outlet.run_id, "report.html", str(tmp_path))).read_text()
    assert "ProofError: they differ" in page


def test_files_that_mlflow_does_not_take_are_told_of_once(tmp_path, capsys, monkeypatch):
    pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv(mlflow.VARIABLE, f"file://{tmp_path}/tracking")
    missing = [str(tmp_path / "README.md"), str(tmp_path / "proof.json")]
    mlflow.keep_files(str(tmp_path), {"adapter": missing}, experiment="headrace", failed=False)
    assert capsys.readouterr().err.count("MLflow did not get all of this run: FileNotFoundError") == 1


def test_without_the_variable_mlflow_is_not_wanted(monkeypatch):
    monkeypatch.delenv(mlflow.VARIABLE, raising=False)
    assert not mlflow.wanted()


def test_a_run_that_wants_no_outlet_gets_none(tmp_path, monkeypatch):
    monkeypatch.delenv(mlflow.VARIABLE, raising=False)
    outlets = opened(tmp_path, tensorboard=False, spans=False)
    outlets.step(1, NUMBERS)
    outlets.close()
    assert list(tmp_path.iterdir()) == []

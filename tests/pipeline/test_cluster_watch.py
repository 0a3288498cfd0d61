"""A run that is followed on a server, to whatever end it comes."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from components import storage
from components.telemetry.metrics import MetricsLog
from pipeline import watching
from pipeline.cli import main
from pipeline.cluster import Order, make_order, submit
from pipeline.connection import Client, Connection, ServerError, connect
from pipeline.watching import end_text, task_names, task_states, watch
from tests.pipeline.kfp_server import KfpServer, Picture


@pytest.fixture
def server() -> Iterator[KfpServer]:
    with KfpServer().serve() as running:
        yield running


@pytest.fixture(scope="module")
def ordered() -> Order:
    link = Connection(host="http://nowhere", image="registry/headrace@sha256:00")
    return make_order("smoke", connection=link, unchecked=True)


def start(server: KfpServer, ordered: Order, story: list[Picture] | None = None) -> tuple[Client, Connection, str]:
    """A run on the server, which goes through a story."""
    server.story = story or server.story
    link = Connection(host=server.url)
    client = connect(link)
    return client, link, submit(client, link, ordered).run_id


def follow(client: Client, link: Connection, run_id: str) -> tuple[str, list[str], list[float]]:
    """How it ended, what was told, and how long was waited between the looks."""
    told: list[str] = []
    waits: list[float] = []
    run = watch(client, link, run_id, show=told.append, every=5, sleep=waits.append)
    return run.state, told, waits


def test_every_change_is_told_once_and_the_engine_s_own_nodes_are_not(server: KfpServer, ordered: Order) -> None:
    state, told, waits = follow(*start(server, ordered))
    assert state == "SUCCEEDED"
    assert [line.split(": ", 1)[1] for line in told if not line.startswith("  ")] == ["pending", "running"]
    assert [line.strip() for line in told if line.startswith("  ")] == [
        "resolve-recipe: running",
        "resolve-recipe: succeeded, 90 s",
        "train: running",
        "train: succeeded, 90 s",
    ]
    assert waits == [5, 5, 5]


@pytest.mark.parametrize("end", ["CANCELED", "FAILED", "SKIPPED", "SUCCEEDED"])
def test_it_ends_however_the_run_ends(server: KfpServer, ordered: Order, end: str) -> None:
    story: list[Picture] = [("RUNNING", {"train": "RUNNING"}), (end, {"train": end})]
    state, told, waits = follow(*start(server, ordered, story))
    assert state == end
    assert told[-1].startswith(f"  train: {end.lower()}")
    assert len(waits) == 1


def test_what_the_server_says_of_a_failure_is_told(server: KfpServer, ordered: Order) -> None:
    server.error = "OOMKilled: train"
    client, link, run_id = start(server, ordered, [("FAILED", {"train": "FAILED"})])
    said = end_text(watch(client, link, run_id, show=lambda line: None))
    assert said.endswith("; OOMKilled: train")
    assert ": failed after " in said


def test_tasks_are_those_of_the_pipeline_that_runs_and_one_that_comes_again_has_a_number(
    server: KfpServer, ordered: Order
) -> None:
    client, link, run_id = start(server, ordered, [("RUNNING", {"train": "RUNNING", "evaluate": "SKIPPED"})])
    run = client.get_run(run_id)
    names = task_names(client, link, run)
    assert {"resolve-recipe", "train", "evaluate"} <= names
    assert list(task_states(run, names)) == ["train", "evaluate"]
    run.run_details.task_details += run.run_details.task_details
    assert list(task_states(run, names)) == ["train", "train 2", "evaluate", "evaluate 2"]


def test_a_server_that_is_away_for_a_while_is_waited_for(server: KfpServer, ordered: Order) -> None:
    client, link, run_id = start(server, ordered)
    client.get_run(run_id)
    told: list[str] = []
    waits: list[float] = []

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 1:
            server.failures = [503, 502, 429]

    assert watch(client, link, run_id, show=told.append, sleep=sleep).state == "SUCCEEDED"
    assert sum("the server is away" in line for line in told) == 1


def test_a_server_that_stays_away_ends_the_watch_and_not_the_run(
    server: KfpServer, ordered: Order, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "PATIENCE_SECONDS", 20.0)
    client, link, run_id = start(server, ordered)
    waits: list[float] = []

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        server.failures = [503] * 50

    with pytest.raises(ServerError, match="503"):
        watch(client, link, run_id, show=lambda line: None, every=10, sleep=sleep)
    assert waits == [10, 10, 10]


def test_a_run_that_is_not_there_is_told_at_once(server: KfpServer, ordered: Order) -> None:
    client, link, run_id = start(server, ordered)
    server.runs.clear()
    with pytest.raises(ServerError, match=f"the run {run_id}: .* does not have it"):
        watch(client, link, run_id, show=lambda line: None)


def test_the_steps_of_a_run_are_told_from_its_folder(
    server: KfpServer, ordered: Order, tmp_path: Path, gcs: str
) -> None:
    root = f"{gcs}/{tmp_path.name}"
    link = Connection(host=server.url, pipeline_root=root)
    client = connect(link)
    run_id = submit(client, link, ordered).run_id
    folder = f"{root}/post-training/runs/{run_id}"
    looks = 0

    def sleep(seconds: float) -> None:
        nonlocal looks
        looks += 1
        if looks == 1:
            storage.write_text(f"{folder}/manifest.json", "{}")
            MetricsLog(f"{folder}/metrics.jsonl").write(1, {"reward_mean": 0.25})
        elif looks == 3:
            MetricsLog(f"{folder}/metrics.jsonl").write(2, {"reward_mean": 0.5})

    told: list[str] = []
    watch(client, link, run_id, show=told.append, sleep=sleep)
    assert [line.strip() for line in told if "step " in line] == ["step 1: reward 0.25", "step 2: reward 0.5"]


def test_a_folder_that_cannot_be_read_is_said_once(
    server: KfpServer, ordered: Order, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, link, run_id = start(server, ordered)

    def refuse(*arguments: object) -> list[str]:
        raise PermissionError("no access to gs://secret")

    monkeypatch.setattr(watching, "run_folders", refuse)
    state, told, _ = follow(client, link, run_id)
    assert state == "SUCCEEDED"
    assert [line for line in told if "cannot be read from here" in line] == [
        "  the run's folder cannot be read from here, so its steps are not told: no access to gs://secret"
    ]


@pytest.mark.parametrize(("end", "code"), [("SUCCEEDED", 0), ("FAILED", 1), ("CANCELED", 1)])
def test_the_command_ends_as_the_run_does(
    server: KfpServer, ordered: Order, capsys: pytest.CaptureFixture[str], end: str, code: int
) -> None:
    _, _, run_id = start(server, ordered, [(end, {})])
    assert main(["watch", run_id, "--host", server.url]) == code
    printed = capsys.readouterr()
    assert f": {end.lower()} after" in printed.err
    assert printed.out == ""


def test_a_run_can_be_followed_from_its_start(server: KfpServer, capsys: pytest.CaptureFixture[str]) -> None:
    server.story = [("FAILED", {})]
    assert main(["submit", "smoke", "--watch", "--unchecked", "--host", server.url]) == 1
    assert ": failed after" in capsys.readouterr().err


def test_to_stop_watching_is_not_to_stop_the_run(
    server: KfpServer, ordered: Order, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, _, run_id = start(server, ordered)

    def interrupt(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(watching, "run_folders", interrupt)
    assert main(["watch", run_id, "--host", server.url]) == 0
    assert f"the run goes on; follow it again with: headrace watch {run_id}" in capsys.readouterr().err
    assert server.made("POST", "/runs/[^/]*:terminate") == []

"""Runs that are compared from wherever they lie: a disk, a bucket, a server."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from components import storage
from components.errors import ConfigError
from pipeline.cli import main
from pipeline.cluster import make_order, submit
from pipeline.comparing import compared_runs, sent_settings, settings_of
from pipeline.connection import Client, Connection, connect
from tests.pipeline.kfp_server import KfpServer
from tests.telemetry.synthetic import write_run


@pytest.fixture
def server() -> Iterator[KfpServer]:
    with KfpServer().serve() as running:
        yield running


def write(folder: str, *, manifest: bool = True, rate: float = 1e-4) -> str:
    """A run's folder, with what it was made of."""
    write_run(folder, steps=3, trajectories=1)
    record = {
        "exact": {"name": "quickstart", "train": {"steps": 3, "optimizer": {"learning_rate": rate}}},
        "recipe": {},
        "image": "headrace@sha256:00",
        "code": {"commit": "abc", "sha256": "def"},
        "packages": {"jax": "0.10.2"},
        "start": {},
    }
    if manifest:
        storage.write_text(f"{folder}/manifest.json", json.dumps(record))
    return folder


def nowhere() -> tuple[Client, Connection]:
    raise AssertionError("folders need no server")


def send(server: KfpServer, root: str, **parameters: Any) -> str:
    link = Connection(host=server.url, pipeline_root=root)
    ordered = make_order("smoke", connection=link, parameters=parameters, unchecked=True)
    return submit(connect(link), link, ordered).run_id


def test_a_disk_and_a_bucket_are_compared_without_a_server(tmp_path: Path, gcs: str) -> None:
    names = [write(str(tmp_path / "a")), write(f"{gcs}/{tmp_path.name}/b", rate=2e-4)]
    runs = compared_runs(names, nowhere)
    assert [run.name for run in runs] == names
    assert [run.parameters["train.optimizer.learning_rate"] for run in runs] == [1e-4, 2e-4]
    assert all(run.whole and len(run.record.metrics) == 3 for run in runs)


def test_the_command_prints_one_object_with_the_keys_of_the_contract(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = [write(str(tmp_path / "a")), write(str(tmp_path / "b"), rate=2e-4)]
    page = str(tmp_path / "page.html")
    assert main(["compare", *names, "--json", "-o", page]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    record = json.loads(line)
    assert list(record) == ["runs", "parameters_that_differ", "made_of", "metrics", "report_html"]
    assert [run["run"] for run in record["runs"]] == names
    assert record["parameters_that_differ"] == {
        "train.optimizer.learning_rate": dict(zip(names, [1e-4, 2e-4], strict=True))
    }
    assert record["metrics"]["accuracy_after"] == dict.fromkeys(names, 0.97)
    assert record["metrics"]["accuracy_after_interval"] == {name: [0.915, 0.99] for name in names}
    assert record["made_of"]["image"] == dict.fromkeys(names, "headrace@sha256:00")
    assert record["report_html"] == page
    assert "train.optimizer.learning_rate" in Path(page).read_text()


def test_the_page_lies_beside_the_runs_and_in_this_folder_where_they_lie_apart(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [write(str(tmp_path / "runs" / name)) for name in "ab"]
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    assert main(["compare", *names]) == 0
    assert capsys.readouterr().out.endswith(f"page: {tmp_path}/runs/comparison.html\n")
    assert not (here / "comparison.html").exists()
    assert main(["compare", names[0], write(str(tmp_path / "others" / "c"))]) == 0
    assert (here / "comparison.html").exists()


def test_people_get_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = [write(str(tmp_path / "a")), write(str(tmp_path / "b"), rate=2e-4)]
    assert main(["compare", *names, "-o", str(tmp_path / "page.html")]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == ["a", "b"]
    assert ["train.optimizer.learning_rate", "0.0001", "0.0002"] in lines
    scored = ["0.97", "(0.915", "to", "0.99)"]
    assert ["accuracy_after", *scored, *scored] in lines
    assert ["image", "headrace@sha256:00", "headrace@sha256:00"] in lines


def test_runs_of_a_server_are_found_by_their_ids(server: KfpServer, tmp_path: Path, gcs: str) -> None:
    root = f"{gcs}/{tmp_path.name}"
    ids = [send(server, root) for _ in range(2)]
    for number, run_id in enumerate(ids):
        write(f"{root}/post-training/runs/{run_id}", rate=1e-4 * (number + 1))
    link = Connection(host=server.url)
    runs = compared_runs(ids, lambda: (connect(link), link))
    assert [run.name for run in runs] == ids
    assert [run.parameters["train.optimizer.learning_rate"] for run in runs] == [1e-4, 2e-4]
    assert all(run.title.startswith("smoke 20") and run.state == "PENDING" for run in runs)


def test_the_trials_of_a_sweep_are_runs_of_their_own(server: KfpServer, tmp_path: Path, gcs: str) -> None:
    root = f"{gcs}/{tmp_path.name}"
    run_id = send(server, root)
    for trial in "ab":
        write(f"{root}/post-training/runs/{run_id}/trials/{trial}")
    link = Connection(host=server.url)
    runs = compared_runs([run_id], lambda: (connect(link), link))
    assert [run.name for run in runs] == [f"{run_id}/a", f"{run_id}/b"]


@pytest.mark.usefixtures("gcs")
def test_of_a_run_whose_folder_is_not_there_the_sent_parameters_are_compared(server: KfpServer) -> None:
    ids = [send(server, "gs://headrace/nothing", learning_rate=rate) for rate in ("1e-4", "2e-4")]
    link = Connection(host=server.url)
    runs = compared_runs(ids, lambda: (connect(link), link))
    assert not any(run.whole for run in runs)
    assert [run.parameters["train.optimizer.learning_rate"] for run in runs] == [1e-4, 2e-4]


def test_sent_parameters_have_the_names_of_the_recipe_s_keys_and_defaults_are_left_out() -> None:
    sent = {"recipe": "smoke", "steps": 20, "seed": -1, "model": "", "overrides": '{"train.packing.rows": "8"}'}
    assert sent_settings(sent) == {"recipe": "smoke", "train.steps": 20, "train.packing.rows": "8"}


def test_settings_hold_the_recipe_and_what_it_was_made_by() -> None:
    manifest = {"exact": {"a": {"b": 1}}, "image": "i", "packages": {"jax": "1"}, "start": {"x": 1}}
    manifest["base"] = {"fingerprint": "f", "source": "/this/run/only"}
    assert settings_of(manifest) == {"a.b": 1, "image": "i", "packages.jax": "1", "base.fingerprint": "f"}


def test_what_cannot_be_compared_is_named(tmp_path: Path, server: KfpServer) -> None:
    name = write(str(tmp_path / "a"), manifest=False)
    with pytest.raises(ConfigError, match="name at least two runs"):
        compared_runs([name], nowhere)
    with pytest.raises(ConfigError, match="is named twice"):
        compared_runs([name, name], nowhere)
    with pytest.raises(ConfigError, match="is neither a run's folder"):
        compared_runs([name, str(tmp_path / "b")], nowhere)
    assert not compared_runs([name, write(str(tmp_path / "c"))], nowhere)[0].whole

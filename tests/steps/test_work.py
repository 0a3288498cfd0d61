"""The work behind the doors: what it records, and where it trains."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from components.errors import ConfigError
from components.steps import work
from components.telemetry.run_files import read_run
from tests.tiny_run import ENVIRONMENT


@dataclass
class Place:
    """An artifact in this pod and on the storage."""

    path: str
    uri: str


def prepared(folder: Path, **options: Any) -> dict[str, Any]:
    """The facts of tasks that are prepared in a folder."""
    world = ENVIRONMENT | {"options": ENVIRONMENT["options"] | options}
    where = {"run_folder": str(folder / "run"), "folder": str(folder / "tasks")}
    return work.prepare_data(section="{}", environment=json.dumps(world), seed=0, **where)


def test_data_is_known_by_its_content(tmp_path: Path) -> None:
    first, same = prepared(tmp_path / "a"), prepared(tmp_path / "b")
    assert first == same
    assert read_run(str(tmp_path / "a" / "run")).summary["data"] == first
    assert prepared(tmp_path / "c", train_tasks=39)["sha256"] != first["sha256"]
    assert prepared(tmp_path / "d", test_tasks=9)["sha256"] != first["sha256"]


def arguments(platform: dict[str, Any], output: str = "trained") -> dict[str, Any]:
    """What the door of a step that learns passes on."""
    artifacts = {name: Place(f"/gcs/{name}", f"gs://b/{name}") for name in ("tasks", "base", "adapter", output)}
    texts = {"section": "{}", "environment": "{}", "platform": json.dumps(platform)}
    return {**texts, "seed": 3, "run_folder": "gs://b/run", "job_owner": "9f3c/trial-1", **artifacts}


LEARNING = pytest.mark.parametrize(("task", "output"), [("tune", "tuned"), ("train", "trained")])


@LEARNING
def test_a_step_learns_in_its_own_pod_on_the_copies_there(
    monkeypatch: pytest.MonkeyPatch, task: str, output: str
) -> None:
    called: list[dict[str, Any]] = []
    module = {"tune": "components.training.tuning.run", "train": "components.training.run"}[task]
    monkeypatch.setattr(f"{module}.{task}", lambda **given: called.append(given))
    {"tune": work.tune, "train": work.train}[task](**arguments({}, output))
    places = {name: f"/gcs/{name}" for name in ("tasks", "base", "adapter", output)}
    assert called == [{"section": "{}", "environment": "{}", "seed": 3, "run_folder": "gs://b/run", **places}]


@LEARNING
def test_a_job_set_is_told_where_everybody_finds_the_artifacts_and_whose_it_is(
    monkeypatch: pytest.MonkeyPatch, task: str, output: str
) -> None:
    called: list[tuple[str, dict[str, Any]]] = []
    monkeypatch.setattr("components.launcher.step_job.launch", lambda task, **given: called.append((task, given)))
    platform = {"launcher": "jobset", "image": "image@sha256:0", "accelerator": "v5e", "topology": "4x4"}
    {"tune": work.tune, "train": work.train}[task](**arguments(platform, output))
    ((asked, given),) = called
    assert asked == task
    assert json.loads(given.pop("platform")) == platform
    assert given == {
        "section": "{}",
        "environment": "{}",
        "seed": 3,
        "run_folder": "gs://b/run",
        "run": "9f3c/trial-1",
        "inputs": {name: f"gs://b/{name}" for name in ("tasks", "base", "adapter")},
        "outputs": {output: f"gs://b/{output}"},
    }


def test_an_impossible_machine_is_refused_before_anything_starts() -> None:
    with pytest.raises(ConfigError, match="v5e has no topology 3x3"):
        work.train(**arguments({"accelerator": "v5e", "topology": "3x3"}))

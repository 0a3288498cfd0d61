"""Whole runs on this machine, through kfp's local runner."""

import json
import os
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from components import storage
from components.errors import ConfigError
from pipeline.commands.compiling import COMPILED
from pipeline.local import LocalRun, StepFailedError, run_locally
from pipeline.run_folders import make_run_folder, old_run_folder

FIGURES = [
    "run_dir",
    "wall_seconds",
    "peak_memory_gib",
    "steps",
    "accuracy_before",
    "accuracy_after",
    "accuracy_after_interval",
    "tokens",
    "trainer_idle_share",
    "engine_idle_share",
    "report_html",
    "adapter_dir",
    "merged_dir",
    "proofs",
]

MODULE = '''\
"""A user's own environment, in the folder that the command is called in."""

from components.environments.arithmetic import Arithmetic


class Mine(Arithmetic):
    """Sums, as they are."""


class Doubled(Arithmetic):
    """Lists every problem twice, which no run can be made of."""

    def tasks(self, split):
        return [task for task in super().tasks(split) for _ in range(2)]
'''

SHORT = {
    "prepare_data.train_tasks": 64,
    "prepare_data.test_tasks": 8,
    "init_model.tiny.n_layers": 1,
    "init_model.tiny.warm_start.steps": 30,
    "train.steps": 2,
    "train.rollout.tasks_per_step": 2,
    "train.rollout.group_size": 4,
}
"""The smoke recipe, cut so short that it learns nothing, but goes all the way."""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a user's module, as the current one."""
    (tmp_path / "my_module.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def run(project: Path, **overrides: Any) -> LocalRun:
    pipeline = COMPILED.read_text(encoding="utf-8")
    return run_locally("smoke", name="short", runs=project / "runs", overrides=overrides, pipeline=pipeline)


def test_the_committed_pipeline_runs_to_its_end_with_an_environment_of_the_user(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    finished = run(project, **SHORT, **{"environment.use": "my_module:Mine", "seed": 7})
    printed = capsys.readouterr()
    assert printed.out == ""
    steps = [line.removeprefix("== ") for line in printed.err.splitlines() if line.startswith("== ")]
    learnt = ["resolve-recipe", "prepare-data", "init-model", "train", "evaluate"]
    assert steps == [*learnt, "gate", "export", "finish-run"]
    assert "step 2/2" in printed.err

    figures = finished.figures
    assert list(figures) == FIGURES
    assert figures["steps"] == 2
    assert figures["proofs"]["export"]["adapter"] == 0.0
    tokens = dict(figures["tokens"])
    assert tokens.pop("generated") == sum(tokens.values()) > 0

    folder = finished.folder
    assert len((folder / "metrics.jsonl").read_text().splitlines()) == 2
    assert "<html" in (folder / "report.html").read_text()
    assert (folder / "adapter" / "adapter_model.safetensors").is_file()
    assert (folder / "merged" / "model.safetensors").is_file()
    assert json.loads((folder / "summary.json").read_text())["environment"] == "my_module:Mine"
    assert json.loads((folder / "manifest.json").read_text())["recipe"]["seed"] == 7
    outputs = [json.loads(path.read_text()) for path in (folder / "steps").glob("*/evaluate/executor_output.json")]
    metrics = outputs[0]["artifacts"]["metrics"]["artifacts"][0]["metadata"]
    assert metrics["accuracy_after"] == figures["accuracy_after"]


def test_a_failing_step_shows_its_own_error_first(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(StepFailedError) as caught:
        run(project, **SHORT, **{"environment.use": "my_module:Doubled"})
    first = str(caught.value).splitlines()[0]
    assert first.startswith("DataError: my_module:Doubled, task")
    assert "the id stands twice" in first
    assert caught.value.step == "prepare-data"
    assert "The step prepare-data failed; its whole output is in" in str(caught.value)
    assert "== init-model" not in capsys.readouterr().err


def test_a_folder_that_hides_the_own_packages_is_refused(project: Path) -> None:
    (project / "components").mkdir()
    with pytest.raises(ConfigError, match="hides Headrace's own package"):
        run(project)
    assert not (project / "runs").exists()


def _claim(runs: Path) -> str:
    return str(make_run_folder(runs, "same"))


def test_runs_that_start_in_one_second_each_get_a_folder_of_their_own(tmp_path: Path) -> None:
    with ProcessPoolExecutor(4) as pool:
        folders = list(pool.map(_claim, [tmp_path] * 16))
    assert len(set(folders)) == 16
    assert all(storage.exists(storage.join(folder, storage.OWN_MARKER)) for folder in folders)


def test_only_a_run_that_was_made_here_is_gone_on_with(tmp_path: Path) -> None:
    folder = make_run_folder(tmp_path, "mine")
    assert old_run_folder(folder, {"name": "mine"}) == folder
    (tmp_path / "other").mkdir()
    with pytest.raises(ConfigError, match="is no run's folder"):
        old_run_folder(tmp_path / "other", {"name": "mine"})


def test_a_run_is_gone_on_with_by_the_very_recipe_that_started_it(tmp_path: Path) -> None:
    folder = make_run_folder(tmp_path, "mine")
    (folder / "manifest.json").write_text(json.dumps({"recipe": {"seed": 1, "train": {"steps": 2, "x": None}}}))
    assert old_run_folder(folder, {"seed": 1, "train": {"steps": 2, "x": None}}) == folder
    with pytest.raises(ConfigError) as caught:
        old_run_folder(folder, {"seed": 2, "train": {"steps": 3, "x": None}})
    assert [problem.where for problem in caught.value.problems] == ["seed", "train.steps"]
    assert "was started with 2" in str(caught.value.problems[1])


def headrace(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    root = str(Path(__file__).resolve().parents[2])
    environment = {**os.environ, "PYTHONPATH": root}
    command = [sys.executable, "-m", "pipeline.cli", *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def test_the_smoke_recipe_learns_to_call_the_calculator(tmp_path: Path) -> None:
    finished = headrace("run", "smoke", "--json", folder=tmp_path)
    assert finished.returncode == 0, finished.stderr[-4000:]
    (line,) = finished.stdout.splitlines()
    figures = json.loads(line)
    assert list(figures) == FIGURES
    assert figures["accuracy_before"] < 0.4
    assert figures["accuracy_after"] > 0.9
    assert figures["accuracy_after_interval"][0] > 0.85
    assert figures["peak_memory_gib"] < 6
    assert Path(figures["run_dir"]).parent == tmp_path / "runs"
    assert (Path(figures["report_html"])).is_file()


def test_bad_input_ends_with_2_and_makes_no_folder(tmp_path: Path) -> None:
    finished = headrace("run", "smoke", "--set", "train.steps=1o0", folder=tmp_path)
    assert finished.returncode == 2
    assert finished.stdout == ""
    assert finished.stderr == "headrace: --set train.steps: Input should be a valid integer (got '1o0')\n"
    assert list(tmp_path.iterdir()) == []

"""Whole runs on this machine, through kfp's local runner."""

import json
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from components import storage
from components.config import dump
from components.errors import ConfigError
from components.export.promotion import fingerprint_of, read_promotions
from components.telemetry.run_files import failure_of, read_run
from pipeline import manifest as manifests
from pipeline.cli import main
from pipeline.commands.compiling import COMPILED
from pipeline.local import LocalRun, StepFailedError, run_locally
from pipeline.recipe import load_recipe
from pipeline.run_folders import how_to_go_on, make_run_folder, old_run_folder, reopen
from tests.pipeline.conftest import MODULE, Finished, headrace

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

SHORT = {
    "prepare_data.train_tasks": 64,
    "prepare_data.test_tasks": 8,
    "init_model.tiny.n_layers": 1,
    "init_model.tiny.warm_start.steps": 30,
    "train.steps": 2,
    "train.rollout.tasks_per_step": 2,
    "train.rollout.group_size": 4,
    "evaluate.samples": 0,
}
"""The smoke recipe, cut so short that it learns nothing, but goes all the way."""


LEARN = ["resolve-recipe", "prepare-data", "init-model", "train", "evaluate"]


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


def test_the_smoke_recipe_learns_to_call_the_calculator(learnt: Finished) -> None:
    figures = learnt.figures
    assert list(figures) == FIGURES
    assert figures["accuracy_before"] < 0.4
    assert figures["accuracy_after"] > 0.9
    assert figures["accuracy_after_interval"][0] > 0.85
    assert figures["peak_memory_gib"] < 6
    assert learnt.folder.parent == learnt.project / "runs"
    assert figures["proofs"]["export"]["adapter"] == 0.0
    tokens = dict(figures["tokens"])
    assert tokens.pop("generated") == sum(tokens.values()) > 0


def test_every_step_is_shown_as_it_runs_and_leaves_its_files(learnt: Finished) -> None:
    shown = [line.removeprefix("== ") for line in learnt.said.splitlines() if line.startswith("== ")]
    assert shown == [*LEARN, "gate", "export", "promote", "finish-run"]
    assert "step 25/25" in learnt.said
    assert len((learnt.folder / "metrics.jsonl").read_text().splitlines()) == 25
    assert "<html" in Path(learnt.figures["report_html"]).read_text()
    assert (learnt.folder / "adapter" / "adapter_model.safetensors").is_file()
    assert (learnt.folder / "merged" / "model.safetensors").is_file()
    assert learnt.summary()["environment"] == "my_module:Mine"


def test_all_numbers_of_the_run_are_in_one_metrics_artifact(learnt: Finished) -> None:
    artifacts = learnt.output("evaluate")["artifacts"]
    metrics = artifacts["metrics"]["artifacts"][0]["metadata"]
    assert metrics["accuracy_after"] == learnt.figures["accuracy_after"]
    assert metrics["tokens_generated"] == learnt.figures["tokens"]["generated"]
    assert metrics.keys() >= {"accuracy_improvement_low", "sync_worst_canary_difference", "reward_last_step", "steps"}
    assert all(isinstance(value, int | float) for value in metrics.values())
    matrix = artifacts["tool_use"]["artifacts"][0]["metadata"]["confusionMatrix"]
    assert sum(sum(row["row"]) for row in matrix["rows"]) == 200
    # Almost every sum is solved by a call; none is solved without.
    assert matrix["rows"][0]["row"][0] > 180
    assert matrix["rows"][0]["row"][1] == 0


def test_a_run_that_learnt_passes_its_gate_and_is_promoted(learnt: Finished) -> None:
    gated = learnt.output("gate")["parameterValues"]
    assert gated["decision"] == "promote"
    assert gated["reasons"].startswith("greedy accuracy changed by +0.")
    ((entry, *earlier), _) = read_promotions(learnt.project / "runs" / "promoted" / "smoke")
    assert earlier == []
    assert entry.run == str(learnt.folder)
    assert entry.fingerprint == fingerprint_of(learnt.folder / "adapter") == fingerprint_of(entry.adapter)
    assert learnt.summary()["promotion"] == f"promoted: {entry.adapter}"
    page = (next((learnt.folder / "steps").glob("*/finish-run/summary"))).read_text()
    assert page.startswith(f"# smoke\n\n**Promoted: {entry.adapter}**")


def test_the_manifest_says_what_the_run_was_made_of(learnt: Finished) -> None:
    found = manifests.read(str(learnt.folder))
    assert found["recipe"]["environment"]["use"] == "my_module:Mine"
    assert found["overrides"] == {"environment.use": "my_module:Mine"}
    assert (found["source"], found["image"], found["start"]["parent"]) == ("smoke", "none: local", None)
    assert found["data"]["train_tasks"] == 20000
    assert len(found["data"]["sha256"]) == len(found["environment_module"]) == 64
    assert found["hardware"].items() >= {"platform": "cpu", "hosts": 1}.items()
    assert len(found["base"]["fingerprint"]) == 16
    artifact = json.loads((next((learnt.folder / "steps").glob("*/finish-run/manifest"))).read_text())
    assert artifact == found


def test_a_run_is_started_again_from_its_manifest_and_what_has_changed_is_named(
    learnt: Finished, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    started: list[tuple[str, str]] = []

    def run_locally(recipe: str, *, name: str, runs: Path) -> LocalRun:
        started.append((recipe, name))
        return LocalRun(learnt.folder, {}, {"run_dir": "again"})

    monkeypatch.setattr("pipeline.local.run_locally", run_locally)
    code = manifests.read(str(learnt.folder))["code"]
    monkeypatch.setattr("pipeline.provenance.code", lambda: code)
    monkeypatch.chdir(learnt.project)
    monkeypatch.syspath_prepend(str(learnt.project))
    exact = str(learnt.folder / "recipe.yaml")
    assert main(["rerun", str(learnt.folder), "--json"]) == 0
    assert started == [(exact, "smoke")]
    assert load_recipe(exact) == load_recipe(
        "smoke", {"environment.use": "my_module:Mine", "promote.root": str(learnt.project / "runs/promoted/smoke")}
    )
    capsys.readouterr()
    (learnt.project / "my_module.py").write_text(MODULE.replace("as they are", "as they were"))
    try:
        assert main(["rerun", str(learnt.folder)]) == 2
        assert "environment module: was '" in capsys.readouterr().err
        assert len(started) == 1
        assert main(["rerun", str(learnt.folder), "--anyway", "--json"]) == 0
        assert "warning: environment module" in capsys.readouterr().err
    finally:
        (learnt.project / "my_module.py").write_text(MODULE)


def test_the_promoted_adapter_is_evaluated_alone_against_its_base(learnt: Finished) -> None:
    (base,) = (learnt.folder / "steps").glob("*/init-model/base")
    changes = (
        "environment.use=my_module:Mine",
        "evaluate.samples=0",
        "init_model.tiny=null",
        f"init_model.source={base}",
    )
    options = ("--tasks", "40", *(f"--set={change}" for change in changes))
    finished = headrace("eval", "smoke", "latest-promoted", "--json", *options, folder=learnt.project)
    assert finished.returncode == 0, finished.stderr[-4000:]
    figures = json.loads(finished.stdout)
    assert figures["evaluation_tasks"] == 40
    assert figures["accuracy_before"] < 0.4
    assert figures["accuracy_after"] > 0.9
    shown = [line.removeprefix("== ") for line in finished.stderr.splitlines() if line.startswith("== ")]
    assert shown == ["resolve-recipe", "prepare-data", "init-model", "evaluate", "finish-run"]


TUNE = {
    "method": "sft",
    "rows": {"demonstrations": {}},
    "steps": 2,
    "rows_per_step": 32,
    "packing": {"rows": 16, "row_length": 32},
}


@pytest.mark.long
def test_a_recipe_that_only_tunes_runs_from_the_first_step_to_the_last(project: Path, capsys) -> None:
    short = {key: value for key, value in SHORT.items() if not key.startswith("train.")}
    finished = run_locally(
        "smoke", name="tuned", runs=project / "runs", overrides=short | {"train": None, "tune": TUNE}
    )
    shown = [line.removeprefix("== ") for line in capsys.readouterr().err.splitlines() if line.startswith("== ")]
    assert shown == [*(step if step != "train" else "tune" for step in LEARN), "gate", "export", "finish-run"]
    assert (finished.summary["stages"], finished.summary["tuning"]["steps"]) == (["tune"], 2)
    assert finished.figures["accuracy_after"] is not None
    assert finished.figures["proofs"]["export"]["adapter"] == 0.0
    tuned = next((finished.folder / "steps").glob("*/tune/tuned"))
    assert fingerprint_of(str(tuned)) == fingerprint_of(finished.figures["adapter_dir"])
    page = Path(finished.figures["report_html"]).read_text()
    assert "tune (sft)" in page


@pytest.mark.long
@pytest.mark.parametrize("stages", [("train",), ("tune", "train")], ids="-".join)
def test_a_sweep_trains_every_trial_and_compares_them_on_one_page(tmp_path: Path, stages: tuple[str, ...]) -> None:
    short = [f"--set={key}={value}" for key, value in SHORT.items()]
    short += [f"--set=tune={json.dumps(TUNE)}"] if "tune" in stages else []
    rate = f"{stages[0]}.optimizer.learning_rate"
    trials = ("--trial", "train.steps=1,seed=3", "--trial", json.dumps({rate: 0.001}))
    finished = headrace("sweep", "smoke", "--json", *short, *trials, folder=tmp_path)
    assert finished.returncode == 0, finished.stderr[-4000:]
    figures = json.loads(finished.stdout)
    folder = Path(figures["run_dir"])
    assert len(list((folder / "trials").iterdir())) == 2
    assert [each["set"] for each in figures["trials"]] == [
        {"train.steps": "1", "seed": "3"},
        {rate: 0.001},
    ]
    page = Path(figures["report_html"]).read_text()
    assert "2 runs compared" in page
    assert rate in page
    made = [manifests.read(str(trial))["recipe"] for trial in (folder / "trials").iterdir()]
    assert sorted(each["train"]["steps"] for each in made) == [1, 2]
    shown = [line.removeprefix("== ") for line in finished.stderr.splitlines() if line.startswith("== ")]
    steps = [*LEARN[:3], *stages, "evaluate"]
    assert shown == [*steps, *steps, "compare-trials", "finish-run"]


def test_a_failing_step_shows_its_own_error_first(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(StepFailedError) as caught:
        run(project, **SHORT, **{"environment.use": "my_module:Doubled"})
    first = str(caught.value).splitlines()[0]
    assert first.startswith("ConfigError: my_module:Doubled, task")
    assert "the id stands twice" in first
    assert caught.value.step == "resolve-recipe"
    assert "The step resolve-recipe failed; its whole output is in" in str(caught.value)
    (folder,) = (project / "runs").glob("short-*")
    assert failure_of(read_run(str(folder)).summary) == {"step": caught.value.step, "message": caught.value.reason}
    page = (folder / "report.html").read_text()
    assert f"This run failed in its step {caught.value.step}" in page
    assert "the id stands twice" in page
    assert "== prepare-data" not in capsys.readouterr().err


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


def test_a_finished_run_is_left_as_it_is_unless_more_is_asked_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = make_run_folder(tmp_path, "smoke")
    (folder / "manifest.json").write_text(json.dumps({"recipe": dump(load_recipe("smoke"))}))
    (folder / "summary.json").write_text(json.dumps({"wall_seconds": 9.5, "steps": 25, "promotion": "promoted: x"}))

    def run_pipeline(*_: Any, folder: Path, **__: Any) -> None:
        reopen(folder)
        raise InterruptedError

    monkeypatch.setattr("pipeline.local.run_pipeline", run_pipeline)
    before = {file: (file.stat().st_mtime_ns, file.read_bytes()) for file in folder.iterdir()}
    assert main(["run", "smoke", "--resume", str(folder), "--json"]) == 0
    said = capsys.readouterr()
    assert (json.loads(said.out)["wall_seconds"], json.loads(said.out)["steps"]) == (9.5, 25)
    assert said.err.startswith(f"{folder}: the run is finished; nothing to do. ")
    assert said.err.endswith("raise train.steps, which is 25 now: --set train.steps=N\n")
    assert {file: (file.stat().st_mtime_ns, file.read_bytes()) for file in folder.iterdir()} == before
    with pytest.raises(InterruptedError):
        run_locally("smoke", name="smoke", runs=tmp_path, overrides={"train.steps": 30}, resume=folder)
    assert json.loads((folder / "summary.json").read_text()) == {"steps": 25}, "it is no longer finished"
    with pytest.raises(InterruptedError):
        run_locally("smoke", name="smoke", runs=tmp_path, resume=folder)


def test_a_finished_run_whose_rate_has_come_down_is_gone_on_with_in_a_new_one(tmp_path: Path) -> None:
    falling = dump(load_recipe("smoke", {"train.optimizer.schedule": "cosine"}))
    assert f"--set parent={tmp_path / 'adapter'}" in how_to_go_on(tmp_path, falling)


def test_what_the_tune_step_allows_to_change_the_command_allows_too(tmp_path: Path) -> None:
    folder = make_run_folder(tmp_path, "mine")
    tune = {"method": "sft", "epochs": 1, "checkpoint_every": 50, "optimizer": {"schedule": "constant"}}
    (folder / "manifest.json").write_text(json.dumps({"recipe": {"tune": tune}}))
    assert old_run_folder(folder, {"tune": tune | {"epochs": 2, "checkpoint_every": 5}}) == folder
    with pytest.raises(ConfigError, match=r"tune\.method: the run was started with 'sft'"):
        old_run_folder(folder, {"tune": tune | {"method": "dpo"}})
    with pytest.raises(ConfigError, match=r"tune\.epochs"):
        old_run_folder(folder, {"tune": tune | {"epochs": 2, "optimizer": {"schedule": "cosine"}}})


def test_bad_input_ends_with_2_and_makes_no_folder(tmp_path: Path) -> None:
    finished = headrace("run", "smoke", "--set", "train.steps=1o0", folder=tmp_path)
    assert finished.returncode == 2
    assert finished.stdout == ""
    assert finished.stderr == "headrace: --set train.steps: Input should be a valid integer (got '1o0')\n"
    assert list(tmp_path.iterdir()) == []

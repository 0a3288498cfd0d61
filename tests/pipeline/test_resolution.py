"""The first step: everything is checked and made exact within seconds, and a fault is told to a person."""

import json
from pathlib import Path
from typing import Any

import pytest

from components.errors import ConfigError
from components.export.promotion import move_pointer
from components.telemetry.run_files import read_run
from pipeline import manifest as manifests
from pipeline.parameters import KEYS
from pipeline.resolution import Resolved, resolve, trial_name
from pipeline.start import mark_seen
from tests.export.test_promotion import run
from tests.pipeline.conftest import MODULE

EMPTY: dict[str, str | int | float] = {
    name: -1 if name in ("steps", "seed", "tasks", "learning_rate") else "" for name in KEYS
}


def resolved(folder: Path, recipe: str = "smoke", *, name: str = "new", **given: Any) -> Resolved:
    """What the first step gives for a run in `runs/NAME`; `given` are parameters, overrides and a trial."""
    overrides, trial = given.pop("overrides", {}), given.pop("trial", {})
    needed = given.pop("parent_is_needed", False)
    return resolve(
        recipe=recipe,
        overrides=json.dumps(overrides),
        parameters=EMPTY | given,
        parent_is_needed=needed,
        trial=trial,
        run_root=str(folder / "runs" / name),
        run_id="9f3c",
        image="image@sha256:0",
        manifest=str(folder / "manifest"),
        manifest_uri=str(folder / "manifest"),
    )


def problems_of(folder: Path, **given: Any) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        resolved(folder, **given)
    assert not (folder / "runs").exists(), "nothing is written for a run that cannot work"
    return [str(problem) for problem in caught.value.problems]


def test_what_a_person_fills_in_is_what_the_steps_get(tmp_path: Path) -> None:
    found = resolved(tmp_path, steps=7, learning_rate=2e-05, seed=5, overrides={"train.rollout.group_size": 4})
    train = json.loads(found.train)
    assert (train["steps"], train["optimizer"]["learning_rate"], train["rollout"]["group_size"]) == (7, 2e-05, 4)
    assert (found.name, found.seed, found.proceed) == ("smoke", 5, "yes")
    assert json.loads(found.promote)["root"] == str(tmp_path / "runs" / "promoted" / "smoke")
    assert found.run_folder == str(tmp_path / "runs" / "new")
    assert (found.accelerator, found.accelerator_count, found.cpu, found.memory) == ("", "0", "0", "0")
    assert (found.node_selector, found.tolerations) == ({}, [])


def test_the_manifest_is_an_artifact_and_lies_in_the_runs_folder(tmp_path: Path) -> None:
    found = resolved(tmp_path, steps=7)
    record = json.loads((tmp_path / "manifest").read_text())
    assert record == manifests.read(found.run_folder)
    assert (record["image"], record["parameters"], record["overrides"]) == (
        "image@sha256:0",
        {"steps": 7},
        {"train.steps": 7},
    )


def test_a_fault_is_told_where_the_person_wrote_it_and_all_at_once(tmp_path: Path) -> None:
    (problem,) = problems_of(tmp_path, steps=0)
    assert problem == "steps (train.steps): Input should be greater than or equal to 1 (got 0)"
    found = problems_of(tmp_path, objective="grpoo", seed=3, overrides={"train.rollouts": {}})
    assert [each.partition(":")[0] for each in found] == ["objective (train.objective.preset)", "--set train.rollouts"]
    (problem,) = problems_of(tmp_path, data="gs://bucket/gsm8k")
    assert "environment.options" in problem
    assert "data" in problem
    (problem,) = problems_of(tmp_path, overrides={"gate.measure": "luck"})
    assert "is nothing that the evaluation measures: greedy accuracy" in problem


def test_an_impossible_machine_is_refused_by_name_and_a_possible_one_is_asked_for(tmp_path: Path) -> None:
    (problem,) = problems_of(tmp_path, accelerator="v5e", topology="3x3")
    assert "v5e has no topology 3x3" in problem
    found = resolved(tmp_path, accelerator="v5e", topology="2x4", overrides={"platform.memory": "64Gi"})
    assert (found.accelerator, found.accelerator_count, found.memory) == ("google.com/tpu", "8", "64Gi")
    assert found.node_selector == {
        "cloud.google.com/gke-tpu-accelerator": "tpu-v5-lite-podslice",
        "cloud.google.com/gke-tpu-topology": "2x4",
    }
    assert found.tolerations == [{"key": "google.com/tpu", "operator": "Exists", "effect": "NoSchedule"}]


def test_the_step_that_waits_for_a_job_set_asks_for_little(tmp_path: Path) -> None:
    platform = {"platform.launcher": "jobset", "platform.image": "i@sha256:0", "platform.spot": True}
    platform |= {"train.mesh": {"fsdp": 4, "tensor": 4}}
    found = resolved(tmp_path, accelerator="v5e", topology="4x4", overrides=platform)
    assert (found.accelerator, found.node_selector, found.tolerations) == ("", {}, [])
    assert found.memory.endswith("Mi")
    assert found.job_owner == "9f3c"


def test_each_trial_has_a_folder_and_a_job_of_its_own(tmp_path: Path) -> None:
    trials = [{"train.steps": 3.0}, {"train.steps": 4.0}]
    found = [resolved(tmp_path, trial=trial) for trial in trials]
    assert [json.loads(each.train)["steps"] for each in found] == [3, 4]
    names = [trial_name(trial) for trial in trials]
    assert len(set(names)) == 2
    assert [each.run_folder for each in found] == [str(tmp_path / "runs" / "new" / "trials" / name) for name in names]
    assert [each.job_owner for each in found] == [f"9f3c/{name}" for name in names]
    assert manifests.read(found[0].run_folder)["trial"] == {"train.steps": 3}


def test_a_run_that_is_gone_on_with_keeps_the_parent_that_it_began_with(
    tmp_path: Path, tiny_inputs: dict[str, str]
) -> None:
    """Somebody may have been promoted since."""
    world = {"init_model.tiny.d_model": 32, "init_model.tiny.n_layers": 2, "init_model.tiny.d_ff": 64}
    root = str(tmp_path / "runs" / "promoted" / "smoke")
    first = move_pointer(root, Path(tiny_inputs["adapter"]), run(tmp_path, "monday"), expected=0)
    found = resolved(tmp_path, parent="latest-promoted", overrides=world)
    init = json.loads(found.init_model)
    assert init["adapter"] == first.adapter
    assert init["lora"]["rank"] != 8, "the parent brings its own ranks"
    second = move_pointer(root, Path(tiny_inputs["adapter"]), run(tmp_path, "tuesday"), expected=None)
    again = resolved(tmp_path, parent="latest-promoted", overrides=world)
    assert again == found
    later = resolved(tmp_path, name="later", parent="latest-promoted", overrides=world)
    assert json.loads(later.init_model)["adapter"] == second.adapter != first.adapter
    recorded = read_run(found.run_folder).summary["start"]["parent"]
    assert recorded == {"uri": first.adapter, "fingerprint": first.fingerprint}


def test_a_parent_of_another_model_is_refused_before_anything_runs(tmp_path: Path, tiny_inputs: dict[str, str]) -> None:
    (problem,) = problems_of(tmp_path, parent=tiny_inputs["adapter"])
    assert problem.startswith(f"init_model.adapter: {tiny_inputs['adapter']}: ")


def test_an_evaluation_needs_an_adapter(tmp_path: Path) -> None:
    (problem,) = problems_of(tmp_path, parent="latest-promoted", parent_is_needed=True)
    assert problem.startswith("adapter: nothing is promoted at ")


def test_a_run_without_new_data_ends_early_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "dated_module.py").write_text(MODULE)
    for day in ("2026-11-29", "2026-11-30"):
        (tmp_path / "data" / day).mkdir(parents=True)
        (tmp_path / "data" / day / "train.jsonl").write_text(day)
    given = {"data": f"newest:{tmp_path}/data"}
    world = {"overrides": {"environment.use": "dated_module:Dated", "environment.options": {}}}
    first = resolved(tmp_path, **given, **world)
    assert first.proceed == "yes"
    assert json.loads(first.environment)["options"] == {"data": str(tmp_path / "data" / "2026-11-30")}
    start = manifests.start_of(first.run_folder)
    assert start is not None
    mark_seen(start, first.run_folder)
    second = resolved(tmp_path, name="next", **given, **world)
    assert second.proceed == "no"
    said = read_run(second.run_folder).summary["promotion"]
    assert said == f"not promoted: no new data: {first.run_folder} has trained on what is in {start.data}"

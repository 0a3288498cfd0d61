"""Base against trained: the same tasks, the same engine, and numbers that are right at their edges."""

import json
import shutil

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from components.engine.engine import Engine
from components.errors import DataError, RunStoppedError
from components.evaluation.measures import Scores, compare
from components.evaluation.run import evaluate
from components.telemetry.run_files import read_run
from components.types import Failure
from tests.tiny_run import ENGINE, ENVIRONMENT

LIMITS = {"solved_at": 1.0, "max_failed_share": 0.02}


def scores(*greedy, sampled=()) -> Scores:
    failures = [Failure("grader", "no verdict") for reward in greedy if reward is None]
    return Scores(greedy=list(greedy), sampled=[list(rewards) for rewards in sampled], failures=failures)


def test_accuracy_counts_solved_tasks_and_the_difference_is_paired():
    accuracy, reward = compare(scores(1.0, 0.0, 0.5, 0.0), scores(1.0, 1.0, 0.5, 0.0), **LIMITS)
    assert (accuracy["before"]["value"], accuracy["after"]["value"]) == (0.25, 0.5)
    assert accuracy["paired"]["difference"]["value"] == 0.25
    assert (accuracy["paired"]["better"], accuracy["paired"]["worse"], accuracy["paired"]["equal"]) == (1, 0, 3)
    assert reward["after"]["value"] == pytest.approx(2.5 / 4)


def test_a_failed_task_is_no_score_and_too_many_stop_the_step():
    before, after = scores(1.0, None, 0.0), scores(1.0, 1.0, 1.0)
    accuracy, _ = compare(before, after, solved_at=1.0, max_failed_share=0.5)
    assert accuracy["after"]["count"] == 2
    with pytest.raises(RunStoppedError, match=r"1 of 3 evaluation tasks failed.*'grader', said: no verdict"):
        compare(before, after, **LIMITS)


def test_samples_give_a_mean_per_task_and_pass_at_k():
    before = scores(0.0, 0.0, sampled=([0.0, 0.0], [1.0, 0.0]))
    after = scores(0.0, 0.0, sampled=([1.0, 0.0], [1.0, 1.0]))
    measures = {measure["name"]: measure for measure in compare(before, after, **LIMITS)}
    assert measures["sampled accuracy"]["before"]["value"] == 0.25
    assert measures["sampled accuracy"]["after"]["value"] == 0.75
    assert measures["pass@2"]["before"]["value"] == 0.5
    assert measures["pass@2"]["after"]["value"] == 1.0


def arguments(tiny_inputs, folder, **settings):
    return {
        "section": json.dumps({"engine": ENGINE, **settings}),
        "environment": json.dumps(ENVIRONMENT),
        "seed": 0,
        "run_folder": str(folder),
        "tasks": tiny_inputs["tasks"],
        "base": tiny_inputs["base"],
        "start": "",
        "trained": tiny_inputs["adapter"],
        "report": str(folder / "report.html"),
    }


def test_an_adapter_that_changes_nothing_scores_what_the_base_scores(tiny_inputs, tmp_path):
    found = evaluate(**arguments(tiny_inputs, tmp_path, samples=3))
    scalars = found.scalars
    assert sum(map(sum, found.tool_use)) == 8
    assert scalars["evaluation_tasks"] == 8
    assert scalars["accuracy_before"] == scalars["accuracy_after"]
    assert scalars["sampled_accuracy_improvement"] == 0.0
    run = read_run(str(tmp_path))
    assert [measure["name"] for measure in run.measures] == [
        "greedy accuracy",
        "greedy reward",
        "sampled accuracy",
        "pass@3",
    ]
    assert run.summary["adapter_is_finite"] is True
    assert "<html" in (tmp_path / "report.html").read_text()


def test_fewer_tasks_than_slots_are_all_scored(tiny_inputs, tmp_path):
    assert evaluate(**arguments(tiny_inputs, tmp_path, tasks=5)).scalars["evaluation_tasks"] == 5


def test_no_task_is_refused_at_the_start(tiny_inputs, tmp_path):
    (tmp_path / "test.jsonl").write_text("")
    with pytest.raises(DataError):
        evaluate(**arguments(tiny_inputs, tmp_path) | {"tasks": str(tmp_path)})


def test_a_run_with_a_parent_is_compared_with_its_parent(tiny_inputs, tmp_path, monkeypatch):
    """Before is what training started from, not the bare base, which a good parent beats without any training."""
    parent = tmp_path / "parent"
    shutil.copytree(tiny_inputs["adapter"], parent)
    weights = load_file(parent / "adapter_model.safetensors")
    save_file({name: np.full_like(value, 0.3) for name, value in weights.items()}, parent / "adapter_model.safetensors")
    served = []
    swap = Engine.swap

    def watched(engine, adapter, version):
        served.append({round(float(pair.b.max()), 3) for layer in adapter.layers for pair in layer.values()})
        return swap(engine, adapter, version)

    monkeypatch.setattr(Engine, "swap", watched)
    changed = arguments(tiny_inputs, tmp_path, tasks=2) | {"trained": str(parent)}
    evaluate(**changed)
    evaluate(**changed | {"start": str(parent)})
    assert served == [{0.0}, {0.3}, {0.3}, {0.3}]

"""The compiled pipeline: committed, whole, and what Kubeflow Pipelines reads."""

import itertools
from pathlib import Path
from typing import Any

import pytest
import yaml
from google.protobuf import json_format
from kfp.pipeline_spec import pipeline_spec_pb2

from pipeline.commands.compiling import COMPILED
from pipeline.compiling import pipeline_yaml, without_retries

STEPS = ["resolve-recipe", "prepare-data", "init-model", "train", "evaluate", "export"]


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    """The committed file."""
    document: dict[str, Any] = yaml.safe_load(COMPILED.read_text(encoding="utf-8"))
    return document


def test_the_committed_file_is_what_compiles_now() -> None:
    assert COMPILED.read_text(encoding="utf-8") == pipeline_yaml(), "run `make compile` and commit the file"


def test_the_protos_read_the_whole_file(document: dict[str, Any]) -> None:
    spec = json_format.ParseDict(document, pipeline_spec_pb2.PipelineSpec())
    deployment = pipeline_spec_pb2.PipelineDeploymentConfig()
    json_format.ParseDict(json_format.MessageToDict(spec.deployment_spec), deployment)
    assert spec.pipeline_info.name == "post-training"
    assert sorted(spec.root.dag.tasks) == sorted(STEPS)
    assert len(deployment.executors) == len(STEPS)
    for executor in deployment.executors.values():
        assert executor.container.image == "headrace-python:0.1.0"
        assert "pip install" not in " ".join(executor.container.command)


def test_each_step_waits_for_the_one_before(document: dict[str, Any]) -> None:
    tasks = document["root"]["dag"]["tasks"]
    assert "dependentTasks" not in tasks[STEPS[0]]
    for before, after in itertools.pairwise(STEPS):
        assert before in tasks[after]["dependentTasks"]


def test_no_step_is_answered_from_a_cache(document: dict[str, Any]) -> None:
    options = [task["cachingOptions"] for task in document["root"]["dag"]["tasks"].values()]
    assert options == [{}] * len(STEPS)


def test_only_training_is_retried_and_for_longer_than_an_hour(document: dict[str, Any]) -> None:
    retried = {
        name: task["retryPolicy"] for name, task in document["root"]["dag"]["tasks"].items() if "retryPolicy" in task
    }
    assert list(retried) == ["train"]
    assert retried["train"]["backoffMaxDuration"] == f"{14 * 24 * 3600}s"
    assert retried["train"]["backoffFactor"] == 2.0


def test_every_parameter_has_a_type_that_a_server_takes(document: dict[str, Any]) -> None:
    parameters = document["root"]["inputDefinitions"]["parameters"]
    types = {name: parameter["parameterType"] for name, parameter in parameters.items()}
    assert types == {"recipe": "STRING", "overrides": "STRING", "seed": "NUMBER_INTEGER", "run_root": "STRING"}
    assert "defaultValue" not in parameters["recipe"]


def test_all_scalars_of_a_run_are_in_one_metrics_output(document: dict[str, Any]) -> None:
    kinds = [
        (step, artifact["artifactType"]["schemaTitle"])
        for step in STEPS
        for artifact in document["components"][f"comp-{step}"]["outputDefinitions"].get("artifacts", {}).values()
    ]
    assert [step for step, kind in kinds if kind == "system.Metrics"] == ["evaluate"]
    assert [step for step, kind in kinds if kind == "system.HTML"] == ["evaluate"]


def test_here_nothing_is_retried_and_nothing_else_changes(document: dict[str, Any]) -> None:
    local = yaml.safe_load(without_retries(COMPILED.read_text(encoding="utf-8")))
    assert all("retryPolicy" not in task for task in local["root"]["dag"]["tasks"].values())
    del document["root"]["dag"]["tasks"]["train"]["retryPolicy"]
    assert local == document


def test_it_compiles_to_the_same_text_in_another_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    assert pipeline_yaml() == COMPILED.read_text(encoding="utf-8")

"""The compiled pipelines: committed, whole, and what Kubeflow Pipelines reads."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from google.protobuf import json_format
from kfp.kubernetes import kubernetes_executor_config_pb2
from kfp.pipeline_spec import pipeline_spec_pb2

from pipeline.commands.compiling import COMPILED, NAMES, PACKAGE
from pipeline.compiling import PIPELINES, for_this_machine, pipeline_yaml
from pipeline.parameters import KEYS

LEARN = ["resolve-recipe", "prepare-data", "init-model", "train", "evaluate"]
DELIVER = ["gate", "export", "promote", "finish-run"]
COMPARE = ["compare-trials", "finish-run"]
STEPS = {
    "post_training": [*LEARN, *DELIVER],
    "tuned_post_training": [*LEARN, "tune", *DELIVER],
    "tuning": [*(step for step in LEARN if step != "train"), "tune", *DELIVER],
    "sweep": [*LEARN, *COMPARE],
    "tuned_sweep": [*LEARN, "tune", *COMPARE],
    "tuning_sweep": [*(step for step in LEARN if step != "train"), "tune", *COMPARE],
    "evaluation": ["resolve-recipe", "prepare-data", "init-model", "evaluate", "finish-run"],
}
SWEEPS = [name for name, steps in STEPS.items() if "compare-trials" in steps]


def committed(name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The pipeline and its platform settings."""
    pipeline, *platform = yaml.safe_load_all((PACKAGE / f"{name}.yaml").read_text(encoding="utf-8"))
    return pipeline, platform[0] if platform else {}


def tasks(pipeline: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every task that is a step, of every level."""
    for component in (pipeline["root"], *pipeline["components"].values()):
        for name, task in component.get("dag", {}).get("tasks", {}).items():
            if "executorLabel" in pipeline["components"][task["componentRef"]["name"]]:
                yield name, task


@pytest.fixture(scope="module")
def post_training() -> dict[str, Any]:
    return committed("post_training")[0]


def test_every_pipeline_is_committed() -> None:
    assert set(PIPELINES) == set(NAMES) == {path.stem for path in PACKAGE.glob("*.yaml")}


@pytest.mark.parametrize("name", NAMES)
def test_the_committed_file_is_what_compiles_now(name: str) -> None:
    text = (PACKAGE / f"{name}.yaml").read_text(encoding="utf-8")
    assert text == pipeline_yaml(name), "run `make compile` and commit the files"


@pytest.mark.parametrize("name", NAMES)
def test_the_protos_read_the_whole_file(name: str) -> None:
    document, platform = committed(name)
    spec = json_format.ParseDict(document, pipeline_spec_pb2.PipelineSpec())
    deployment = pipeline_spec_pb2.PipelineDeploymentConfig()
    json_format.ParseDict(json_format.MessageToDict(spec.deployment_spec), deployment)
    assert spec.pipeline_info.name == name.replace("_", "-")
    assert sorted(step for step, _ in tasks(document)) == sorted(STEPS[name])
    assert len(deployment.executors) == len(STEPS[name])
    for executor in deployment.executors.values():
        assert executor.container.image == "headrace-python:0.1.0"
        assert "pip install" not in " ".join(executor.container.command)
    if name == "evaluation":
        assert platform == {}
        return
    settings = platform["platforms"]["kubernetes"]["deploymentSpec"]["executors"]
    assert sorted(settings) == [f"exec-{step}" for step in ("train", "tune") if step in STEPS[name]]
    for each in settings.values():
        json_format.ParseDict(each, kubernetes_executor_config_pb2.KubernetesExecutorConfig())


@pytest.mark.parametrize("name", NAMES)
def test_no_step_is_answered_from_a_cache(name: str) -> None:
    cached = {step: task["cachingOptions"] for step, task in tasks(committed(name)[0])}
    assert cached == {step: {} for step in STEPS[name]}


@pytest.mark.parametrize("name", NAMES)
def test_whatever_happens_the_last_step_cleans_up(name: str) -> None:
    root = committed(name)[0]["root"]["dag"]["tasks"]
    last = root["finish-run"]
    assert last["triggerPolicy"]["strategy"] == "ALL_UPSTREAM_TASKS_COMPLETED"
    assert last["dependentTasks"] == [task for task in root if task != "finish-run"]


LEARNS = [(name, step) for name, steps in STEPS.items() for step in ("train", "tune") if step in steps]


@pytest.mark.parametrize("name", [name for name in STEPS if name != "evaluation"])
def test_only_steps_that_learn_are_retried_and_for_longer_than_an_hour(name: str) -> None:
    retried = {step: task["retryPolicy"] for step, task in tasks(committed(name)[0]) if "retryPolicy" in task}
    assert sorted(retried) == [step for each, step in LEARNS if each == name]
    for policy in retried.values():
        assert policy["backoffMaxDuration"] == f"{14 * 24 * 3600}s"
        assert policy["backoffFactor"] == 2.0


@pytest.mark.parametrize(("name", "step"), LEARNS)
def test_the_machine_that_learns_is_what_the_first_step_found(name: str, step: str) -> None:
    document, platform = committed(name)
    (learning,) = (task for each, task in tasks(document) if each == step)
    settings = platform["platforms"]["kubernetes"]["deploymentSpec"]["executors"][f"exec-{step}"]
    resources = document["deploymentSpec"]["executors"][f"exec-{step}"]["container"]["resources"]
    wished = {
        "cpu": resources["resourceCpuRequest"],
        "memory": resources["resourceMemoryRequest"],
        "accelerator": resources["accelerator"]["resourceType"],
        "accelerator_count": resources["accelerator"]["resourceCount"],
    }
    for output, setting in wished.items():
        channel = f"pipelinechannel--resolve-recipe-{output}"
        assert setting == f"{{{{$.inputs.parameters['{channel}']}}}}"
        assert channel in learning["inputs"]["parameters"]
    asked = (("node_selector", settings["nodeSelector"]["nodeSelectorJson"]), ("tolerations", settings["tolerations"]))
    for output, setting in asked:
        assert f"'{output}'" in str(setting) or f"--resolve-recipe-{output}'" in str(setting)


def test_each_stage_takes_the_adapter_that_the_one_before_it_gave() -> None:
    steps = dict(tasks(committed("tuned_post_training")[0]))
    producers = {
        step: {
            name: given["taskOutputArtifact"]["producerTask"]
            for name, given in steps[step]["inputs"]["artifacts"].items()
        }
        for step in ("tune", "train", "evaluate")
    }
    assert producers["tune"]["adapter"] == "init-model"
    assert producers["train"]["adapter"] == "tune"
    assert (producers["evaluate"]["start"], producers["evaluate"]["trained"]) == ("init-model", "train")
    alone = dict(tasks(committed("tuning")[0]))
    assert alone["evaluate"]["inputs"]["artifacts"]["trained"]["taskOutputArtifact"]["producerTask"] == "tune"


def test_export_and_promotion_wait_for_the_verdict(post_training: dict[str, Any]) -> None:
    conditions = {
        task["taskInfo"]["name"]: task["triggerPolicy"]["condition"]
        for component in (post_training["root"], *post_training["components"].values())
        for task in component.get("dag", {}).get("tasks", {}).values()
        if "condition" in task.get("triggerPolicy", {})
    }
    assert conditions == {
        "there is data": "inputs.parameter_values['pipelinechannel--resolve-recipe-proceed'] == 'yes'",
        "export": "inputs.parameter_values['pipelinechannel--gate-decision'] != 'stop'",
        "promote": "inputs.parameter_values['pipelinechannel--gate-decision'] == 'promote'",
    }
    steps = dict(tasks(post_training))
    assert "evaluate" in steps["gate"]["dependentTasks"]
    assert steps["evaluate"]["inputs"]["artifacts"]["start"]["taskOutputArtifact"]["producerTask"] == "init-model"


@pytest.mark.parametrize("name", NAMES)
def test_every_parameter_has_a_type_that_a_server_takes_a_default_and_a_description(name: str) -> None:
    parameters = committed(name)[0]["root"]["inputDefinitions"]["parameters"]
    types = {key: parameter["parameterType"] for key, parameter in parameters.items()}
    numbers = {"steps": "NUMBER_INTEGER", "seed": "NUMBER_INTEGER", "tasks": "NUMBER_INTEGER"}
    numbers |= {"learning_rate": "NUMBER_DOUBLE", "trials": "LIST"}
    assert types == {key: numbers.get(key, "STRING") for key in parameters}
    own = {"trials"} if name in SWEEPS else {"adapter"} if name == "evaluation" else set()
    required = {"recipe"} | own
    assert {key for key, parameter in parameters.items() if "defaultValue" not in parameter} == required
    assert {parameter["defaultValue"] for key, parameter in parameters.items() if key not in required} <= {"", -1.0}
    assert all(len(parameter["description"]) > 10 for parameter in parameters.values())
    assert set(parameters) <= {*KEYS, "recipe", "overrides", "run_root", *required}


@pytest.mark.parametrize("name", NAMES)
def test_all_scalars_of_a_run_are_in_one_metrics_output(name: str) -> None:
    document = committed(name)[0]
    kinds: dict[str, list[str]] = {}
    for step in STEPS[name]:
        outputs = document["components"][f"comp-{step}"].get("outputDefinitions", {}).get("artifacts", {})
        for artifact in outputs.values():
            kinds.setdefault(artifact["artifactType"]["schemaTitle"].removeprefix("system."), []).append(step)
    compared = ["compare-trials"] if name in SWEEPS else []
    assert kinds["Metrics"] == kinds["HTML"] == ["evaluate", *compared]
    assert kinds["ClassificationMetrics"] == ["evaluate"]
    assert kinds["Markdown"] == ["finish-run"]


def test_an_image_by_digest_runs_every_step_and_is_told_to_the_first() -> None:
    image = f"region-docker.pkg.dev/project/headrace@sha256:{'0' * 64}"
    document = next(yaml.safe_load_all(pipeline_yaml(image=image)))
    images = {each["container"]["image"] for each in document["deploymentSpec"]["executors"].values()}
    assert images == {image}
    assert dict(tasks(document))["resolve-recipe"]["inputs"]["parameters"]["image"]["runtimeValue"]["constant"] == image


def test_here_nothing_is_retried_and_no_machine_is_asked_for(post_training: dict[str, Any]) -> None:
    local = yaml.safe_load(for_this_machine(COMPILED.read_text(encoding="utf-8")))
    steps = dict(tasks(local))
    assert all("retryPolicy" not in task for task in steps.values())
    assert all("resources" not in each["container"] for each in local["deploymentSpec"]["executors"].values())
    assert steps["resolve-recipe"]["inputs"]["parameters"]["image"]["runtimeValue"]["constant"] == "none: local"
    assert set(steps) == {step for step, _ in tasks(post_training)}


def test_it_compiles_to_the_same_text_in_another_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    assert pipeline_yaml() == COMPILED.read_text(encoding="utf-8")

"""The pipelines in Python -> the YAML that Kubeflow Pipelines runs; the same text everywhere, so it is committed."""

import re
import tempfile
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import yaml
from kfp import compiler

from components.errors import ConfigError, Problem
from components.steps.image import RUNTIME_IMAGE
from pipeline.evaluation import evaluation
from pipeline.manifest import LOCAL_IMAGE
from pipeline.post_training import post_training
from pipeline.sweep import sweep, tuned_sweep, tuning_sweep
from pipeline.tuning import tuned_post_training, tuning

PIPELINES = {
    "post_training": post_training,
    "tuned_post_training": tuned_post_training,
    "tuning": tuning,
    "sweep": sweep,
    "tuned_sweep": tuned_sweep,
    "tuning_sweep": tuning_sweep,
    "evaluation": evaluation,
}
"""By the name of the file that each is committed in, beside this module."""

_CONDITION = re.compile(r"inputs\.parameter_values\['([^']+)'\]")


def pipeline_yaml(name: str = "post_training", *, image: str = RUNTIME_IMAGE) -> str:
    """Compile a pipeline, its steps in `image`. Raises ConfigError for an unknown name."""
    if name not in PIPELINES:
        raise ConfigError(Problem("pipeline", name, f"is none of {', '.join(PIPELINES)}"))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "pipeline.yaml")
        compiler.Compiler().compile(PIPELINES[name], str(path))
        return path.read_text(encoding="utf-8").replace(RUNTIME_IMAGE, image)


def for_this_machine(text: str) -> str:
    """The same pipeline for kfp's local runner.

    Nothing is retried: a step that failed here would fail again, minutes later. Loops run one after another, as their
    steps would share the same processors. Machines are not asked for, and the manifest says that there was no image.
    A condition names the output of a step so that the runner finds it: its own spelling is found among inputs only.
    """
    documents = list(yaml.safe_load_all(text))
    for task in _tasks(documents[0]):
        task.pop("retryPolicy", None)
        if "parameterIterator" in task:
            task["iteratorPolicy"] = {"parallelismLimit": 1}
        inputs = task.get("inputs", {}).get("parameters", {})
        if "image" in inputs:
            inputs["image"] = {"runtimeValue": {"constant": LOCAL_IMAGE}}
        policy = task.get("triggerPolicy", {})
        if "condition" in policy:
            policy["condition"] = _CONDITION.sub(partial(_spelled, inputs), policy["condition"])
    for executor in documents[0]["deploymentSpec"]["executors"].values():
        executor["container"].pop("resources", None)
    return yaml.safe_dump(documents[0], sort_keys=False)


def _tasks(document: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for component in (document["root"], *document["components"].values()):
        yield from component.get("dag", {}).get("tasks", {}).values()


def _spelled(inputs: Mapping[str, Any], found: re.Match[str]) -> str:
    output = inputs.get(found[1], {}).get("taskOutputParameter")
    if output is None:
        return found[0]
    name = f"pipelinechannel--{output['producerTask']}--{output['outputParameterKey']}"
    return f"inputs.parameter_values['{name}']"

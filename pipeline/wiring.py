"""What the pipelines share: the same steps, wired the same way. No logic, and no defaults of its own.

Caching is off everywhere: the cache's key knows neither the user's module, nor the files that a recipe names, nor where
a pointer leads, and a step that is cheap enough to repeat is not worth a wrong hit.
"""

from typing import Any

from kfp import dsl, kubernetes
from kfp.dsl import PipelineTask

from components.steps.evaluate import evaluate
from components.steps.export import export
from components.steps.gate import gate
from components.steps.image import RUNTIME_IMAGE
from components.steps.init_model import init_model
from components.steps.prepare_data import prepare_data
from components.steps.promote import promote
from components.steps.train import train
from components.steps.tune import tune
from pipeline.finish import finish_run
from pipeline.resolve import resolve_recipe

RETRIES = 3
RETRY_WINDOW = "14d"
"""The engine counts it from the first attempt's start: its default, an hour, kills a long run."""


def uncached(task: PipelineTask) -> PipelineTask:
    """The task, always run."""
    return task.set_caching_options(False)


def exit_task(run_root: Any) -> PipelineTask:
    """What runs last, however the run ended."""
    return uncached(finish_run(run_root=run_root, run_id=dsl.PIPELINE_JOB_ID_PLACEHOLDER))


def resolved(**given: Any) -> PipelineTask:
    """The first step, with what a person filled in."""
    return uncached(resolve_recipe(run_id=dsl.PIPELINE_JOB_ID_PLACEHOLDER, image=RUNTIME_IMAGE, **given))


def prepared(first: PipelineTask) -> tuple[PipelineTask, PipelineTask]:
    """Tasks, and a model with the adapter to start from."""
    tasks = uncached(prepare_data(section=first.outputs["prepare_data"], **_shared(first)))
    model = init_model(section=first.outputs["init_model"], tasks=tasks.outputs["tasks"], **_shared(first))
    return tasks, uncached(model)


def tuned(first: PipelineTask, tasks: PipelineTask, model: PipelineTask) -> PipelineTask:
    """Tuning on examples, on the machine that trains."""
    task = tune(
        section=first.outputs["tune"],
        platform=first.outputs["platform"],
        job_owner=first.outputs["job_owner"],
        tasks=tasks.outputs["tasks"],
        base=model.outputs["base"],
        adapter=model.outputs["adapter"],
        **_shared(first),
    )
    return _on_its_machine(first, task)


def trained(first: PipelineTask, tasks: PipelineTask, model: PipelineTask, adapter: Any) -> PipelineTask:
    """The long step, from `adapter` on."""
    task = train(
        section=first.outputs["train"],
        platform=first.outputs["platform"],
        job_owner=first.outputs["job_owner"],
        tasks=tasks.outputs["tasks"],
        base=model.outputs["base"],
        adapter=adapter,
        **_shared(first),
    )
    return _on_its_machine(first, task)


def _on_its_machine(first: PipelineTask, task: PipelineTask) -> PipelineTask:
    """A step that learns: on the machine that the recipe asks for, tried again for two weeks."""
    task.set_retry(num_retries=RETRIES, backoff_duration="60s", backoff_factor=2, backoff_max_duration=RETRY_WINDOW)
    task.set_cpu_request(first.outputs["cpu"]).set_memory_request(first.outputs["memory"])
    task.set_accelerator_type(first.outputs["accelerator"]).set_accelerator_limit(first.outputs["accelerator_count"])
    # kfp does not see that these settings are outputs of another step, unless it is told.
    wishes = ("cpu", "memory", "accelerator", "accelerator_count")
    task.register_pipeline_channels([first.outputs[name] for name in wishes])
    kubernetes.add_node_selector_json(task, first.outputs["node_selector"])
    kubernetes.add_toleration_json(task, first.outputs["tolerations"])
    return uncached(task)


def evaluated(
    first: PipelineTask, tasks: PipelineTask, model: PipelineTask, adapter: Any, start: Any = None
) -> PipelineTask:
    """`adapter` against the adapter `start`, or against the bare base."""
    compared = {"trained": adapter} | ({} if start is None else {"start": start})
    task = evaluate(
        section=first.outputs["evaluate"],
        tasks=tasks.outputs["tasks"],
        base=model.outputs["base"],
        **compared,
        **_shared(first),
    )
    return uncached(task)


def delivered(first: PipelineTask, tasks: PipelineTask, model: PipelineTask, better: Any) -> None:
    """`better` against what the run started from; then what the gate says: promoted, exported, or neither."""
    score = evaluated(first, tasks, model, better, start=model.outputs["adapter"])
    where = {"run_folder": first.outputs["run_folder"]}
    verdict = gate(section=first.outputs["gate"], promotion=first.outputs["promote"], **where)
    uncached(verdict).after(score)
    with dsl.If(verdict.outputs["decision"] != "stop", name="export"):
        exported = export(
            section=first.outputs["export"],
            tasks=tasks.outputs["tasks"],
            base=model.outputs["base"],
            trained=better,
            **where,
        )
        uncached(exported)
        with dsl.If(verdict.outputs["decision"] == "promote", name="promote"):
            uncached(promote(section=first.outputs["promote"], adapter=exported.outputs["adapter"], **where))


def _shared(first: PipelineTask) -> dict[str, Any]:
    return {name: first.outputs[name] for name in ("environment", "seed", "run_folder")}

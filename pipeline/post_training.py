"""Wiring: resolve_recipe -> prepare_data -> init_model -> train -> evaluate -> export. No logic of its own.

Caching is off everywhere: the cache's key knows neither the user's module nor the files that a recipe names, and a step
that is cheap enough to repeat is not worth a wrong hit.
"""

from kfp import dsl

from components.steps.evaluate import evaluate
from components.steps.export import export
from components.steps.init_model import init_model
from components.steps.prepare_data import prepare_data
from components.steps.train import train
from pipeline.resolve import resolve_recipe


@dsl.pipeline(name="post-training", description="Post-train an agent with an adapter, evaluate it, export it.")
def post_training(recipe: str, overrides: str = "", seed: int = -1, run_root: str = "") -> None:
    """`recipe` is a shipped name, a path or a gs:// URI; `overrides` JSON of paths to values; -1 is the recipe's seed.

    `run_root` is the folder for live files; when empty, one below the first step's output.
    """
    resolved = resolve_recipe(recipe=recipe, overrides=overrides, seed=seed, run_root=run_root)
    shared = {"environment": resolved.outputs["environment"], "seed": resolved.outputs["seed"]}
    run_folder = resolved.outputs["run_folder"]
    prepared = prepare_data(section=resolved.outputs["prepare_data"], **shared)
    tasks = prepared.outputs["tasks"]
    started = init_model(section=resolved.outputs["init_model"], tasks=tasks, **shared)
    base = started.outputs["base"]
    trained = train(
        section=resolved.outputs["train"],
        run_folder=run_folder,
        tasks=tasks,
        base=base,
        adapter=started.outputs["adapter"],
        **shared,
    )
    evaluated = evaluate(
        section=resolved.outputs["evaluate"],
        run_folder=run_folder,
        tasks=tasks,
        base=base,
        trained=trained.outputs["trained"],
        **shared,
    )
    exported = export(
        section=resolved.outputs["export"],
        run_folder=run_folder,
        tasks=tasks,
        base=base,
        trained=trained.outputs["trained"],
    ).after(evaluated)
    for task in (resolved, prepared, started, trained, evaluated, exported):
        task.set_caching_options(False)
    # The engine counts backoff_max_duration from the first attempt's start: its default, an hour, kills a long run.
    trained.set_retry(num_retries=3, backoff_duration="60s", backoff_factor=2, backoff_max_duration="14d")

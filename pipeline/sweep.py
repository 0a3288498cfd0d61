"""For each trial: resolve_recipe -> prepare_data -> init_model -> train -> evaluate; then all of them on one page."""

from kfp import dsl

from pipeline.compare import compare_trials
from pipeline.wiring import evaluated, exit_task, prepared, resolved, trained, uncached

AT_ONCE = 4
"""Trials that run at the same time; machines are the limit, and are not known here."""


@dsl.pipeline(name="sweep")
def sweep(
    recipe: str,
    trials: list,
    model: str = "",
    data: str = "",
    objective: str = "",
    steps: int = -1,
    learning_rate: float = -1.0,
    seed: int = -1,
    accelerator: str = "",
    topology: str = "",
    parent: str = "",
    overrides: str = "",
    run_root: str = "",
) -> None:
    """Train one recipe several times, each with some values replaced, and compare what came out on one page.

    An empty text, or -1, leaves a value to the recipe. Nothing is exported or promoted: start the best one again.

    Args:
        recipe: A shipped recipe's name, a path, or a gs:// URI.
        trials: JSON list of what each trial replaces, such as [{"train.optimizer.learning_rate": 1e-4}, {"seed": 1}].
        model: The base: a Hugging Face folder, a GGUF file, or package:NAME (init_model.source).
        data: A folder or gs:// URI for environments that read data (environment.options.data).
        objective: A preset, such as grpo (train.objective.preset).
        steps: Optimizer steps (train.steps).
        learning_rate: The highest that the schedule reaches (train.optimizer.learning_rate).
        seed: One number that all randomness of the run is made from.
        accelerator: cpu, or a TPU type such as v5e (platform.accelerator).
        topology: How the TPU's chips are wired, such as 2x4 (platform.topology).
        parent: The adapter to start from: a PEFT directory, local or gs://, or latest-promoted.
        overrides: JSON that replaces any other value of the recipe, for all trials.
        run_root: A folder for the live files; when empty, one of its own beside the pipeline's other runs.
    """
    with dsl.ExitHandler(exit_task(run_root), name="sweep"):
        with dsl.ParallelFor(trials, parallelism=AT_ONCE, name="trial") as trial:
            first = resolved(
                recipe=recipe,
                trial=trial,
                stages="train",
                model=model,
                data=data,
                objective=objective,
                steps=steps,
                learning_rate=learning_rate,
                seed=seed,
                accelerator=accelerator,
                topology=topology,
                parent=parent,
                overrides=overrides,
                run_root=run_root,
            )
            tasks, start = prepared(first)
            better = trained(first, tasks, start, start.outputs["adapter"]).outputs["trained"]
            score = evaluated(first, tasks, start, better, start=start.outputs["adapter"])
        compared = compare_trials(
            run_folders=dsl.Collected(first.outputs["run_folder"]), scores=dsl.Collected(score.outputs["metrics"])
        )
        uncached(compared)

"""For each trial: resolve_recipe -> prepare_data -> init_model -> what is learnt -> evaluate; then all on one page.

A pipeline for each of the ways to learn, as for runs: `train`, `tune`, or both.
"""

from typing import Any

from kfp import dsl

from pipeline.compare import compare_trials
from pipeline.wiring import evaluated, exit_task, prepared, resolved, trained, tuned, uncached

AT_ONCE = 4
"""Trials that run at the same time; machines are the limit, and are not known here."""


def _every_trial(stages: tuple[str, ...], trials: Any, run_root: Any, **given: Any) -> None:
    """What all three have in common; they differ in what is learnt, and so in what a person may fill in."""
    with dsl.ExitHandler(exit_task(run_root), name="sweep"):
        with dsl.ParallelFor(trials, parallelism=AT_ONCE, name="trial") as trial:
            first = resolved(trial=trial, stages=",".join(stages), run_root=run_root, **given)
            tasks, start = prepared(first)
            better = start.outputs["adapter"]
            if "tune" in stages:
                better = tuned(first, tasks, start).outputs["tuned"]
            if "train" in stages:
                better = trained(first, tasks, start, better).outputs["trained"]
            score = evaluated(first, tasks, start, better, start=start.outputs["adapter"])
        folders: Any = dsl.Collected(first.outputs["run_folder"])
        uncached(compare_trials(run_folders=folders, scores=dsl.Collected(score.outputs["metrics"])))


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
    _every_trial(
        ("train",),
        trials,
        run_root,
        recipe=recipe,
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
    )


@dsl.pipeline(name="tuned-sweep")
def tuned_sweep(
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
    """Tune and train one recipe several times, each with some values replaced, and compare what came out on one page.

    An empty text, or -1, leaves a value to the recipe. Nothing is exported or promoted: start the best one again.

    Args:
        recipe: A shipped recipe's name, a path, or a gs:// URI.
        trials: JSON list of what each trial replaces, such as [{"tune.optimizer.learning_rate": 1e-4}, {"seed": 1}].
        model: The base: a Hugging Face folder, a GGUF file, or package:NAME (init_model.source).
        data: A folder or gs:// URI for environments that read data (environment.options.data).
        objective: A preset, such as grpo (train.objective.preset).
        steps: Optimizer steps of training (train.steps).
        learning_rate: The highest that the schedule of training reaches (train.optimizer.learning_rate).
        seed: One number that all randomness of the run is made from.
        accelerator: cpu, or a TPU type such as v5e (platform.accelerator).
        topology: How the TPU's chips are wired, such as 2x4 (platform.topology).
        parent: The adapter to start from: a PEFT directory, local or gs://, or latest-promoted.
        overrides: JSON that replaces any other value of the recipe, for all trials.
        run_root: A folder for the live files; when empty, one of its own beside the pipeline's other runs.
    """
    _every_trial(
        (
            "tune",
            "train",
        ),
        trials,
        run_root,
        recipe=recipe,
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
    )


@dsl.pipeline(name="tuning-sweep")
def tuning_sweep(
    recipe: str,
    trials: list,
    model: str = "",
    data: str = "",
    seed: int = -1,
    accelerator: str = "",
    topology: str = "",
    parent: str = "",
    overrides: str = "",
    run_root: str = "",
) -> None:
    """Tune one recipe several times, each with some values replaced, and compare what came out on one page.

    An empty text, or -1, leaves a value to the recipe. Nothing is exported or promoted: start the best one again.

    Args:
        recipe: A shipped recipe's name, a path, or a gs:// URI.
        trials: JSON list of what each trial replaces, such as [{"tune.optimizer.learning_rate": 1e-4}, {"seed": 1}].
        model: The base: a Hugging Face folder, a GGUF file, or package:NAME (init_model.source).
        data: A folder or gs:// URI for environments that read data (environment.options.data).
        seed: One number that all randomness of the run is made from.
        accelerator: cpu, or a TPU type such as v5e (platform.accelerator).
        topology: How the TPU's chips are wired, such as 2x4 (platform.topology).
        parent: The adapter to start from: a PEFT directory, local or gs://, or latest-promoted.
        overrides: JSON that replaces any other value of the recipe, for all trials.
        run_root: A folder for the live files; when empty, one of its own beside the pipeline's other runs.
    """
    _every_trial(
        ("tune",),
        trials,
        run_root,
        recipe=recipe,
        model=model,
        data=data,
        seed=seed,
        accelerator=accelerator,
        topology=topology,
        parent=parent,
        overrides=overrides,
    )

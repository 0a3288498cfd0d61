"""The pipelines of recipes with a `tune` section: it alone, or `train` after it; the rest as in `post_training`."""

from kfp import dsl

from pipeline.wiring import delivered, exit_task, prepared, resolved, trained, tuned


@dsl.pipeline(name="tuned-post-training")
def tuned_post_training(
    recipe: str,
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
    """Tune an adapter on examples, post-train it, evaluate it before and after, and promote it where it is better.

    An empty text, or -1, leaves a value to the recipe. The first step checks everything within seconds.

    Args:
        recipe: A shipped recipe's name, a path, or a gs:// URI; it has the sections tune and train.
        model: The base: a Hugging Face folder, a GGUF file, or package:NAME (init_model.source).
        data: A folder or gs:// URI for environments that read data (environment.options.data); newest:PREFIX is the
            newest folder below PREFIX, and a run that finds none ends early.
        objective: A preset, such as grpo (train.objective.preset).
        steps: Optimizer steps of training (train.steps).
        learning_rate: The highest that the schedule of training reaches (train.optimizer.learning_rate).
        seed: One number that all randomness of the run is made from.
        accelerator: cpu, or a TPU type such as v5e (platform.accelerator).
        topology: How the TPU's chips are wired, such as 2x4 (platform.topology).
        parent: The adapter to start from: a PEFT directory, local or gs://, or latest-promoted.
        overrides: JSON that replaces any other value of the recipe, such as {"tune.epochs": 2}.
        run_root: A folder for this run's live files; when empty, one of its own beside the pipeline's other runs.
    """
    with dsl.ExitHandler(exit_task(run_root), name="run"):
        first = resolved(
            recipe=recipe,
            stages="tune,train",
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
        with dsl.If(first.outputs["proceed"] == "yes", name="there is data"):
            tasks, start = prepared(first)
            warm = tuned(first, tasks, start)
            better = trained(first, tasks, start, warm.outputs["tuned"])
            delivered(first, tasks, start, better.outputs["trained"])


@dsl.pipeline(name="tuning")
def tuning(
    recipe: str,
    model: str = "",
    data: str = "",
    seed: int = -1,
    accelerator: str = "",
    topology: str = "",
    parent: str = "",
    overrides: str = "",
    run_root: str = "",
) -> None:
    """Tune an adapter on examples, evaluate it before and after, and promote it where it is better for certain.

    An empty text, or -1, leaves a value to the recipe. The first step checks everything within seconds.

    Args:
        recipe: A shipped recipe's name, a path, or a gs:// URI; it has the section tune, and no train.
        model: The base: a Hugging Face folder, a GGUF file, or package:NAME (init_model.source).
        data: A folder or gs:// URI for environments that read data (environment.options.data); newest:PREFIX is the
            newest folder below PREFIX, and a run that finds none ends early.
        seed: One number that all randomness of the run is made from.
        accelerator: cpu, or a TPU type such as v5e (platform.accelerator).
        topology: How the TPU's chips are wired, such as 2x4 (platform.topology).
        parent: The adapter to start from: a PEFT directory, local or gs://, or latest-promoted.
        overrides: JSON that replaces any other value of the recipe, such as {"tune.epochs": 2}.
        run_root: A folder for this run's live files; when empty, one of its own beside the pipeline's other runs.
    """
    with dsl.ExitHandler(exit_task(run_root), name="run"):
        first = resolved(
            recipe=recipe,
            stages="tune",
            model=model,
            data=data,
            seed=seed,
            accelerator=accelerator,
            topology=topology,
            parent=parent,
            overrides=overrides,
            run_root=run_root,
        )
        with dsl.If(first.outputs["proceed"] == "yes", name="there is data"):
            tasks, start = prepared(first)
            better = tuned(first, tasks, start)
            delivered(first, tasks, start, better.outputs["tuned"])

"""resolve_recipe -> prepare_data -> init_model -> train -> evaluate -> gate -> export -> promote, then finish_run."""

from kfp import dsl

from pipeline.wiring import delivered, exit_task, prepared, resolved, trained


@dsl.pipeline(name="post-training")
def post_training(
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
    """Post-train an agent with an adapter, evaluate it before and after, and promote it where it is better for certain.

    An empty text, or -1, leaves a value to the recipe. The first step checks everything within seconds.

    Args:
        recipe: A shipped recipe's name, a path, or a gs:// URI.
        model: The base: a Hugging Face folder, a GGUF file, or package:NAME (init_model.source).
        data: A folder or gs:// URI for environments that read data (environment.options.data); newest:PREFIX is the
            newest folder below PREFIX, and a run that finds none ends early.
        objective: A preset, such as grpo (train.objective.preset).
        steps: Optimizer steps (train.steps).
        learning_rate: The highest that the schedule reaches (train.optimizer.learning_rate).
        seed: One number that all randomness of the run is made from.
        accelerator: cpu, or a TPU type such as v5e (platform.accelerator).
        topology: How the TPU's chips are wired, such as 2x4 (platform.topology).
        parent: The adapter to start from: a PEFT directory, local or gs://, or latest-promoted.
        overrides: JSON that replaces any other value of the recipe, such as {"train.rollout.group_size": 16}.
        run_root: A folder for this run's live files; when empty, one of its own beside the pipeline's other runs.
    """
    with dsl.ExitHandler(exit_task(run_root), name="run"):
        first = resolved(
            recipe=recipe,
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
        with dsl.If(first.outputs["proceed"] == "yes", name="there is data"):
            tasks, start = prepared(first)
            better = trained(first, tasks, start, start.outputs["adapter"])
            delivered(first, tasks, start, better.outputs["trained"])

"""resolve_recipe -> prepare_data -> init_model -> evaluate: an adapter against its base, without training."""

from kfp import dsl

from pipeline.wiring import evaluated, exit_task, prepared, resolved


@dsl.pipeline(name="evaluation")
def evaluation(
    recipe: str,
    adapter: str,
    model: str = "",
    data: str = "",
    tasks: int = -1,
    seed: int = -1,
    overrides: str = "",
    run_root: str = "",
) -> None:
    """Score an adapter against its base, side by side on the same unseen tasks, with intervals.

    An empty text, or -1, leaves a value to the recipe.

    Args:
        recipe: A shipped recipe's name, a path, or a gs:// URI; its environment and its section evaluate count.
        adapter: A PEFT directory, local or gs://, or latest-promoted.
        model: The base: a Hugging Face folder, a GGUF file, or package:NAME (init_model.source).
        data: A folder or gs:// URI for environments that read data (environment.options.data).
        tasks: How many of the test tasks are scored (evaluate.tasks).
        seed: One number that all randomness of the run is made from.
        overrides: JSON that replaces any other value of the recipe, such as {"evaluate.samples": 8}.
        run_root: A folder for this run's live files; when empty, one of its own beside the pipeline's other runs.
    """
    with dsl.ExitHandler(exit_task(run_root), name="run"):
        first = resolved(
            recipe=recipe,
            model=model,
            data=data,
            tasks=tasks,
            seed=seed,
            parent=adapter,
            parent_is_needed=True,
            overrides=overrides,
            run_root=run_root,
        )
        problems, start = prepared(first)
        evaluated(first, problems, start, start.outputs["adapter"])

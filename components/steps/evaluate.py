"""Door: an adapter before and after training -> scores with intervals, all scalars of the run, and its page."""

from kfp import dsl

from components.steps.image import RUNTIME_IMAGE


@dsl.component(base_image=RUNTIME_IMAGE, install_kfp_package=False)
def evaluate(
    section: str,
    environment: str,
    seed: int,
    run_folder: str,
    tasks: dsl.Input[dsl.Dataset],
    base: dsl.Input[dsl.Model],
    trained: dsl.Input[dsl.Model],
    metrics: dsl.Output[dsl.Metrics],
    tool_use: dsl.Output[dsl.ClassificationMetrics],
    report: dsl.Output[dsl.HTML],
    start: dsl.Input[dsl.Model] = None,
) -> None:
    """Score unseen tasks before and after: `start` (the bare base, where there is none) against `trained`."""
    from components.evaluation.run import evaluate

    found = evaluate(
        section=section,
        environment=environment,
        seed=seed,
        run_folder=run_folder,
        tasks=tasks.path,
        base=base.path,
        start=start.path if start else "",
        trained=trained.path,
        report=report.path,
    )
    metrics.metadata.update(found.scalars)
    tool_use.log_confusion_matrix(found.categories, found.tool_use)

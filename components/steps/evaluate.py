"""Door: the base and the trained adapter -> scores with intervals, all scalars of the run, and its page."""

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
    report: dsl.Output[dsl.HTML],
) -> None:
    """Score the base against the trained policy on unseen tasks."""
    from components.evaluation.run import evaluate

    metrics.metadata.update(
        evaluate(
            section=section,
            environment=environment,
            seed=seed,
            run_folder=run_folder,
            tasks=tasks.path,
            base=base.path,
            trained=trained.path,
            report=report.path,
        )
    )

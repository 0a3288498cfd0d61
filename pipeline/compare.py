"""Door: the trials of a sweep -> one page that puts them side by side, and the numbers of the best."""

from kfp import dsl

from components.steps.image import RUNTIME_IMAGE


@dsl.component(base_image=RUNTIME_IMAGE, install_kfp_package=False)
def compare_trials(
    run_folders: list,
    scores: dsl.Input[list[dsl.Metrics]],
    metrics: dsl.Output[dsl.Metrics],
    page: dsl.Output[dsl.HTML],
) -> None:
    """Compare what the trials replaced, and what came of it."""
    from pipeline.trials import compare_trials

    metrics.metadata.update(
        compare_trials(run_folders=run_folders, scores=[score.metadata for score in scores], page=page.path)
    )

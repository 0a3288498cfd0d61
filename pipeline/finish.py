"""Door, and the exit handler of every pipeline: a run, however it ended -> nothing that still runs, and a summary."""

from kfp import dsl

from components.steps.image import RUNTIME_IMAGE


@dsl.component(base_image=RUNTIME_IMAGE, install_kfp_package=False)
def finish_run(
    run_root: str,
    run_id: str,
    status: dsl.PipelineTaskFinalStatus,
    manifest: dsl.Output[dsl.Artifact],
    summary: dsl.Output[dsl.Markdown],
) -> None:
    """Stop what may still run outside, and write the whole manifest and a summary for people."""
    from pipeline.finishing import finish

    finish(
        run_root=run_root,
        run_id=run_id,
        error=status.error_message or "",
        manifest=manifest.path,
        manifest_uri=manifest.uri,
        summary=summary.path,
    )

"""Door: a trained adapter and its base -> files that others load, with the proof that they do."""

from kfp import dsl

from components.steps.image import RUNTIME_IMAGE


@dsl.component(base_image=RUNTIME_IMAGE, install_kfp_package=False)
def export(
    section: str,
    run_folder: str,
    tasks: dsl.Input[dsl.Dataset],
    base: dsl.Input[dsl.Model],
    trained: dsl.Input[dsl.Model],
    adapter: dsl.Output[dsl.Model],
    merged: dsl.Output[dsl.Model],
) -> None:
    """Write a PEFT directory and merged safetensors, and load both back."""
    from components.export.run import export

    adapter.metadata.update(
        export(
            section=section,
            run_folder=run_folder,
            tasks=tasks.path,
            base=base.path,
            trained=trained.path,
            adapter=adapter.path,
            merged=merged.path,
        )
    )
    merged.metadata.update(adapter.metadata)

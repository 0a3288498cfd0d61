"""Door: a checkpoint, or nothing -> a frozen base and the adapter that training starts from."""

from kfp import dsl

from components.steps.image import RUNTIME_IMAGE


@dsl.component(base_image=RUNTIME_IMAGE, install_kfp_package=False)
def init_model(
    section: str,
    environment: str,
    seed: int,
    run_folder: str,
    tasks: dsl.Input[dsl.Dataset],
    base: dsl.Output[dsl.Model],
    adapter: dsl.Output[dsl.Model],
) -> None:
    """Find or make the base, and make or fetch the adapter that training starts from."""
    from components.steps.work import init_model

    base.metadata.update(
        init_model(
            section=section,
            environment=environment,
            seed=seed,
            run_folder=run_folder,
            tasks=tasks.path,
            base=base.path,
            adapter=adapter.path,
        )
    )

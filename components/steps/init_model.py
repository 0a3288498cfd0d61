"""Door: a checkpoint, or nothing -> a frozen base and a fresh adapter on it."""

from kfp import dsl

from components.steps.image import RUNTIME_IMAGE


@dsl.component(base_image=RUNTIME_IMAGE, install_kfp_package=False)
def init_model(
    section: str,
    environment: str,
    seed: int,
    tasks: dsl.Input[dsl.Dataset],
    base: dsl.Output[dsl.Model],
    adapter: dsl.Output[dsl.Model],
) -> None:
    """Find or make the base, and make the adapter that training starts from."""
    from components.training.initialise import initialise

    base.metadata.update(
        initialise(
            section=section,
            environment=environment,
            seed=seed,
            tasks=tasks.path,
            base=base.path,
            adapter=adapter.path,
        )
    )

"""Door: tasks, a base and an adapter -> a better adapter."""

from kfp import dsl

from components.steps.image import RUNTIME_IMAGE


@dsl.component(base_image=RUNTIME_IMAGE, install_kfp_package=False)
def train(
    section: str,
    environment: str,
    seed: int,
    run_folder: str,
    tasks: dsl.Input[dsl.Dataset],
    base: dsl.Input[dsl.Model],
    adapter: dsl.Input[dsl.Model],
    trained: dsl.Output[dsl.Model],
) -> None:
    """Post-train the adapter; metrics and checkpoints appear in the run folder while it goes on."""
    from components.training.run import train

    train(
        section=section,
        environment=environment,
        seed=seed,
        run_folder=run_folder,
        tasks=tasks.path,
        base=base.path,
        adapter=adapter.path,
        trained=trained.path,
    )

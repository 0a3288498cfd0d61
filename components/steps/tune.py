"""Door: examples, a base and an adapter -> an adapter tuned on them, before training or in place of it."""

from kfp import dsl

from components.steps.image import RUNTIME_IMAGE


@dsl.component(base_image=RUNTIME_IMAGE, install_kfp_package=False)
def tune(
    section: str,
    environment: str,
    seed: int,
    run_folder: str,
    tasks: dsl.Input[dsl.Dataset],
    base: dsl.Input[dsl.Model],
    adapter: dsl.Input[dsl.Model],
    tuned: dsl.Output[dsl.Model],
) -> None:
    """Tune the adapter; numbers and checkpoints appear in the run folder while it goes on."""
    from components.training.tuning.run import tune

    tune(
        section=section,
        environment=environment,
        seed=seed,
        run_folder=run_folder,
        tasks=tasks.path,
        base=base.path,
        adapter=adapter.path,
        tuned=tuned.path,
    )

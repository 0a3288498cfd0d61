"""Door: examples, a base and an adapter -> an adapter tuned on them, in this pod or by a JobSet that it starts."""

from kfp import dsl

from components.steps.image import RUNTIME_IMAGE


@dsl.component(base_image=RUNTIME_IMAGE, install_kfp_package=False)
def tune(
    section: str,
    environment: str,
    platform: str,
    seed: int,
    run_folder: str,
    job_owner: str,
    tasks: dsl.Input[dsl.Dataset],
    base: dsl.Input[dsl.Model],
    adapter: dsl.Input[dsl.Model],
    tuned: dsl.Output[dsl.Model],
) -> None:
    """Tune the adapter; numbers and checkpoints appear in the run folder while it goes on."""
    from components.steps.work import tune

    tune(
        section=section,
        environment=environment,
        platform=platform,
        seed=seed,
        run_folder=run_folder,
        job_owner=job_owner,
        tasks=tasks,
        base=base,
        adapter=adapter,
        tuned=tuned,
    )

"""Door: an environment's problems -> a folder of tasks."""

from kfp import dsl

from components.steps.image import RUNTIME_IMAGE


@dsl.component(base_image=RUNTIME_IMAGE, install_kfp_package=False)
def prepare_data(section: str, environment: str, seed: int, run_folder: str, tasks: dsl.Output[dsl.Dataset]) -> None:
    """Write the tasks of training and evaluation, checked and counted."""
    from components.steps.work import prepare_data

    tasks.metadata.update(
        prepare_data(section=section, environment=environment, seed=seed, run_folder=run_folder, folder=tasks.path)
    )

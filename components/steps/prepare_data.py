"""Door: an environment's problems -> a folder of tasks."""

from kfp import dsl

from components.steps.image import RUNTIME_IMAGE


@dsl.component(base_image=RUNTIME_IMAGE, install_kfp_package=False)
def prepare_data(section: str, environment: str, seed: int, tasks: dsl.Output[dsl.Dataset]) -> None:
    """Write the tasks of training and evaluation, checked and counted."""
    from components.rollout.prepare import write_tasks

    tasks.metadata.update(write_tasks(section=section, environment=environment, seed=seed, folder=tasks.path))

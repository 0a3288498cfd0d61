"""What the doors call: the work of a step, and a record of it in the run's folder, which the manifest is made from."""

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

from components.config import from_json
from components.export.promotion import fingerprint_of
from components.launcher.platform import PlatformConfig
from components.rollout.prepare import write_tasks
from components.telemetry.failure import notes_failure
from components.telemetry.run_files import update_summary


@runtime_checkable
class Artifact(Protocol):
    """An artifact as a door has it: where it is in this pod, and where everybody finds it."""

    path: str
    uri: str


@notes_failure("prepare-data")
def prepare_data(*, section: str, environment: str, seed: int, run_folder: str, folder: str) -> dict[str, Any]:
    """Write the tasks; gives and records their numbers and the hash of their content."""
    facts = write_tasks(section=section, environment=environment, seed=seed, folder=folder)
    update_summary(run_folder, {"data": facts})
    return facts


@notes_failure("init-model")
def init_model(
    *, section: str, environment: str, seed: int, run_folder: str, tasks: str, base: str, adapter: str
) -> dict[str, Any]:
    """Make base and adapter; gives and records what they are."""
    from components.training.initialise import initialise  # with it comes jax

    facts = initialise(section=section, environment=environment, seed=seed, tasks=tasks, base=base, adapter=adapter) | {
        "adapter_fingerprint": fingerprint_of(adapter)
    }
    update_summary(run_folder, {"base": facts})
    return facts


def tune(*, platform: str, job_owner: str, tuned: Artifact, **given: Any) -> None:
    """Tune where the platform says; `given` is as `train` takes it."""
    if not _launched("tune", platform, job_owner, given, {"tuned": tuned}):
        from components.training.tuning.run import tune as tune_here  # with it comes jax

        tune_here(**_here(given), tuned=tuned.path)


def train(*, platform: str, job_owner: str, trained: Artifact, **given: Any) -> None:
    """Train in this pod, or in those of a JobSet, which read and write the artifacts where everybody finds them.

    `given` are section, environment, seed and run_folder, and the artifacts tasks, base and adapter.
    """
    if not _launched("train", platform, job_owner, given, {"trained": trained}):
        from components.training.run import train as train_here  # with it comes jax

        train_here(**_here(given), trained=trained.path)


def _launched(
    task: str, platform: str, job_owner: str, given: Mapping[str, Any], outputs: Mapping[str, Artifact]
) -> bool:
    """Whether the platform has the task done by a JobSet; then it has been."""
    if from_json(PlatformConfig, platform, where="platform").launcher == "in_pod":
        return False
    from components.launcher.step_job import launch  # with it comes the Kubernetes client

    inputs = {name: value.uri for name, value in given.items() if isinstance(value, Artifact)}
    settings = {name: value for name, value in given.items() if name not in inputs}
    places = {name: output.uri for name, output in outputs.items()}
    launch(task, platform=platform, run=job_owner, **settings, inputs=inputs, outputs=places)
    return True


def _here(given: Mapping[str, Any]) -> dict[str, Any]:
    """Each artifact as its path in this pod."""
    return {name: value.path if isinstance(value, Artifact) else value for name, value in given.items()}

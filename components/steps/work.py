"""What the doors call: the work of a step, and a record of it in the run's folder, which the manifest is made from."""

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


def train(
    *,
    section: str,
    environment: str,
    platform: str,
    seed: int,
    run_folder: str,
    job_owner: str,
    tasks: Artifact,
    base: Artifact,
    adapter: Artifact,
    trained: Artifact,
) -> None:
    """Train in this pod, or in those of a JobSet, which read and write the artifacts where everybody finds them."""
    where = from_json(PlatformConfig, platform, where="platform")
    given: dict[str, Any] = {"section": section, "environment": environment, "seed": seed, "run_folder": run_folder}
    artifacts = {"tasks": tasks, "base": base, "adapter": adapter, "trained": trained}
    if where.launcher == "jobset":
        from components.launcher.train_job import launch_train  # with it comes the Kubernetes client

        given |= {name: artifact.uri for name, artifact in artifacts.items()}
        launch_train(platform=platform, run=job_owner, **given)
    else:
        from components.training.run import train as train_here  # with it comes jax

        given |= {name: artifact.path for name, artifact in artifacts.items()}
        train_here(**given)

"""A run on a server -> it has stopped, and so has the JobSet that it started, which the server knows nothing of."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from components.errors import ClusterError, ConfigError
from components.launcher.jobset import delete_job
from pipeline import manifest as manifests
from pipeline.cluster import ENDED, UNREADABLE, find_run, run_folders
from pipeline.connection import Client, Connection, server_errors
from pipeline.finishing import TASKS
from pipeline.start import TRIALS, job_owner

STOP_SECONDS = 180.0
"""How long the server may take to stop a run before its jobs are deleted anyway."""

_LOOK_SECONDS = 3.0
_USUAL_NAMESPACE = "kubeflow"
"""Where an installation for one user runs its steps."""


@dataclass(frozen=True, slots=True)
class Cancelled:
    """The run's last state, what was deleted, and what could not be found out."""

    state: str
    jobs: tuple[str, ...]
    note: str = ""


def cancel(
    client: Client, connection: Connection, run_id: str, *, sleep: Callable[[float], None] = time.sleep
) -> Cancelled:
    """Stop a run, then delete its JobSets: a launcher that still lives would make them again.

    For a run that has ended only what is left of it is deleted. Raises ServerError, and ClusterError where Kubernetes
    refuses.
    """
    run = find_run(client, connection, run_id)
    if run.state not in (*ENDED, "CANCELING"):
        with server_errors(connection, f"the run {run_id}"):
            client.terminate_run(run_id)
    waited = 0.0
    while (run := find_run(client, connection, run_id)).state not in ENDED and waited < STOP_SECONDS:
        waited += _LOOK_SECONDS
        sleep(_LOOK_SECONDS)
    try:
        found = {folder: manifests.read(folder) for folder in run_folders(client, connection, run)}
    except UNREADABLE:
        found = {}
    if not found:
        return _without_manifest(connection, run_id, run.state)
    deleted = []
    for folder, manifest in found.items():
        platform = manifest["exact"]["platform"]
        owner = job_owner(run_id, folder.partition(f"/{TRIALS}/")[2])
        namespace = platform["namespace"] or connection.namespace or _USUAL_NAMESPACE
        if platform["launcher"] == "jobset" and _delete_jobs(owner, namespace):
            deleted.append(owner)
    return Cancelled(run.state, tuple(deleted))


def _without_manifest(connection: Connection, run_id: str, state: str) -> Cancelled:
    """Whether the run has a JobSet is not known: ask, where there is a cluster to ask."""
    namespace = connection.namespace or _USUAL_NAMESPACE
    try:
        deleted = _delete_jobs(run_id, namespace)
    except (ConfigError, ClusterError) as error:
        said = " ".join(str(error).split())
        return Cancelled(state, (), f"whether it has left a JobSet in {namespace} could not be found out: {said}")
    return Cancelled(state, (run_id,) if deleted else ())


def _delete_jobs(owner: str, namespace: str) -> bool:
    """Whether there was any. Both steps are asked for, as a run may have been stopped between them."""
    deleted = [delete_job(owner, task, namespace=namespace) for task in TASKS]
    return any(deleted)

"""A run on a server -> lines as its tasks change and its training goes on, until it ends in whatever way.

The server tells the states of tasks; a pod that waits for a machine is "running" to it. So what the run itself writes
into its folder is told, too, where that folder can be read from here.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime

import kfp_server_api

from components import storage
from components.telemetry import formatting
from components.telemetry.metrics import read_metrics
from components.telemetry.run_files import METRICS
from pipeline.cluster import ENDED, UNREADABLE, find_run, run_folders
from pipeline.connection import Client, Connection, ServerError, server_errors

PATIENCE_SECONDS = 600.0
"""How long the server may be away before the watch gives up; the run goes on without it."""

_PASSING = frozenset({0, 429, 500, 502, 503, 504})


def watch(
    client: Client,
    connection: Connection,
    run_id: str,
    *,
    show: Callable[[str], None],
    every: float = 10.0,
    sleep: Callable[[float], None] = time.sleep,
) -> kfp_server_api.V2beta1Run:
    """Follow a run to its end and give its last state; kfp's own wait does not notice that a run was cancelled.

    Looks every so many seconds. A server that is away for a while is waited for. Raises ServerError.
    """
    followed = _Followed(client, connection, run_id, show)
    away = 0.0
    while True:
        try:
            run = followed.look()
            away = 0.0
            if run.state in ENDED:
                return run
        except ServerError as error:
            if error.status not in _PASSING or away >= PATIENCE_SECONDS or not followed.state:
                raise
            if not away:
                show(f"the server is away; the run goes on without it: {error}")
            away += every
        sleep(every)


@dataclass
class _Followed:
    """A run, and what has been said of it, so that it is said once."""

    client: Client
    connection: Connection
    run_id: str
    show: Callable[[str], None]
    state: str = ""
    names: frozenset[str] = frozenset()
    tasks: dict[str, str] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    steps: dict[str, int] = field(default_factory=dict)
    unreadable: bool = False

    def look(self) -> kfp_server_api.V2beta1Run:
        """Ask the server and the run's folders, and tell what is new."""
        run = find_run(self.client, self.connection, self.run_id)
        self.names = self.names or task_names(self.client, self.connection, run)
        if run.state != self.state and run.state not in ENDED:
            self.show(f"{run.display_name}: {str(run.state or 'pending').lower()}")
        self.state = run.state or "PENDING"
        for name, task in task_states(run, self.names).items():
            if self.tasks.get(name) != task.state:
                self.tasks[name] = task.state
                self.show(_task_text(name, task))
        if not self.unreadable:
            self._tell_steps(run)
        return run

    def _tell_steps(self, run: kfp_server_api.V2beta1Run) -> None:
        """The newest optimizer step of each of the run's folders, where they can be read from here."""
        try:
            for folder in run_folders(self.client, self.connection, run):
                self._tell_step(folder)
        except UNREADABLE as error:
            self.unreadable = True
            said = " ".join(str(error).split())
            self.show(f"  the run's folder cannot be read from here, so its steps are not told: {said}")

    def _tell_step(self, folder: str) -> None:
        uri = storage.join(folder, METRICS)
        size = storage.size(uri) if storage.exists(uri) else 0
        if size == self.sizes.get(folder, 0):
            return
        self.sizes[folder] = size
        lines = read_metrics(uri)
        if lines and lines[-1]["step"] != self.steps.get(folder):
            self.steps[folder] = lines[-1]["step"]
            reward = formatting.number(lines[-1].get("reward_mean"))
            self.show(f"  step {lines[-1]['step']}: reward {reward}".replace("\u202f", " "))


def end_text(run: kfp_server_api.V2beta1Run) -> str:
    """How a run ended, in one line, with what the server says of its error."""
    text = f"{run.display_name}: {str(run.state).lower()} after {_duration(run.created_at, run.finished_at)}"
    return f"{text}; {run.error.message}" if run.error and run.error.message else text


def task_names(client: Client, connection: Connection, run: kfp_server_api.V2beta1Run) -> frozenset[str]:
    """The tasks that the run's pipeline has. The server lists them among drivers, pods and retries of its engine."""
    spec, reference = run.pipeline_spec, run.pipeline_version_reference
    if spec is None and reference is not None:
        with server_errors(connection, f"the pipeline of the run {run.run_id}"):
            spec = client.get_pipeline_version(reference.pipeline_id, reference.pipeline_version_id).pipeline_spec
    spec = (spec or {}).get("pipeline_spec", spec or {})
    parts = [spec.get("root", {}), *spec.get("components", {}).values()]
    return frozenset(name for part in parts for name in part.get("dag", {}).get("tasks", {}))


def task_states(
    run: kfp_server_api.V2beta1Run, names: frozenset[str]
) -> dict[str, kfp_server_api.V2beta1PipelineTaskDetail]:
    """The tasks of a run by name, in the order in which they began; of a name that comes again, with a number."""
    details = (run.run_details.task_details if run.run_details else None) or []
    known = sorted((each for each in details if each.state and each.display_name in names), key=_began)
    found: dict[str, kfp_server_api.V2beta1PipelineTaskDetail] = {}
    for task in known:
        number = 1 + sum(each.display_name == task.display_name for each in found.values())
        found[f"{task.display_name} {number}" if number > 1 else task.display_name] = task
    return found


def _task_text(name: str, task: kfp_server_api.V2beta1PipelineTaskDetail) -> str:
    text = f"  {name}: {task.state.lower()}"
    if task.state in ENDED and task.state != "SKIPPED":
        text += f", {_duration(task.start_time, task.end_time)}"
    return f"{text}: {task.error.message}" if task.error and task.error.message else text


def _began(task: kfp_server_api.V2beta1PipelineTaskDetail) -> tuple[float, str]:
    moment = task.start_time or task.create_time
    return (moment.timestamp() if moment else 0.0, task.task_id or "")


def _duration(start: datetime | None, end: datetime | None) -> str:
    """How long; a time that the server does not know is one of long ago to it."""
    if start is None or end is None or start.year < 2000 or end.year < 2000:
        return "an unknown time"
    return formatting.seconds((end - start).total_seconds())

"""What a step that learns takes, by URI -> its adapter and the run's figures, made by the pods of a JobSet.

The step of Kubeflow stays small: it writes one document below the run's folder, starts pods that read it, and reads the
one that they leave.

    RUN/jobs/NAME/request-HASH.json   what to learn, and from which URIs; HASH is that of its text
    RUN/jobs/NAME/result-HASH.json    {"summary": what the step's own function gives}, written last
    RUN/jobs/NAME/failure.txt         why the last attempt failed
    RUN/jobs/NAME/watched             changes as long as a launcher watches

A step that is tried again finds the result of the same request, or else the JobSet, and never trains twice.
"""

import hashlib
import json
import sys
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from components import storage
from components.config import from_json
from components.errors import ClusterError, ConfigError, Problem
from components.launcher.cluster import Cluster
from components.launcher.job import JobPlan, job_name
from components.launcher.jobset import USUAL_PACE, JobOutcome, Pace, run_job
from components.launcher.platform import PlatformConfig
from components.launcher.preflight import preflight
from components.launcher.watching import JobGoneError
from components.telemetry.progress import say
from components.telemetry.run_files import METRICS, TUNING, update_summary

JOURNAL = "journal.jsonl"
"""As `components.training.journal` names it."""
SIGNS = {"tune": (TUNING,), "train": (METRICS, JOURNAL)}
"""The steps that may run in a JobSet, and the files of the run's folder that they let grow, first the one by steps."""
WORKER = ("python", "-m", "components.launcher.worker")


def launch(
    task: str,
    *,
    platform: str,
    run: str,
    section: str,
    environment: str,
    seed: int,
    run_folder: str,
    inputs: Mapping[str, str],
    outputs: Mapping[str, str],
    cluster: Cluster | None = None,
    pace: Pace = USUAL_PACE,
) -> dict[str, Any]:
    """Do a task ("tune" or "train") in a JobSet, as the function of that name does here, and give what it gives.

    `platform`, `section` and `environment` are sections as JSON text, and `run` is Kubeflow's id of the run, by which
    `delete_job` finds the job. `run_folder`, the inputs and the outputs are gs:// URIs, which the pods read and write
    themselves; their keys are the names of the function's arguments.

    Raises ConfigError before anything is created, and ClusterError as `run_job` does.
    """
    settings = from_json(PlatformConfig, platform, where="platform")
    request = {
        "task": task,
        "section": section,
        "environment": environment,
        "seed": seed,
        "run_folder": run_folder,
        "inputs": dict(inputs),
        "outputs": dict(outputs),
        "hosts": settings.hosts,
    }
    _check_places(request)
    files = JobFiles(run_folder, job_name(run, task), request)
    found = files.read_result()
    if found is not None:
        say("this very job has ended before: its result is taken")
        return found
    chosen = cluster or Cluster(settings.namespace)
    plan = _plan(task, settings, run, files, _grace_seconds(task, section), run_folder)
    preflight(plan, chosen)
    files.write_request()
    outcome = _run(plan, chosen, files, pace)
    found = files.read_result()
    if found is None:
        raise ClusterError(f"the pods of JobSet {plan.name} have ended and left no {files.result}; see their logs")
    if outcome is not None:
        update_summary(run_folder, {f"{task}_job": asdict(outcome)})
    return found


class JobFiles:
    """The files by which a launcher and its pods speak to each other."""

    def __init__(self, run_folder: str, name: str, request: Mapping[str, Any]) -> None:
        self.text = json.dumps(request, sort_keys=True)
        digest = hashlib.sha256(self.text.encode()).hexdigest()
        folder = storage.join(run_folder, "jobs", name)
        self.request = storage.join(folder, f"request-{digest[:16]}.json")
        self.result = storage.join(folder, f"result-{digest[:16]}.json")
        self.failure = storage.join(folder, "failure.txt")
        self.watched = storage.join(folder, "watched")

    def write_request(self) -> None:
        """Write it; the reason of an earlier failure is gone then."""
        storage.delete(self.failure)
        storage.write_text(self.request, self.text)

    def read_result(self) -> dict[str, Any] | None:
        """What the pods have left; None while they have not."""
        try:
            return json.loads(storage.read_text(self.result))["summary"]
        except FileNotFoundError:
            return None

    def has_result(self) -> bool:
        """Whether the pods have left it."""
        return self.read_result() is not None

    @property
    def command(self) -> tuple[str, ...]:
        """What each pod runs."""
        places = {"request": self.request, "result": self.result, "failure": self.failure, "watched": self.watched}
        return (*WORKER, *(f"--{name}={place}" for name, place in places.items()))


def show(line: str) -> None:
    """A line of the job's log, as this process's own output."""
    print(line, file=sys.stdout, flush=True)


def _run(plan: JobPlan, cluster: Cluster, files: JobFiles, pace: Pace) -> JobOutcome | None:
    try:
        return run_job(plan, cluster, show=show, watched=files.watched, has_result=files.has_result, pace=pace)
    except JobGoneError:
        # Another launcher of the same step may have seen the end first.
        if files.read_result() is None:
            raise
        return None


def _plan(
    task: str, settings: PlatformConfig, run: str, files: JobFiles, grace_seconds: float, run_folder: str
) -> JobPlan:
    return JobPlan(
        run=run,
        task=task,
        command=files.command,
        platform=settings,
        environment={"PYTHONUNBUFFERED": "1"},
        grace_seconds=grace_seconds,
        signs=tuple(storage.join(run_folder, name) for name in SIGNS[task]),
        failure=files.failure,
    )


def _grace_seconds(task: str, section: str) -> float:
    try:
        return float(json.loads(section)["grace_seconds"])
    except (ValueError, KeyError, TypeError):
        message = "must be the whole section as JSON, with grace_seconds"
        raise ConfigError(Problem(task, section, message)) from None


def _check_places(request: Mapping[str, Any]) -> None:
    places = {"run_folder": request["run_folder"], **request["outputs"], **request["inputs"]}
    problems = [
        Problem(name, place, "is on this machine's disk, which the pods of a JobSet do not see; use gs://")
        for name, place in places.items()
        if not storage.is_remote(place)
    ]
    if problems:
        raise ConfigError(problems)

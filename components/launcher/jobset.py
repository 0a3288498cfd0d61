"""A plan of a job -> the job has run to its end, or an error that says why not.

The launcher is expendable. It keeps nothing that matters: killed at any moment, the next one finds the JobSet by its
name and goes on watching. It deletes the JobSet when the job is over, well or badly, and not when it is stopped itself;
for that there is `delete_job`.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from components.errors import ClusterError
from components.launcher import reading
from components.launcher.cluster import Cluster
from components.launcher.job import PLAN, RUN, JobPlan, job_name, job_set
from components.launcher.mirror import Mirror
from components.launcher.pulse import PULSE_SECONDS, SignsOfLife, Watched
from components.launcher.watching import JobFailedError, JobWatch
from components.telemetry.progress import say

LOOK_SECONDS = 1.0
GONE_SECONDS = 600.0
"""How long a JobSet that is being deleted may take to be gone."""


@dataclass(frozen=True, slots=True)
class JobOutcome:
    """What a job that ran to its end has been through."""

    restarts: reading.Restarts
    attached: bool
    seconds: float


@dataclass(frozen=True, slots=True)
class Pace:
    """Seconds between looks: at the pods, and at the signs of life; and between two lines that say the same."""

    look: float = LOOK_SECONDS
    pulse: float = PULSE_SECONDS
    repeat: float = 300.0


USUAL_PACE = Pace()


def run_job(
    plan: JobPlan,
    cluster: Cluster,
    *,
    show: Callable[[str], None],
    watched: str = "",
    has_result: Callable[[], bool] = lambda: False,
    pace: Pace = USUAL_PACE,
) -> JobOutcome:
    """Create the JobSet of a plan, or find it, and see it through. The log of worker 0 goes to `show`, line by line.

    `watched` is a file that changes as long as this goes on. `has_result` says whether a job that is found completed
    has left what it was for. Raises ClusterError: where the JobSet of this name was made from another plan, where the
    job failed for good, could not start or gave no sign of life (it is deleted then), or where the cluster cannot be
    reached (it is left alone).
    """
    began = time.monotonic()
    beat = Watched(watched) if watched else None
    if beat is not None:
        beat.beat()
    body = job_set(plan, cluster.namespace)
    found, attached = attach(body, cluster, has_result)
    try:
        restarts = _see_through(plan, found, cluster, show=show, beat=beat, pace=pace, attached=attached)
    except JobFailedError:
        cluster.delete_job_set(plan.name, reading.uid_of(found))
        raise
    cluster.delete_job_set(plan.name, reading.uid_of(found))
    return JobOutcome(restarts, attached, time.monotonic() - began)


def delete_job(run: str, task: str, *, namespace: str = "", cluster: Cluster | None = None) -> bool:
    """End the job of a run's task: its JobSet and its pods go, after the pods' grace. False where there is none."""
    chosen = cluster or Cluster(namespace)
    found = chosen.read_job_set(job_name(run, task))
    return found is not None and chosen.delete_job_set(reading.name_of(found), reading.uid_of(found))


def attach(body: dict[str, Any], cluster: Cluster, has_result: Callable[[], bool]) -> tuple[dict[str, Any], bool]:
    """The JobSet that `body` describes, and whether it was there already. One that is over without result is replaced.

    Raises ClusterError where one of that name was made from another plan.
    """
    name, deadline = reading.name_of(body), time.monotonic() + GONE_SECONDS
    while True:
        made = cluster.create_job_set(body)
        if made is not None:
            say(f"JobSet {name} created in namespace {cluster.namespace}")
            return made, False
        found = cluster.read_job_set(name)
        if found is None:
            continue  # deleted between the two requests
        if reading.is_going(found):
            if time.monotonic() > deadline:
                raise ClusterError(f"JobSet {name} is being deleted, and not gone after {GONE_SECONDS:g} s; look at it")
            time.sleep(LOOK_SECONDS)
            continue
        _refuse_another_plan(found, body)
        if reading.ended(found) and not has_result():
            say(f"JobSet {name} has {reading.ended(found)} and left no result: it is deleted, and made anew")
            cluster.delete_job_set(name, reading.uid_of(found))
            continue
        counts = reading.restarts(found)
        say(f"JobSet {name} is there already, with {counts.all} restarts: watching it again")
        return found, True


def _refuse_another_plan(found: dict[str, Any], body: dict[str, Any]) -> None:
    annotations = found["metadata"].get("annotations", {})
    if annotations.get(PLAN) != body["metadata"]["annotations"][PLAN]:
        raise ClusterError(
            f"JobSet {reading.name_of(found)} of run {annotations.get(RUN, 'unknown')} was made from another plan "
            "(image, platform, settings or inputs differ). Cancel it first, or give this run a name of its own"
        )


def _see_through(
    plan: JobPlan,
    found: dict[str, Any],
    cluster: Cluster,
    *,
    show: Callable[[str], None],
    beat: Watched | None,
    pace: Pace,
    attached: bool,
) -> reading.Restarts:
    changed = threading.Event()
    mirrors = {
        "jobsets": Mirror(
            "watch jobsets", lambda **options: cluster.list_job_sets(plan.name, **options), cluster.namespace, changed
        ),
        "pods": Mirror(
            "watch pods", lambda **options: cluster.list_pods(plan.name, **options), cluster.namespace, changed
        ),
    }
    job = JobWatch(plan, cluster, uid=reading.uid_of(found), show=show, repeat=pace.repeat, attached=attached)
    signs = SignsOfLife(plan.signs)
    pulse = 0.0
    try:
        for mirror in mirrors.values():
            mirror.start()
        while True:
            changed.clear()
            for mirror in mirrors.values():
                mirror.check()
            mirrors["jobsets"].changes()
            job.note(mirrors["pods"].changes())
            over = job.look(mirrors["jobsets"].objects(), mirrors["pods"].objects(), signs)
            if over is not None:
                return over
            if time.monotonic() >= pulse:
                pulse = time.monotonic() + pace.pulse
                signs.look()
                if beat is not None:
                    beat.beat()
            changed.wait(pace.look)
    finally:
        job.close()
        for mirror in mirrors.values():
            mirror.stop()

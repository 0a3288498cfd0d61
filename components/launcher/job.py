"""A plan of a job -> the JobSet that runs it (jobset.x-k8s.io/v1alpha2).

One replicated job with one pod per host, all or nothing: when a pod fails, all are started again. What counts as a
failure is what the program did. A machine that is taken away (a condition DisruptionTarget: spot, drain, node lost,
preemption) starts the pods again, too, but uses up none of `max_restarts`.

On GKE a multi-host slice is found by `jax.distributed.initialize()` without arguments: the pods are those of an indexed
Job behind the JobSet's headless service, and each asks for all TPU chips of its host.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from components.launcher.platform import PlatformConfig, pod_settings

API_VERSION = "jobset.x-k8s.io/v1alpha2"
JOB = "slice"
CONTAINER = "worker"

RUN = "headrace/run"
TASK = "headrace/task"
PLAN = "headrace/plan"
"""Annotations: whose job it is, and the hash of what it was made from."""

REFUSED = 78
"""Exit code of a program that would fail again in the same way: what it was given is wrong (sysexits: EX_CONFIG)."""
STOPPED = 75
"""Exit code of a program that was told to stop, or that hopes for better luck next time (EX_TEMPFAIL)."""

NAME_LENGTH = 40
"""A pod is named NAME-slice-0-INDEX-abcde, and that must fit into the 63 characters of a DNS label."""
GRACE_MARGIN_SECONDS = 20
"""Beyond the trainer's own grace: to write the last files, and for the interpreter to end."""
KEPT_SECONDS = 2 * 24 * 3600
"""How long a JobSet is kept that has ended and that nobody deletes."""

_EXCLUSIVE = "alpha.jobset.sigs.k8s.io/exclusive-topology"
_NODE_POOL = "cloud.google.com/gke-nodepool"
_QUEUE = "kueue.x-k8s.io/queue-name"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPlan:
    """What to run: `command` in every pod of the platform, once for the `task` of a `run`.

    `signs` are paths or URIs of files that the job lets grow: its signs of life, the first with a line per step.
    `failure` is a file to which a pod writes why it failed.
    """

    run: str
    task: str
    command: tuple[str, ...]
    platform: PlatformConfig
    environment: Mapping[str, str] = field(default_factory=dict)
    grace_seconds: float = 10.0
    signs: tuple[str, ...] = ()
    failure: str = ""

    @property
    def name(self) -> str:
        """The JobSet's name."""
        return job_name(self.run, self.task)


def job_name(run: str, task: str) -> str:
    """A DNS label of at most 40 characters, the same for the same run and task and no other pair."""
    digest = hashlib.sha256(json.dumps([run, task]).encode()).hexdigest()[:8]
    words = re.sub(r"[^a-z0-9]+", "-", f"{task}-{run}".lower()).strip("-")
    if not words[:1].isalpha():
        words = f"run-{words}"
    return f"{words[: NAME_LENGTH - 9].strip('-')}-{digest}"


def job_set(plan: JobPlan, namespace: str) -> dict[str, Any]:
    """The object to create. Its annotation `headrace/plan` is the hash of all the rest."""
    platform = plan.platform
    labels = {"app.kubernetes.io/managed-by": "headrace", "app.kubernetes.io/component": _label(plan.task)}
    annotations = {RUN: plan.run, TASK: plan.task}
    if platform.queue:
        labels[_QUEUE] = platform.queue
    if platform.hosts > 1:
        annotations[_EXCLUSIVE] = _NODE_POOL
    metadata = {"name": plan.name, "namespace": namespace, "labels": labels, "annotations": annotations}
    spec = {
        "failurePolicy": _failure_policy(platform.max_restarts),
        "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
        "replicatedJobs": [{"name": JOB, "replicas": 1, "template": {"spec": _job(plan)}}],
        "ttlSecondsAfterFinished": KEPT_SECONDS,
    }
    body: dict[str, Any] = {"apiVersion": API_VERSION, "kind": "JobSet", "metadata": metadata, "spec": spec}
    annotations[PLAN] = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
    return body


def _failure_policy(max_restarts: int) -> dict[str, Any]:
    taken_away = {
        "name": "machineTakenAway",
        "action": "RestartJobSetAndIgnoreMaxRestarts",
        "onJobFailureReasons": ["PodFailurePolicy"],
    }
    return {"maxRestarts": max_restarts, "rules": [taken_away]}


def _job(plan: JobPlan) -> dict[str, Any]:
    hosts = plan.platform.hosts
    return {
        "parallelism": hosts,
        "completions": hosts,
        "completionMode": "Indexed",
        # The JobSet starts all pods again; a Job of its own accord would start one, which the others do not know.
        "backoffLimit": 0,
        "podFailurePolicy": {
            "rules": [{"action": "FailJob", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}]
        },
        "template": {"spec": _pod(plan)},
    }


def _pod(plan: JobPlan) -> dict[str, Any]:
    settings = pod_settings(plan.platform)
    container = {
        "name": CONTAINER,
        "image": plan.platform.image,
        "command": list(plan.command),
        "env": [{"name": name, "value": value} for name, value in sorted(plan.environment.items())],
        "resources": settings.resources,
        # The end of the log stays with the pod's state, where it can still be read when the pod has been replaced.
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }
    pod: dict[str, Any] = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": round(plan.grace_seconds) + GRACE_MARGIN_SECONDS,
        "containers": [container],
        **settings.pod_fields(),
    }
    if plan.platform.service_account:
        pod["serviceAccountName"] = plan.platform.service_account
    return pod


def _label(text: str) -> str:
    """As the value of a label may be written."""
    return re.sub(r"[^A-Za-z0-9_.-]", "-", text)[:63].strip("-_.")

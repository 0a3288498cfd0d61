"""JobSets and pods, as the API shows them -> what a launcher needs to know of them. Pure.

An object is the mapping of its JSON, in which Kubernetes leaves out what is empty or 0.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

Object = Mapping[str, Any]

_ATTEMPT = "jobset.sigs.k8s.io/restart-attempt"
_INDEX = "batch.kubernetes.io/job-completion-index"
_HOPELESS = frozenset({"InvalidImageName", "CreateContainerConfigError", "ErrImageNeverPull"})
_STARTING = frozenset({"ContainerCreating", "PodInitializing"})


@dataclass(frozen=True, slots=True)
class Restarts:
    """How often all pods were started again: after failures of the program, and because a machine was taken away."""

    failures: int = 0
    taken_away: int = 0

    @property
    def all(self) -> int:
        """Both."""
        return self.failures + self.taken_away


@dataclass(frozen=True, slots=True)
class Obstacle:
    """Why a pod has not started. `hopeless` says that waiting will not help."""

    pod: str
    message: str
    since: datetime
    hopeless: bool


def name_of(found: Object) -> str:
    """Its name."""
    return str(found["metadata"]["name"])


def uid_of(found: Object) -> str:
    """What tells it from an earlier object of the same name."""
    return str(found["metadata"]["uid"])


def created(found: Object) -> datetime:
    """When it was made, by the API's clock."""
    return datetime.strptime(found["metadata"]["creationTimestamp"], "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)


def is_going(found: Object) -> bool:
    """Whether somebody has asked to delete it."""
    return "deletionTimestamp" in found["metadata"]


def ended(job_set: Object) -> str | None:
    """ "Completed" or "Failed" once it is over."""
    for condition in _conditions(job_set):
        if condition["type"] in ("Completed", "Failed") and condition["status"] == "True":
            return str(condition["type"])
    return None


def end_message(job_set: Object) -> str:
    """What its controller says about the end."""
    over = [each for each in _conditions(job_set) if each["type"] == ended(job_set)]
    return str(over[0].get("message", "")) if over else ""


def is_suspended(job_set: Object) -> bool:
    """Whether a queue holds it back."""
    return bool(job_set["spec"].get("suspend", False))


def restarts(job_set: Object) -> Restarts:
    """How often it was started again, and why."""
    status = job_set.get("status", {})
    counted = status.get("restartsCountTowardsMax", 0)
    return Restarts(failures=counted, taken_away=status.get("restarts", 0) - counted)


def attempt_of(pod: Object) -> int:
    """0 for the first pods, 1 for those after the first restart."""
    return int(pod["metadata"].get("labels", {}).get(_ATTEMPT, 0))


def index_of(pod: Object) -> int:
    """The number of the host; 0 is the one that speaks for all."""
    return int(pod["metadata"].get("annotations", {}).get(_INDEX, 0))


def phase_of(pod: Object) -> str:
    """Pending, Running, Succeeded, Failed or Unknown."""
    return str(pod.get("status", {}).get("phase", "Pending"))


def has_begun(pod: Object) -> bool:
    """Whether its program runs or has run, so that there is a log."""
    return phase_of(pod) in ("Running", "Succeeded", "Failed")


def newest_attempt(pods: Iterable[Object]) -> list[Object]:
    """The pods of the newest attempt."""
    found = list(pods)
    newest = max((attempt_of(pod) for pod in found), default=0)
    return [pod for pod in found if attempt_of(pod) == newest]


def exit_code(pod: Object) -> int | None:
    """That of its program; None where it has not ended, or nobody knows."""
    ending = _terminated(pod)
    return int(ending["exitCode"]) if ending else None


def end_reason(pod: Object) -> str:
    """The kubelet's word for how its program ended, such as OOMKilled."""
    return str(_terminated(pod).get("reason", ""))


def last_words(pod: Object) -> str:
    """The end of its log as the kubelet has kept it, up to two kilobytes."""
    return str(_terminated(pod).get("message", ""))


def taken_away(pod: Object) -> str | None:
    """Why its machine, or the pod itself, was taken from it; None where it was not."""
    status = pod.get("status", {})
    for condition in status.get("conditions", []):
        if condition["type"] == "DisruptionTarget" and condition["status"] == "True":
            return f"{condition.get('reason', 'DisruptionTarget')}: {condition.get('message', '')}".rstrip(": ")
    if phase_of(pod) == "Failed" and status.get("reason"):
        return f"{status['reason']}: {status.get('message', '')}".rstrip(": ")
    return "it was deleted" if is_going(pod) else None


def obstacle(pod: Object) -> Obstacle | None:
    """Why a pod that is Pending does not start; None where it is on its way, or has begun."""
    if phase_of(pod) != "Pending" or is_going(pod):
        return None
    status = pod.get("status", {})
    for container in status.get("containerStatuses", []):
        waiting = container.get("state", {}).get("waiting", {})
        reason = waiting.get("reason", "")
        if reason and reason not in _STARTING:
            message = f"{reason}: {waiting.get('message', '')}".rstrip(": ")
            return Obstacle(name_of(pod), message, created(pod), reason in _HOPELESS)
    for condition in status.get("conditions", []):
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            message = condition.get("message") or condition.get("reason", "no node")
            return Obstacle(name_of(pod), str(message), created(pod), hopeless=False)
    return None


def _terminated(pod: Object) -> Object:
    for container in pod.get("status", {}).get("containerStatuses", []):
        if "terminated" in container.get("state", {}):
            return container["state"]["terminated"]
    return {}


def _conditions(found: Object) -> list[Any]:
    return list(found.get("status", {}).get("conditions", []))

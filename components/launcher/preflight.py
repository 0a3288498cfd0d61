"""A plan and a cluster -> every reason why the plan could never run there, before anything is created."""

import re
from decimal import Decimal
from typing import Any

from components.errors import ClusterError, ConfigError, Problem
from components.launcher.cluster import Cluster
from components.launcher.job import JobPlan
from components.launcher.platform import PlatformConfig, pod_settings
from components.telemetry.progress import say

_IMAGE = re.compile(
    r"(?P<name>[a-z0-9]+([._-]+[a-z0-9]+)*(:[0-9]+)?(/[a-z0-9]+([._-]+[a-z0-9]+)*)*)"
    r"(:(?P<tag>[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}))?"
    r"(@(?P<digest>sha256:[0-9a-f]{64}))?"
)
_SCALES = {
    "m": Decimal("0.001"),
    "k": Decimal(10**3),
    "M": Decimal(10**6),
    "G": Decimal(10**9),
    "T": Decimal(10**12),
    "Ki": Decimal(2**10),
    "Mi": Decimal(2**20),
    "Gi": Decimal(2**30),
    "Ti": Decimal(2**40),
}


def preflight(plan: JobPlan, cluster: Cluster) -> None:
    """Raises ConfigError with all that makes the plan impossible, or ClusterError where there are no JobSets at all."""
    problems = image_problems(plan.platform.image)
    if not cluster.has_job_sets():
        raise ClusterError("this cluster knows no JobSets; install jobset.x-k8s.io (see infra/)")
    account = plan.platform.service_account
    if account and not cluster.has_service_account(account):
        message = f"does not exist in namespace {cluster.namespace}"
        problems.append(Problem("platform.service_account", account, message))
    problems += _queue_problems(plan.platform.queue, cluster) + _quota_problems(plan.platform, cluster)
    if problems:
        raise ConfigError(problems)


def image_problems(image: str) -> list[Problem]:
    """What is wrong with an image reference. A tag may stand for other code tomorrow, which a warning says."""
    found = _IMAGE.fullmatch(image)
    if found is None:
        return [Problem("platform.image", image, "is no image reference; write NAME:TAG, or best NAME@sha256:DIGEST")]
    if found["digest"]:
        return []
    if found["tag"] in (None, "latest"):
        message = (
            "names no version, so that a restart could run other code; use NAME@sha256:DIGEST, or a tag that stays"
        )
        return [Problem("platform.image", image, message)]
    say(f"warning: {image} is named by a tag, and a tag can be moved; a digest cannot")
    return []


def quantity(text: str) -> Decimal:
    """A Kubernetes quantity as a number: "500m" is 0.5, "2Gi" is 2147483648."""
    digits = text.rstrip("".join(set("".join(_SCALES))))
    return Decimal(digits) * _SCALES.get(text[len(digits) :], Decimal(1))


def _queue_problems(queue: str, cluster: Cluster) -> list[Problem]:
    if not queue:
        return []
    queues = cluster.queues()
    if queues is None:
        return [Problem("platform.queue", queue, "this cluster has no Kueue; leave queue out, or install it (infra/)")]
    by_name: dict[str, dict[str, Any]] = {each["metadata"]["name"]: each for each in queues}
    if queue not in by_name:
        there = ", ".join(sorted(by_name)) or "none"
        message = f"is no LocalQueue of namespace {cluster.namespace}; there are: {there}"
        return [Problem("platform.queue", queue, message)]
    for condition in by_name[queue].get("status", {}).get("conditions", []):
        if condition["type"] == "Active" and condition["status"] == "False":
            return [Problem("platform.queue", queue, f"is not active: {condition.get('message', 'stopped')}")]
    return []


def _quota_problems(platform: PlatformConfig, cluster: Cluster) -> list[Problem]:
    """Amounts that are more than a ResourceQuota will ever allow. One that is only used up is waited for."""
    settings = pod_settings(platform)
    asked = {f"requests.{name}": amount for name, amount in settings.requests.items()}
    asked |= {f"limits.{name}": amount for name, amount in settings.limits.items()}
    problems = []
    for quota in cluster.quotas():
        hard, used = quota.get("spec", {}).get("hard", {}), quota.get("status", {}).get("used", {})
        for name, amount in asked.items():
            if name not in hard:
                continue
            needed, allowed = quantity(amount) * platform.hosts, quantity(hard[name])
            label = f"ResourceQuota {quota['metadata']['name']} of namespace {cluster.namespace}"
            if needed > allowed:
                message = f"{platform.hosts} pods of {amount} are more {name} than the {label} allows ({hard[name]})"
                problems.append(Problem("platform.topology" if "tpu" in name else "platform", amount, message))
            elif needed + quantity(used.get(name, "0")) > allowed:
                say(f"{label}: {used[name]} of {hard[name]} {name} are in use; the pods will wait for theirs")
    return problems

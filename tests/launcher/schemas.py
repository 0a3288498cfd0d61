"""What the API refuses in a JobSet: unknown fields anywhere, wrong types, and what its webhook looks at.

The fields of a JobSet are those of its CRD (jobset.x-k8s.io/v1alpha2, release 0.10); those of the Jobs and pods in it
are the models that the official client carries.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from kubernetes import client

JOB_SET = {
    "failurePolicy": {
        "maxRestarts": int,
        "restartStrategy": str,
        "rules": [
            {
                "name": str,
                "action": str,
                "onJobFailureReasons": [str],
                "onJobFailureMessagePatterns": [str],
                "targetReplicatedJobs": [str],
            }
        ],
    },
    "successPolicy": {"operator": str, "targetReplicatedJobs": [str]},
    "startupPolicy": {"startupPolicyOrder": str},
    "network": {"enableDNSHostnames": bool, "publishNotReadyAddresses": bool, "subdomain": str},
    "coordinator": {"replicatedJob": str, "jobIndex": int, "podIndex": int},
    "managedBy": str,
    "suspend": bool,
    "ttlSecondsAfterFinished": int,
    "volumeClaimPolicies": [{}],
    "replicatedJobs": [
        {
            "name": str,
            "groupName": str,
            "replicas": int,
            "dependsOn": [{"name": str, "status": str}],
            "template": {"metadata": client.V1ObjectMeta, "spec": client.V1JobSpec},
        }
    ],
}
ACTIONS = (
    "FailJobSet",
    "RestartJobSet",
    "RestartJobSetAndIgnoreMaxRestarts",
    "RestartJob",
    "RestartJobAndIgnoreMaxRestarts",
)
JOB_FAILURE_REASONS = ("BackoffLimitExceeded", "DeadlineExceeded", "PodFailurePolicy", "FailedIndexes")
_DNS_LABEL = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_PLAIN = {"str": str, "int": int, "float": float, "bool": bool}


def faults_of(plural: str, body: Mapping[str, Any]) -> Iterator[tuple[int, str]]:
    """(status, message) of each thing that is wrong."""
    if plural != "jobsets":
        return
    shape = {"apiVersion": str, "kind": str, "metadata": client.V1ObjectMeta, "spec": JOB_SET}
    for fault in _strange(shape, body, ""):
        yield 400, f"JobSet in version v1alpha2 cannot be handled as a JobSet: strict decoding error: {fault}"
    if body.get("apiVersion") != "jobset.x-k8s.io/v1alpha2" or body.get("kind") != "JobSet":
        yield 400, f"no kind {body.get('kind')} in {body.get('apiVersion')}"
    for fault in _invalid(body):
        yield 422, f'JobSet.jobset.x-k8s.io "{body["metadata"]["name"]}" is invalid: {fault}'


def _strange(shape: Any, value: Any, where: str) -> Iterator[str]:
    if isinstance(shape, str):
        shape = _of_client(shape)
    if isinstance(shape, list):
        if not isinstance(value, list):
            yield f"{where} is no list"
            return
        for number, each in enumerate(value):
            yield from _strange(shape[0], each, f"{where}[{number}]")
    elif isinstance(shape, type) and issubclass(shape, str | int | float | bool):
        if not isinstance(value, shape) or (isinstance(value, bool) and shape is not bool):
            yield f"{where} has a value of the wrong type: {value!r}"
    elif shape is not object:
        fields = shape if isinstance(shape, dict) else _fields(shape)
        if not isinstance(value, dict):
            yield f"{where} is no object"
            return
        for name, each in value.items():
            if name in fields:
                yield from _strange(fields[name], each, f"{where}.{name}".lstrip("."))
            elif "*" in fields:
                yield from _strange(fields["*"], each, f"{where}.{name}")
            else:
                yield f'unknown field "{where}.{name}"'.replace('"."', '"')


def _fields(model: Any) -> dict[str, Any]:
    return {model.attribute_map[name]: kind for name, kind in model.openapi_types.items()}


def _of_client(kind: str) -> Any:
    """A type as the client's models write it."""
    if kind.startswith("list["):
        return [kind[5:-1]]
    if kind.startswith("dict("):
        return {"*": kind[5:-1].split(", ")[1]}
    if kind in ("object", "datetime"):
        return object
    return _PLAIN.get(kind) or getattr(client, kind)


def _invalid(body: Mapping[str, Any]) -> Iterator[str]:
    rules = body["spec"].get("failurePolicy", {}).get("rules", [])
    for rule in rules:
        if rule["action"] not in ACTIONS:
            yield f"action {rule['action']}"
        if not set(rule.get("onJobFailureReasons", [])) <= set(JOB_FAILURE_REASONS):
            yield f"onJobFailureReasons {rule['onJobFailureReasons']}"
        if not re.fullmatch(r"[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?", rule["name"]):
            yield f"name of rule {rule['name']}"
    for replicated in body["spec"]["replicatedJobs"]:
        job = replicated["template"]["spec"]
        last = job["completions"] - 1
        pod_name = f"{body['metadata']['name']}-{replicated['name']}-{replicated['replicas'] - 1}-{last}-abcde"
        if len(pod_name) > 63 or not _DNS_LABEL.fullmatch(pod_name):
            yield f"JobSet name is too long, or no DNS label: {pod_name}"
        pod = job["template"]["spec"]
        if "podFailurePolicy" in job and pod["restartPolicy"] != "Never":
            yield "podFailurePolicy needs restartPolicy Never"
        for container in pod["containers"]:
            resources = container.get("resources", {})
            for name, amount in resources.get("limits", {}).items():
                if "/" in name and resources.get("requests", {}).get(name, amount) != amount:
                    yield f"the request of {name} must be its limit"

"""Requests to the Kubernetes API -> plain mappings, or an error that a person understands.

A request that meets an overloaded, restarting or unreachable API is made again for some minutes: a launcher that lives
for days sees every one of these. Everything goes through the official client, inside a pod with the pod's own account
and elsewhere with the kubeconfig.
"""

import json
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import urllib3
from kubernetes import client, config

from components.errors import ClusterError, ConfigError
from components.launcher.job import API_VERSION, CONTAINER

T = TypeVar("T")

RULES: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("jobset.x-k8s.io", "jobsets", ("create", "delete", "get", "list", "watch")),
    ("", "pods", ("list", "watch")),
    ("", "pods/log", ("get",)),
    ("", "events", ("list",)),
    ("", "serviceaccounts", ("get",)),
    ("", "resourcequotas", ("list",)),
    ("kueue.x-k8s.io", "localqueues", ("list",)),
    ("kueue.x-k8s.io", "workloads", ("list",)),
)
"""(API group, resource, verbs): all that the launcher's service account must be allowed, in the JobSet's namespace."""

PATIENCE_SECONDS = 300.0
CONNECT_SECONDS = 10.0
READ_SECONDS = 60.0
SILENCE_SECONDS = 300.0
"""After so long without a byte a stream is taken for dead."""

_GROUP, _VERSION = API_VERSION.split("/")
_JOB_SETS = (_GROUP, _VERSION)
_QUEUE_VERSIONS = ("v1beta2", "v1beta1")
_PASSING = frozenset({408, 429, 500, 502, 503, 504})
_OWN_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
_USUAL_NAMESPACE = "kubeflow"


class Cluster:
    """One namespace of a cluster. Empty means the pod's own, or else that of the kubeconfig's context."""

    def __init__(
        self, namespace: str = "", *, api: client.ApiClient | None = None, patience: float = PATIENCE_SECONDS
    ) -> None:
        self._api = api or _connect()
        self.namespace = namespace or _own_namespace()
        self._custom = client.CustomObjectsApi(self._api)
        self._core = client.CoreV1Api(self._api)
        self._patience = patience

    def create_job_set(self, body: dict[str, Any]) -> dict[str, Any] | None:
        """The object as created; None where one of its name exists."""

        def create() -> dict[str, Any]:
            return self._custom.create_namespaced_custom_object(
                *_JOB_SETS, self.namespace, "jobsets", body, _request_timeout=(CONNECT_SECONDS, READ_SECONDS)
            )

        return self._asked("create jobsets", create, unless=409)

    def read_job_set(self, name: str) -> dict[str, Any] | None:
        """The object; None where there is none."""

        def read() -> dict[str, Any]:
            return self._custom.get_namespaced_custom_object(
                *_JOB_SETS, self.namespace, "jobsets", name, _request_timeout=(CONNECT_SECONDS, READ_SECONDS)
            )

        return self._asked("get jobsets", read, unless=404)

    def delete_job_set(self, name: str, uid: str) -> bool:
        """Delete the very object `uid` and, after it, its pods. False where it is gone, or its name is another's."""

        def delete() -> bool:
            options = client.V1DeleteOptions(
                propagation_policy="Foreground", preconditions=client.V1Preconditions(uid=uid)
            )
            self._custom.delete_namespaced_custom_object(
                *_JOB_SETS,
                self.namespace,
                "jobsets",
                name,
                body=options,
                _request_timeout=(CONNECT_SECONDS, READ_SECONDS),
            )
            return True

        try:
            return bool(self._asked("delete jobsets", delete, unless=404))
        except _ConflictError:
            return False

    def list_job_sets(self, name: str, **options: Any) -> urllib3.HTTPResponse:
        """The raw answer of a list or watch of the one JobSet `name`. Raises what the client raises."""
        return self._custom.list_namespaced_custom_object(
            *_JOB_SETS, self.namespace, "jobsets", field_selector=f"metadata.name={name}", **_raw(options)
        )

    def list_pods(self, name: str, **options: Any) -> urllib3.HTTPResponse:
        """The raw answer of a list or watch of the pods of the JobSet `name`. Raises what the client raises."""
        return self._core.list_namespaced_pod(
            self.namespace, label_selector=f"jobset.sigs.k8s.io/jobset-name={name}", **_raw(options)
        )

    def pods(self, name: str) -> list[dict[str, Any]]:
        """The pods of the JobSet `name`, as they are now."""
        return self._items("list pods", lambda: self.list_pods(name))

    def open_log(self, pod: str, **options: Any) -> urllib3.HTTPResponse:
        """A pod's log as a stream. Raises what the client raises."""
        return self._core.read_namespaced_pod_log(pod, self.namespace, container=CONTAINER, **_raw(options))

    def log_tail(self, pod: str, lines: int) -> str:
        """The last lines of a pod's log; empty where it is gone, or was never begun."""
        try:
            answer = self._asked("get pods/log", lambda: self.open_log(pod, tail_lines=lines), unless=404)
        except ClusterError:
            return ""
        return "" if answer is None else answer.data.decode(errors="replace")

    def warnings(self, prefix: str) -> list[str]:
        """Messages of the warnings about objects whose names begin with `prefix`, the oldest first."""
        found = self._items("list events", lambda: self._core.list_namespaced_event(self.namespace, **_raw({})))
        chosen = [
            each for each in found if each["type"] == "Warning" and each["involvedObject"]["name"].startswith(prefix)
        ]
        chosen.sort(key=lambda each: each.get("lastTimestamp") or each.get("eventTime") or "")
        return [f"{each['reason']}: {each['message']}" for each in chosen]

    def has_service_account(self, name: str) -> bool:
        """Whether the service account exists."""

        def read() -> Any:
            return self._core.read_namespaced_service_account(name, self.namespace, **_raw({}))

        return self._asked("get serviceaccounts", read, unless=404) is not None

    def has_job_sets(self) -> bool:
        """Whether the cluster knows what a JobSet is, and lets us see them."""
        return self._asked("list jobsets", lambda: self.list_job_sets("any", limit=1), unless=404) is not None

    def quotas(self) -> list[dict[str, Any]]:
        """The namespace's ResourceQuotas."""
        return self._items(
            "list resourcequotas", lambda: self._core.list_namespaced_resource_quota(self.namespace, **_raw({}))
        )

    def queues(self) -> list[dict[str, Any]] | None:
        """The namespace's Kueue LocalQueues; None where the cluster has no Kueue."""
        return self._kueue("localqueues", "")

    def workloads(self, uid: str) -> list[dict[str, Any]]:
        """What Kueue keeps about the JobSet `uid`; empty where it keeps nothing."""
        return self._kueue("workloads", f"kueue.x-k8s.io/job-uid={uid}") or []

    def _kueue(self, plural: str, label_selector: str) -> list[dict[str, Any]] | None:
        for version in _QUEUE_VERSIONS:

            def read(version: str = version) -> urllib3.HTTPResponse:
                return self._custom.list_namespaced_custom_object(
                    "kueue.x-k8s.io", version, self.namespace, plural, label_selector=label_selector, **_raw({})
                )

            answer = self._asked(f"list {plural}", read, unless=404)
            if answer is not None:
                return json.loads(answer.data)["items"]
        return None

    def _items(self, what: str, read: Callable[[], urllib3.HTTPResponse]) -> list[dict[str, Any]]:
        answer = self._asked(what, read)
        return [] if answer is None else json.loads(answer.data)["items"]

    def _asked(self, what: str, request: Callable[[], T], *, unless: int = 0) -> T | None:
        """The answer; None where the API answers `unless`. What passes is waited for. Raises ClusterError."""
        deadline, wait = time.monotonic() + self._patience, 0.25
        while True:
            try:
                return request()
            except client.ApiException as error:
                if error.status == unless:
                    return None
                if error.status not in _PASSING or time.monotonic() > deadline:
                    raise explained(error, what, self.namespace) from None
            except urllib3.exceptions.HTTPError as error:
                if time.monotonic() > deadline:
                    message = f"the cluster's API cannot be reached for {self._patience:g} s: {error}"
                    raise ClusterError(message) from None
            time.sleep(wait * random.uniform(0.5, 1.0))
            wait = min(2 * wait, 15.0)


class _ConflictError(ClusterError):
    """The object is not the one that was meant."""


def explained(error: client.ApiException, what: str, namespace: str) -> ClusterError:
    """The API's refusal of `what` ("verb resource") as a sentence."""
    message = _message(error)
    if error.status == 409:
        return _ConflictError(f"the cluster's API refuses to {what} in namespace {namespace}: {message}")
    if error.status in (401, 403):
        return ClusterError(
            f"the service account of this process may not {what} in namespace {namespace}; bind it to the launcher's "
            f"Role (infra/): {message}"
        )
    return ClusterError(f"the cluster's API refuses to {what} in namespace {namespace} ({error.status}): {message}")


def _message(error: client.ApiException) -> str:
    try:
        return json.loads(error.body or "")["message"]
    except (ValueError, KeyError, TypeError):
        return str(error.reason)


def _raw(options: dict[str, Any]) -> dict[str, Any]:
    """Options of a call whose answer is not made into the client's models, and that does not hang for ever."""
    streams = options.get("watch") or options.get("follow")
    timeout = (CONNECT_SECONDS, SILENCE_SECONDS if streams else READ_SECONDS)
    return {"_preload_content": False, "_request_timeout": timeout, **options}


def _connect() -> client.ApiClient:
    settings = client.Configuration()
    try:
        config.load_incluster_config(client_configuration=settings)
    except config.ConfigException:
        try:
            config.load_kube_config(client_configuration=settings)
        except config.ConfigException as error:
            raise ConfigError(
                f"there is no cluster to speak to: not inside a pod, and no kubeconfig ({error})"
            ) from None
    return client.ApiClient(settings)


def _own_namespace() -> str:
    if _OWN_NAMESPACE.is_file():
        return _OWN_NAMESPACE.read_text(encoding="utf-8").strip()
    try:
        _, context = config.list_kube_config_contexts()
    except config.ConfigException:
        return _USUAL_NAMESPACE
    return context["context"].get("namespace", _USUAL_NAMESPACE)

"""The JobSet controller, the scheduler and the kubelets of a test cluster: pods appear, run a program, end, restart.

A program is a function of a `RunningPod` that gives an exit code, run in a thread. Everything that a launcher can see
goes through the store, with the labels, conditions and counters of the real controllers.
"""

import contextlib
import random
import string
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from tests.launcher.kubernetes_server import KubernetesServer, PodLog
from tests.launcher.kubernetes_store import ApiError, Object


@dataclass
class RunningPod:
    """What a program knows of where it runs. `told_to_end` is its SIGTERM."""

    name: str
    index: int
    attempt: int
    spec: Object
    server: KubernetesServer
    told_to_end: threading.Event = field(default_factory=threading.Event)

    def say(self, line: str) -> None:
        """Write a line to the pod's log."""
        self.server.log(self.name, line)


Program = Callable[[RunningPod], int]


class Controllers:
    """Run in one thread while the context is open. `node_message` holds pods back: what the scheduler says of them."""

    def __init__(self, server: KubernetesServer, program: Program, *, namespace: str = "kubeflow") -> None:
        self.server, self.store, self.namespace = server, server.store, namespace
        self.program = program
        self.node_message = ""
        self.waiting_reason = ""
        self.pods: dict[str, RunningPod] = {}
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="controllers", daemon=True)

    def __enter__(self) -> "Controllers":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self.store.changed:
            self._stopped = True
            self.store.changed.notify_all()
        for pod in self.pods.values():
            pod.told_to_end.set()
        self._thread.join(5)

    def preempt(self, name: str) -> None:
        """The pod's node is taken away: a condition says so, and the pod is ended by the kubelet."""
        condition = {"type": "DisruptionTarget", "status": "True", "reason": "TerminationByKubelet"}
        self._change(name, lambda pod: pod["status"].setdefault("conditions", []).append(condition))
        self.pods[name].told_to_end.set()

    def names(self) -> list[str]:
        """The pods that there are."""
        return [pod["metadata"]["name"] for pod in self.store.all_of("pods", self.namespace)]

    def _run(self) -> None:
        while True:
            with self.store.changed:
                if self._stopped:
                    return
                for job_set in self.store.all_of("jobsets", self.namespace):
                    # A launcher may delete it between two looks of a controller.
                    with contextlib.suppress(ApiError):
                        self._reconcile(job_set)
                for pod in self.store.all_of("pods", self.namespace):
                    with contextlib.suppress(ApiError):
                        self._run_pod(pod)
                self.store.changed.wait(0.02)

    def _reconcile(self, job_set: Object) -> None:
        status = job_set.setdefault("status", {"restarts": 0})
        if "deletionTimestamp" in job_set["metadata"] or _is_over(status) or job_set["spec"].get("suspend"):
            return
        mine = [pod for pod in self.store.all_of("pods", self.namespace) if _owner(pod) == job_set["metadata"]["uid"]]
        current = [pod for pod in mine if _attempt(pod) == status["restarts"]]
        old = [pod for pod in mine if _attempt(pod) < status["restarts"]]
        for pod in old:
            self.store.delete("pods", self.namespace, pod["metadata"]["name"])
        job = job_set["spec"]["replicatedJobs"][0]["template"]["spec"]
        lost = bool(status.get("made", 0)) and len(current) < job["completions"]
        failed = [
            pod for pod in current if pod["status"]["phase"] == "Failed" or "deletionTimestamp" in pod["metadata"]
        ]
        if failed or (lost and not old):
            self._restart(job_set, failed)
        elif current and all(pod["status"]["phase"] == "Succeeded" for pod in current):
            self._end(job_set, "Completed", "jobset completed successfully")
        elif not old and not current:
            for index in range(job["completions"]):
                self._make_pod(job_set, job, index)
            status["made"] = 1
            self.store.update("jobsets", job_set)

    def _restart(self, job_set: Object, failed: list[Object]) -> None:
        status, policy = job_set["status"], job_set["spec"]["failurePolicy"]
        disrupted = any(
            condition["type"] == "DisruptionTarget"
            for pod in failed
            for condition in pod["status"].get("conditions", [])
        )
        rules = [rule["action"] for rule in policy["rules"] if rule["onJobFailureReasons"] == ["PodFailurePolicy"]]
        if not (disrupted and rules == ["RestartJobSetAndIgnoreMaxRestarts"]):
            counted = status.get("restartsCountTowardsMax", 0)
            if counted >= policy["maxRestarts"]:
                self._end(job_set, "Failed", "jobset failed due to reaching max number of restarts")
                return
            status["restartsCountTowardsMax"] = counted + 1
        status["restarts"] += 1
        status["made"] = 0
        self.store.update("jobsets", job_set)

    def _end(self, job_set: Object, kind: str, message: str) -> None:
        job_set["status"]["conditions"] = [{"type": kind, "status": "True", "reason": kind, "message": message}]
        job_set["status"]["terminalState"] = kind
        self.store.update("jobsets", job_set)

    def _make_pod(self, job_set: Object, job: Object, index: int) -> None:
        name = job_set["metadata"]["name"]
        attempt = str(job_set["status"]["restarts"])
        suffix = "".join(random.choices(string.ascii_lowercase, k=5))
        metadata = {
            "name": f"{name}-slice-0-{index}-{suffix}",
            "labels": {"jobset.sigs.k8s.io/jobset-name": name, "jobset.sigs.k8s.io/restart-attempt": attempt},
            "annotations": {"batch.kubernetes.io/job-completion-index": str(index)},
            "ownerReferences": [{"kind": "JobSet", "name": name, "uid": job_set["metadata"]["uid"]}],
        }
        pod = {"metadata": metadata, "spec": job["template"]["spec"], "status": {"phase": "Pending"}}
        self.store.create("pods", self.namespace, pod)

    def _run_pod(self, pod: Object) -> None:
        name = pod["metadata"]["name"]
        if "deletionTimestamp" in pod["metadata"]:
            running = self.pods.get(name)
            if running is None or pod["status"]["phase"] in ("Succeeded", "Failed"):
                self.store.remove("pods", self.namespace, name)
            else:
                running.told_to_end.set()
            return
        if pod["status"]["phase"] != "Pending" or name in self.pods:
            return
        held = self._held_back()
        if held:
            if pod["status"] != {"phase": "Pending"} | held:
                pod["status"] = {"phase": "Pending"} | held
                self.store.update("pods", pod)
            return
        metadata = pod["metadata"]
        index = int(metadata["annotations"]["batch.kubernetes.io/job-completion-index"])
        self.pods[name] = RunningPod(name, index, _attempt(pod), pod["spec"], self.server)
        self.server.logs[name] = PodLog()
        pod["status"] = {"phase": "Running", "containerStatuses": [{"name": "worker", "state": {"running": {}}}]}
        self.store.update("pods", pod)
        threading.Thread(target=self._execute, args=(self.pods[name],), name=name, daemon=True).start()

    def _held_back(self) -> Object:
        if self.node_message:
            condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
            return {"conditions": [condition | {"message": self.node_message}]}
        if self.waiting_reason:
            waiting = {"reason": self.waiting_reason, "message": "Back-off pulling image"}
            return {"containerStatuses": [{"name": "worker", "state": {"waiting": waiting}}]}
        return {}

    def _execute(self, running: RunningPod) -> None:
        code = self.program(running)

        def end(pod: Object) -> None:
            pod["status"]["phase"] = "Succeeded" if code == 0 else "Failed"
            finished = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            state = {
                "terminated": {"exitCode": code, "finishedAt": finished, "reason": "Error" if code else "Completed"}
            }
            if code and pod["spec"]["containers"][0]["terminationMessagePolicy"] == "FallbackToLogsOnError":
                lines = [text for _, text in self.server.logs[running.name].lines]
                state["terminated"]["message"] = "\n".join(lines)[-2048:]
            pod["status"]["containerStatuses"] = [{"name": "worker", "state": state}]

        with self.store.changed:
            self.server.logs[running.name].closed = True
            self._change(running.name, end)

    def _change(self, name: str, change: Callable[[Object], Any]) -> None:
        with self.store.changed, contextlib.suppress(ApiError):
            pod = self.store.get("pods", self.namespace, name)
            change(pod)
            self.store.update("pods", pod)


def _is_over(status: Object) -> bool:
    return any(condition["type"] in ("Completed", "Failed") for condition in status.get("conditions", []))


def _owner(pod: Object) -> str:
    return pod["metadata"]["ownerReferences"][0]["uid"]


def _attempt(pod: Object) -> int:
    return int(pod["metadata"]["labels"]["jobset.sigs.k8s.io/restart-attempt"])

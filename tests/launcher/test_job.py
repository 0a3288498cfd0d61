"""A plan as a JobSet, and the name that finds it again."""

import re

import pytest

from components.launcher.job import PLAN, job_name, job_set
from tests.launcher.kubernetes_server import KubernetesServer
from tests.launcher.kubernetes_store import ApiError, Store
from tests.launcher.plans import FOUR_HOSTS, IMAGE, plan


def test_a_job_is_a_jobset_of_one_pod_per_host() -> None:
    chosen = plan(
        platform={**FOUR_HOSTS, "spot": True, "queue": "tpus", "service_account": "trainer", "max_restarts": 5},
        command=("python", "-m", "worker"),
        environment={"PYTHONUNBUFFERED": "1"},
        grace_seconds=25.0,
    )
    body = job_set(chosen, "kubeflow")
    assert body["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "tpus"
    pools = body["metadata"]["annotations"]["alpha.jobset.sigs.k8s.io/exclusive-topology"]
    assert pools == "cloud.google.com/gke-nodepool"
    assert body["spec"]["failurePolicy"] == {
        "maxRestarts": 5,
        "rules": [
            {
                "name": "machineTakenAway",
                "action": "RestartJobSetAndIgnoreMaxRestarts",
                "onJobFailureReasons": ["PodFailurePolicy"],
            }
        ],
    }
    (replicated,) = body["spec"]["replicatedJobs"]
    job = replicated["template"]["spec"]
    assert (replicated["replicas"], job["parallelism"], job["completions"], job["backoffLimit"]) == (1, 4, 4, 0)
    assert job["completionMode"] == "Indexed"
    pod = job["template"]["spec"]
    assert pod["restartPolicy"] == "Never"
    assert pod["terminationGracePeriodSeconds"] == 45
    assert pod["serviceAccountName"] == "trainer"
    assert pod["nodeSelector"] == {
        "cloud.google.com/gke-tpu-accelerator": "tpu-v5-lite-podslice",
        "cloud.google.com/gke-tpu-topology": "4x4",
        "cloud.google.com/gke-spot": "true",
    }
    (container,) = pod["containers"]
    assert container["image"] == IMAGE
    assert container["command"] == ["python", "-m", "worker"]
    assert container["resources"]["limits"] == {"google.com/tpu": "4"}
    assert container["env"] == [{"name": "PYTHONUNBUFFERED", "value": "1"}]


def test_the_pods_of_a_job_run_under_the_runtime_class_that_the_recipe_names() -> None:
    def pod(**platform: str) -> dict[str, object]:
        body = job_set(plan(platform=platform), "kubeflow")
        return body["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]

    assert pod(runtime_class="gvisor")["runtimeClassName"] == "gvisor"
    assert "runtimeClassName" not in pod()


def test_one_host_needs_no_pool_of_its_own_and_no_queue() -> None:
    body = job_set(plan(platform={"accelerator": "v5e", "topology": "2x4"}), "kubeflow")
    assert "alpha.jobset.sigs.k8s.io/exclusive-topology" not in body["metadata"]["annotations"]
    assert set(body["metadata"]["labels"]) == {"app.kubernetes.io/managed-by", "app.kubernetes.io/component"}
    assert body["spec"]["replicatedJobs"][0]["template"]["spec"]["completions"] == 1


def test_the_hash_of_a_plan_changes_with_everything_in_it() -> None:
    def digest(**values: object) -> str:
        return job_set(plan(**values), "kubeflow")["metadata"]["annotations"][PLAN]

    assert digest() == digest()
    others = [digest(command=("true",)), digest(grace_seconds=11.0), digest(platform={"memory": "1Gi"})]
    assert len({digest(), *others}) == 4


@pytest.mark.parametrize(
    "run", ["0b6e0c1e-9d0b-4b56-8f9c-1f2f1a3c9d11", "Gemma 2 2B / GSM8K, third try", "ünïcode-" * 20, "1", "---", ""]
)
def test_a_name_is_a_dns_label_that_leaves_room_for_its_pods(run) -> None:
    name = job_name(run, "train")
    assert re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", name)
    assert len(f"{name}-slice-0-2303-abcde") <= 63
    assert re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", job_name(run, "7"))


def test_names_of_different_runs_and_tasks_differ_and_those_of_the_same_do_not() -> None:
    runs = ["a" * 60 + "1", "a" * 60 + "2", "a b", "a-b", "A-b", "a", ""]
    names = {job_name(run, task) for run in runs for task in ("train", "sft")}
    assert len(names) == 2 * len(runs)
    assert job_name("a b", "train") == job_name("a b", "train")


def test_the_api_takes_the_object_as_it_is() -> None:
    with KubernetesServer() as server:
        made = server.store.create("jobsets", "kubeflow", job_set(plan(platform=FOUR_HOSTS), "kubeflow"))
    assert made["metadata"]["resourceVersion"] == "1001"


@pytest.mark.parametrize(
    ("path", "value", "status"),
    [
        (("spec", "maxRestarts"), 3, 400),
        (("spec", "replicatedJobs", 0, "template", "spec", "backOffLimit"), 0, 400),
        (("spec", "replicatedJobs", 0, "template", "spec", "parallelism"), "4", 400),
        (("spec", "replicatedJobs", 0, "template", "spec", "template", "spec", "containers", 0, "envs"), [], 400),
        (("spec", "failurePolicy", "rules", 0, "action"), "Restart", 422),
        (("metadata", "name"), "train-" + "x" * 60, 422),
    ],
)
def test_the_api_of_the_tests_refuses_what_the_real_one_does(path, value, status) -> None:
    body = job_set(plan(platform=FOUR_HOSTS), "kubeflow")
    at = body
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    with pytest.raises(ApiError) as caught:
        Store().create("jobsets", "kubeflow", body)
    assert caught.value.status == status

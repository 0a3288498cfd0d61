"""What could never run is refused before anything is created."""

from decimal import Decimal

import pytest

from components.errors import ClusterError, ConfigError
from components.launcher.cluster import RULES, Cluster
from components.launcher.job import JobPlan
from components.launcher.jobset import run_job
from components.launcher.preflight import image_problems, preflight, quantity
from tests.launcher.conftest import NAMESPACE
from tests.launcher.kubernetes_server import KubernetesServer
from tests.launcher.plans import FOUR_HOSTS, IMAGE, QUICK, plan


def refusal(cluster: Cluster, **platform: object) -> str:
    with pytest.raises(ConfigError) as caught:
        preflight(plan(platform=platform), cluster)
    return str(caught.value)


def preflight_and_run(chosen: JobPlan, cluster: Cluster) -> None:
    preflight(chosen, cluster)
    run_job(chosen, cluster, show=print, pace=QUICK)


def test_a_cluster_that_has_all_that_is_asked_for_is_fine(server, cluster) -> None:
    server.store.create("serviceaccounts", NAMESPACE, {"metadata": {"name": "trainer"}})
    server.store.create("localqueues", NAMESPACE, {"metadata": {"name": "tpus"}})
    quota = {"metadata": {"name": "tpu"}, "spec": {"hard": {"requests.google.com/tpu": "16"}}}
    server.store.create("resourcequotas", NAMESPACE, quota)
    preflight(plan(platform={**FOUR_HOSTS, "service_account": "trainer", "queue": "tpus"}), cluster)
    assert server.calls["create", "jobsets"] == 0


def test_everything_that_is_missing_is_named_at_once(server, cluster) -> None:
    server.store.create("localqueues", NAMESPACE, {"metadata": {"name": "tpus"}})
    text = refusal(cluster, service_account="trainer", queue="tpu", image="headrace")
    assert "platform.service_account: does not exist in namespace kubeflow (got 'trainer')" in text
    assert "platform.queue: is no LocalQueue of namespace kubeflow; there are: tpus (got 'tpu')" in text
    assert "platform.image: names no version" in text


def test_a_queue_that_is_stopped_is_refused_in_its_own_words(server, cluster) -> None:
    condition = {"type": "Active", "status": "False", "message": "LocalQueue is stopped"}
    queue = {"metadata": {"name": "tpus"}, "status": {"conditions": [condition]}}
    server.store.create("localqueues", NAMESPACE, queue)
    assert "platform.queue: is not active: LocalQueue is stopped" in refusal(cluster, queue="tpus")


def test_more_chips_than_the_quota_will_ever_allow_are_refused(server, cluster) -> None:
    quota = {"metadata": {"name": "team"}, "spec": {"hard": {"requests.google.com/tpu": "8"}}}
    server.store.create("resourcequotas", NAMESPACE, quota)
    text = refusal(cluster, **FOUR_HOSTS)
    assert "4 pods of 4 are more requests.google.com/tpu than the ResourceQuota team" in text
    assert "allows (8)" in text


def test_chips_that_are_in_use_are_waited_for(server, cluster, capsys) -> None:
    hard = {"requests.google.com/tpu": "16"}
    used = {"requests.google.com/tpu": "4"}
    quota = {"metadata": {"name": "team"}, "spec": {"hard": hard}, "status": {"used": used}}
    server.store.create("resourcequotas", NAMESPACE, quota)
    preflight(plan(platform=FOUR_HOSTS), cluster)
    assert "4 of 16 requests.google.com/tpu are in use; the pods will wait" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("without", "platform", "error", "words"),
    [
        ("jobset.x-k8s.io", {}, ClusterError, "this cluster knows no JobSets"),
        ("kueue.x-k8s.io", {"queue": "tpus"}, ConfigError, "this cluster has no Kueue"),
    ],
)
def test_a_cluster_without_a_controller_that_is_needed_is_told_apart(without, platform, error, words) -> None:
    with KubernetesServer(without=without) as server, pytest.raises(error, match=words):
        preflight(plan(platform=platform), Cluster(NAMESPACE, api=server.client(), patience=1.0))


@pytest.mark.parametrize("rule", RULES[:2] + RULES[4:7], ids=lambda rule: rule[1])
def test_a_right_that_is_missing_is_named(rule) -> None:
    rules = [each for each in RULES if each != rule]
    chosen = plan(platform={"service_account": "trainer", "queue": "tpus"})
    with KubernetesServer(rules) as server:
        server.store.create("serviceaccounts", NAMESPACE, {"metadata": {"name": "trainer"}})
        server.store.create("localqueues", NAMESPACE, {"metadata": {"name": "tpus"}})
        cluster = Cluster(NAMESPACE, api=server.client(), patience=1.0)
        with pytest.raises(ClusterError, match=f"may not [a-z]+ {rule[1]} in namespace kubeflow; bind it"):
            preflight_and_run(chosen, cluster)


@pytest.mark.parametrize(
    "image",
    [IMAGE, "headrace:0.1.0", "europe-docker.pkg.dev/project/headrace/runtime:1.2", "localhost:5000/a/b_c:x"],
)
def test_an_image_with_a_version_is_taken(image) -> None:
    assert image_problems(image) == []


@pytest.mark.parametrize(
    ("image", "words"),
    [
        ("headrace", "names no version"),
        ("registry.example/headrace:latest", "names no version"),
        ("Headrace:1", "is no image reference"),
        ("headrace:1 ", "is no image reference"),
        ("headrace@sha256:123", "is no image reference"),
        ("https://registry.example/headrace:1", "is no image reference"),
    ],
)
def test_an_image_that_may_be_other_code_tomorrow_is_refused(image, words) -> None:
    (problem,) = image_problems(image)
    assert words in problem.message


def test_a_tag_is_taken_with_a_warning_and_a_digest_without(capsys) -> None:
    image_problems("headrace:0.1.0")
    assert "a tag can be moved" in capsys.readouterr().err
    image_problems(IMAGE)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("text", "value"), [("4", "4"), ("500m", "0.5"), ("2Gi", "2147483648"), ("1.5G", "1500000000"), ("0", "0")]
)
def test_quantities_are_numbers(text, value) -> None:
    assert quantity(text) == Decimal(value)

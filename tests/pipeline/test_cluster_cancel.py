"""A run that is cancelled has stopped, and so has its JobSet."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from components import storage
from components.errors import ConfigError
from components.launcher import cluster as launcher_cluster
from components.launcher.cluster import Cluster
from components.launcher.job import job_name, job_set
from pipeline import cancelling
from pipeline.cancelling import cancel
from pipeline.cli import main
from pipeline.cluster import Order, make_order, submit
from pipeline.connection import Client, Connection, ServerError, connect
from tests.launcher.kubernetes_server import KubernetesServer
from tests.launcher.plans import plan
from tests.pipeline.kfp_server import KfpServer


@pytest.fixture
def server() -> Iterator[KfpServer]:
    with KfpServer().serve() as running:
        yield running


@pytest.fixture
def kubernetes(monkeypatch: pytest.MonkeyPatch) -> Iterator[KubernetesServer]:
    """A Kubernetes API, as the kubeconfig of this machine would lead to it."""
    with KubernetesServer() as running:
        monkeypatch.setattr(launcher_cluster, "_connect", running.client)
        yield running


@pytest.fixture
def no_kubernetes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without a kubeconfig."""

    def refuse() -> None:
        raise ConfigError("there is no cluster to speak to")

    monkeypatch.setattr(launcher_cluster, "_connect", refuse)


@pytest.fixture(scope="module")
def ordered() -> Order:
    link = Connection(host="http://nowhere", image="registry/headrace@sha256:00")
    return make_order("smoke", connection=link, unchecked=True)


def start(server: KfpServer, ordered: Order, root: str = "") -> tuple[Client, Connection, str]:
    link = Connection(host=server.url, pipeline_root=root)
    client = connect(link)
    return client, link, submit(client, link, ordered).run_id


def launch(kubernetes: KubernetesServer, owner: str, namespace: str = "kubeflow", task: str = "train") -> Cluster:
    """What the launcher of a run has left: its JobSet."""
    cluster = Cluster(namespace, api=kubernetes.client(), patience=5.0)
    assert cluster.create_job_set(job_set(plan(run=owner, task=task), namespace)) is not None
    return cluster


def is_there(cluster: Cluster, owner: str, task: str = "train") -> bool:
    """Whether the JobSet is there, and not on its way out."""
    found = cluster.read_job_set(job_name(owner, task))
    return found is not None and "deletionTimestamp" not in found["metadata"]


def write_manifest(folder: str, **platform: Any) -> None:
    settings = {"launcher": "jobset", "namespace": "", **platform}
    storage.write_text(f"{folder}/manifest.json", json.dumps({"exact": {"platform": settings}}))


def test_the_run_stops_first_and_then_its_jobset_is_deleted(
    server: KfpServer, kubernetes: KubernetesServer, ordered: Order, tmp_path: Path, gcs: str
) -> None:
    root = f"{gcs}/{tmp_path.name}"
    client, link, run_id = start(server, ordered, root)
    write_manifest(f"{root}/post-training/runs/{run_id}", namespace="tpu")
    cluster = launch(kubernetes, run_id, "tpu")
    other = launch(kubernetes, "another run", "tpu")
    waits: list[float] = []

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        assert is_there(cluster, run_id), "a launcher that still lives would make it again"

    done = cancel(client, link, run_id, sleep=sleep)
    assert len(waits) == 1
    assert done == cancelling.Cancelled("CANCELED", (run_id,))
    assert not is_there(cluster, run_id)
    assert is_there(other, "another run")


def test_the_jobs_of_all_trials_are_deleted_and_a_run_in_its_own_pod_has_none(
    server: KfpServer, kubernetes: KubernetesServer, ordered: Order, tmp_path: Path, gcs: str
) -> None:
    root = f"{gcs}/{tmp_path.name}"
    client, link, run_id = start(server, ordered, root)
    folder = f"{root}/post-training/runs/{run_id}/trials"
    write_manifest(f"{folder}/a")
    write_manifest(f"{folder}/b", launcher="in_pod")
    clusters = {trial: launch(kubernetes, f"{run_id}/{trial}") for trial in "ab"}
    assert cancel(client, link, run_id, sleep=lambda seconds: None).jobs == (f"{run_id}/a",)
    assert is_there(clusters["b"], f"{run_id}/b")


@pytest.mark.parametrize("task", ["tune", "train"])
def test_a_jobset_is_found_without_the_run_s_folder(
    server: KfpServer, kubernetes: KubernetesServer, ordered: Order, task: str
) -> None:
    client, link, run_id = start(server, ordered)
    cluster = launch(kubernetes, run_id, task=task)
    assert cancel(client, link, run_id, sleep=lambda seconds: None).jobs == (run_id,)
    assert not is_there(cluster, run_id, task)


def test_a_run_that_has_ended_is_not_stopped_again_but_what_is_left_of_it_is_deleted(
    server: KfpServer, kubernetes: KubernetesServer, ordered: Order
) -> None:
    server.story = [("FAILED", {})]
    client, link, run_id = start(server, ordered)
    launch(kubernetes, run_id)
    done = cancel(client, link, run_id, sleep=lambda seconds: None)
    assert (done.state, done.jobs) == ("FAILED", (run_id,))
    assert server.made("POST", "/runs/[^/]*:terminate") == []
    assert cancel(client, link, run_id, sleep=lambda seconds: None).jobs == ()


@pytest.mark.usefixtures("no_kubernetes")
def test_a_machine_without_a_cluster_stops_the_run_and_says_what_it_cannot_see(
    server: KfpServer, ordered: Order, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cancelling, "_LOOK_SECONDS", 0.01)
    _, _, run_id = start(server, ordered)
    assert main(["cancel", run_id, "--host", server.url]) == 0
    printed = capsys.readouterr()
    assert printed.out == "canceled\n"
    assert "whether it has left a JobSet in kubeflow could not be found out" in printed.err
    assert server.runs[run_id]["state"] == "CANCELED"


def test_an_unknown_run_is_told(server: KfpServer, ordered: Order) -> None:
    client, link, _ = start(server, ordered)
    with pytest.raises(ServerError, match="does not have it"):
        cancel(client, link, "00000000-0000-0000-0000-000000000000")
    with pytest.raises(ConfigError, match="is no run's id"):
        cancel(client, link, "runs/smoke")

"""A cluster for the tests of the launcher."""

from collections.abc import Iterator

import pytest

from components.launcher.cluster import Cluster
from tests.launcher.kubernetes_server import KubernetesServer

NAMESPACE = "kubeflow"


@pytest.fixture
def server() -> Iterator[KubernetesServer]:
    with KubernetesServer() as running:
        yield running


@pytest.fixture
def cluster(server: KubernetesServer) -> Cluster:
    return Cluster(NAMESPACE, api=server.client(), patience=10.0)

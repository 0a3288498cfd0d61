"""TPU types, topologies, and what a pod asks for."""

import pytest

from components.config import dump, load
from components.errors import ConfigError
from components.launcher.platform import LAUNCHER, PlatformConfig, device_problems, pod_settings, step_settings
from components.launcher.tpu import TPU_TYPES, slice_of

IMAGE = "registry.example/headrace@sha256:" + "0" * 64


def platform(**values: object) -> PlatformConfig:
    return load(PlatformConfig, values, where="platform")


def complaint(**values: object) -> str:
    with pytest.raises(ConfigError) as caught:
        platform(**values)
    return str(caught.value)


@pytest.mark.parametrize(
    ("kind", "topology", "machine", "hosts", "chips_per_host", "devices"),
    [
        # GKE's own table, row by row.
        ("v5e", "1x1", "ct5lp-hightpu-1t", 1, 1, 1),
        ("v5e", "2x2", "ct5lp-hightpu-4t", 1, 4, 4),
        ("v5e", "2x4", "ct5lp-hightpu-8t", 1, 8, 8),
        ("v5e", "4x4", "ct5lp-hightpu-4t", 4, 4, 16),
        ("v5e", "16x16", "ct5lp-hightpu-4t", 64, 4, 256),
        ("v6e", "2x4", "ct6e-standard-8t", 1, 8, 8),
        ("v6e", "4x8", "ct6e-standard-4t", 8, 4, 32),
        ("v5p", "2x2x1", "ct5p-hightpu-4t", 1, 4, 4),
        ("v5p", "2x2x2", "ct5p-hightpu-4t", 2, 4, 8),
        ("v5p", "4x4x8", "ct5p-hightpu-4t", 32, 4, 128),
        ("v4", "2x4x4", "ct4p-hightpu-4t", 8, 4, 32),
        ("v7x", "2x2x1", "tpu7x-standard-4t", 1, 4, 8),
    ],
)
def test_a_slice_is_the_machines_that_gke_makes_it_of(kind, topology, machine, hosts, chips_per_host, devices) -> None:
    found = slice_of(kind, topology)
    assert (found.machine_type, found.hosts, found.chips_per_host) == (machine, hosts, chips_per_host)
    assert found.devices == devices


@pytest.mark.parametrize("kind", TPU_TYPES)
def test_every_slice_of_the_table_has_whole_hosts(kind) -> None:
    found = TPU_TYPES[kind]
    topologies = [*found.machines, *found.topologies]
    slices = [slice_of(kind, topology) for topology in topologies]
    assert len(set(topologies)) == len(topologies)
    assert all(each.hosts * each.chips_per_host == each.chips for each in slices)
    assert all((each.hosts == 1) == (each.topology in found.machines) for each in slices)


def test_an_impossible_pair_is_refused_with_the_possible_ones() -> None:
    text = complaint(accelerator="v5e", topology="2x3")
    assert text.startswith("platform.topology: v5e has no topology 2x3; possible: 1x1, 2x2, 2x4, 4x4, 4x8, 8x8")
    assert "possible: 2x2x1, 2x2x2" in complaint(accelerator="v5p", topology="2x4")
    assert "v6e needs a topology" in complaint(accelerator="v6e")
    assert "has no meaning without a TPU" in complaint(topology="2x4")


def test_a_step_in_its_own_pod_has_one_host_and_a_machine_that_stays() -> None:
    text = complaint(accelerator="v5e", topology="4x4")
    assert "platform.launcher: v5e 4x4 is 4 hosts of 4 chips" in text
    assert "set launcher: jobset" in text
    assert "platform.spot" in complaint(accelerator="v5e", topology="2x4", spot=True)


def test_a_setting_that_nothing_would_read_is_refused() -> None:
    text = complaint(queue="tpus", max_restarts=7)
    assert "platform.queue: is read under launcher: jobset alone" in text
    assert "platform.max_restarts" in text
    text = complaint(runtime_class="gvisor")
    assert "platform.runtime_class: the pod of a step of Kubeflow cannot be given one; set launcher: jobset" in text
    assert "platform.image: must name the runtime image" in complaint(launcher="jobset")


def test_a_laptop_asks_for_nothing() -> None:
    assert load(PlatformConfig, dump(PlatformConfig())) == PlatformConfig()
    assert pod_settings(PlatformConfig()).pod_fields() == {}
    assert pod_settings(PlatformConfig()).resources == {}


def test_a_pod_takes_all_chips_of_its_host() -> None:
    settings = pod_settings(platform(accelerator="v5e", topology="2x4", memory="100Gi", cpu="60"))
    assert settings.pod_fields() == {
        "nodeSelector": {
            "cloud.google.com/gke-tpu-accelerator": "tpu-v5-lite-podslice",
            "cloud.google.com/gke-tpu-topology": "2x4",
        },
        "tolerations": [{"key": "google.com/tpu", "operator": "Exists", "effect": "NoSchedule"}],
    }
    assert settings.resources == {
        "requests": {"cpu": "60", "memory": "100Gi", "google.com/tpu": "8"},
        "limits": {"memory": "100Gi", "google.com/tpu": "8"},
    }


@pytest.mark.parametrize(
    ("topology", "used", "words"),
    [
        ("2x4", 8, None),
        ("2x4", 1, None),
        ("2x4", 16, "uses 16 devices, and v5e 2x4 has 8 devices on 1 host(s)"),
        ("4x4", 16, None),
        ("4x4", 8, "uses 8 devices, and v5e 4x4 has 16 devices on 4 host(s)"),
        ("4x4", 1, "uses 1 devices"),
    ],
)
def test_a_mesh_has_the_devices_of_its_slice(topology, used, words) -> None:
    chosen = platform(accelerator="v5e", topology=topology, launcher="jobset", image=IMAGE)
    found = device_problems(chosen, used)
    assert [words in str(problem) for problem in found] == ([] if words is None else [True])
    assert device_problems(PlatformConfig(), 8) == []


def test_the_step_of_a_jobset_is_a_small_pod_and_its_workers_are_not() -> None:
    chosen = platform(accelerator="v6e", topology="4x4", launcher="jobset", image=IMAGE, spot=True)
    assert chosen.hosts == 4
    assert step_settings(chosen) == LAUNCHER
    workers = pod_settings(chosen)
    assert workers.limits == {"google.com/tpu": "4"}
    assert workers.node_selector["cloud.google.com/gke-spot"] == "true"
    assert [toleration.key for toleration in workers.tolerations] == ["google.com/tpu", "cloud.google.com/gke-spot"]

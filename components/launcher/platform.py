"""The `platform` section of a recipe -> what the pod of a step asks Kubernetes for.

    settings = step_settings(PlatformConfig(accelerator="v5e", topology="2x4"))
    settings.node_selector     {"cloud.google.com/gke-tpu-accelerator": "tpu-v5-lite-podslice", ...}
    settings.limits            {"google.com/tpu": "8"}

Knows nothing of kfp and speaks to no cluster. A recipe for a laptop needs no `platform` at all.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field

from components.config import config
from components.errors import ConfigError, Problem
from components.launcher.tpu import TpuSlice, slice_of

TPU_RESOURCE = "google.com/tpu"
ACCELERATOR_LABEL = "cloud.google.com/gke-tpu-accelerator"
TOPOLOGY_LABEL = "cloud.google.com/gke-tpu-topology"
SPOT_LABEL = "cloud.google.com/gke-spot"

Accelerator = Literal["cpu", "v4", "v5e", "v5p", "v6e", "v7x"]

_QUANTITY = r"^$|^[0-9]+(\.[0-9]+)?(m|k|Ki|M|Mi|G|Gi|T|Ti)?$"
_LABEL = r"^$|^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"
_ACCOUNT = r"^$|^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$"

_JOBSET_ONLY = (
    *("spot", "queue", "unschedulable_minutes", "stalled_minutes", "max_restarts", "image", "namespace"),
    "runtime_class",
)
"""Fields that nothing reads under `launcher: in_pod`."""


@config
class PlatformConfig:
    """Where the steps that learn run: tune and train, one after the other, each on all of it.

    `launcher: in_pod` runs them in the steps' own pods, on one host. `launcher: jobset` makes each step a small pod
    that creates a JobSet, watches it and deletes it: for several hosts, and for `spot` machines, which Kubeflow does
    not retry when they are taken away.

    Read under `jobset` alone: `image` (the runtime image, best by digest), `namespace` (default: the step's own),
    `queue` (a Kueue LocalQueue), `unschedulable_minutes` without a node until the step fails, `stalled_minutes` without
    a sign of life until it does, and `max_restarts` after failures; machines that were taken away do not count. And
    `runtime_class`, under which the pods that train run with all their tools: `gvisor` keeps what a model wrote away
    from the node's kernel, so that such a pod may say `environment.isolation: process`.

    `cpu` and `memory` are requests of the pod that trains, as Kubernetes writes them; empty asks for nothing.
    """

    accelerator: Accelerator = "cpu"
    topology: str = ""
    launcher: Literal["in_pod", "jobset"] = "in_pod"
    cpu: Annotated[str, Field(pattern=_QUANTITY)] = ""
    memory: Annotated[str, Field(pattern=_QUANTITY)] = ""
    service_account: Annotated[str, Field(pattern=_ACCOUNT)] = ""
    image: str = ""
    namespace: Annotated[str, Field(pattern=_LABEL)] = ""
    spot: bool = False
    queue: Annotated[str, Field(pattern=_LABEL)] = ""
    unschedulable_minutes: Annotated[float, Field(gt=0)] = 30.0
    stalled_minutes: Annotated[float, Field(gt=0)] = 120.0
    max_restarts: Annotated[int, Field(ge=0)] = 3
    runtime_class: Annotated[str, Field(pattern=_ACCOUNT)] = ""

    def __post_init__(self) -> None:
        problems = _slice_problems(self) + _launcher_problems(self)
        if problems:
            raise ConfigError(problems)

    @property
    def tpu(self) -> TpuSlice | None:
        """The slice, or None where there is no TPU."""
        return None if self.accelerator == "cpu" else slice_of(self.accelerator, self.topology)

    @property
    def hosts(self) -> int:
        """Pods that train together."""
        return 1 if self.tpu is None else self.tpu.hosts


@dataclass(frozen=True, slots=True)
class Toleration:
    """A taint of nodes that a pod does not mind."""

    key: str
    operator: str = "Exists"
    effect: str = "NoSchedule"


@dataclass(frozen=True, slots=True)
class PodSettings:
    """What a pod asks for. Quantities are as Kubernetes writes them."""

    node_selector: Mapping[str, str] = dataclasses.field(default_factory=dict)
    tolerations: tuple[Toleration, ...] = ()
    requests: Mapping[str, str] = dataclasses.field(default_factory=dict)
    limits: Mapping[str, str] = dataclasses.field(default_factory=dict)
    runtime_class: str = ""

    @property
    def resources(self) -> dict[str, dict[str, str]]:
        """The `resources` of a container; nothing where nothing is asked for."""
        both = {"requests": dict(self.requests), "limits": dict(self.limits)}
        return {name: amounts for name, amounts in both.items() if amounts}

    def pod_fields(self) -> dict[str, Any]:
        """The fields of a pod's spec."""
        fields = {
            "nodeSelector": dict(self.node_selector),
            "tolerations": [dataclasses.asdict(toleration) for toleration in self.tolerations],
            "runtimeClassName": self.runtime_class,
        }
        return {name: value for name, value in fields.items() if value}


LAUNCHER = PodSettings(requests={"cpu": "250m", "memory": "512Mi"}, limits={"memory": "1Gi"})
"""The pod that watches a JobSet."""


def pod_settings(platform: PlatformConfig) -> PodSettings:
    """What each pod that trains asks for: the step's own (`in_pod`) or one of the JobSet's, all chips of its host."""
    selector: dict[str, str] = {}
    tolerations: list[Toleration] = []
    requests = {name: amount for name, amount in (("cpu", platform.cpu), ("memory", platform.memory)) if amount}
    limits = {"memory": platform.memory} if platform.memory else {}
    tpu = platform.tpu
    if tpu is not None:
        selector |= {ACCELERATOR_LABEL: tpu.accelerator, TOPOLOGY_LABEL: tpu.topology}
        tolerations.append(Toleration(TPU_RESOURCE))
        # Kubernetes wants the request of an extended resource to be its limit.
        requests[TPU_RESOURCE] = limits[TPU_RESOURCE] = str(tpu.chips_per_host)
    if platform.spot:
        selector[SPOT_LABEL] = "true"
        tolerations.append(Toleration(SPOT_LABEL))
    return PodSettings(selector, tuple(tolerations), requests, limits, platform.runtime_class)


def step_settings(platform: PlatformConfig) -> PodSettings:
    """What the pod of the Kubeflow step asks for: all that it trains with, or little where a JobSet trains."""
    return pod_settings(platform) if platform.launcher == "in_pod" else LAUNCHER


def device_problems(platform: PlatformConfig, used: int, where: str = "train.mesh") -> list[Problem]:
    """What is wrong with a training that uses so many devices of the platform. `where` is the setting that says it.

    Every host of a slice must have a part in it, and one host may have devices to spare.
    """
    tpu = platform.tpu
    if tpu is None or used == tpu.devices or (used < tpu.devices and tpu.hosts == 1):
        return []
    slice_is = f"{platform.accelerator} {tpu.topology} has {tpu.devices} devices on {tpu.hosts} host(s)"
    return [Problem(where, used, f"uses {used} devices, and {slice_is}; make the two numbers equal")]


def _slice_problems(platform: PlatformConfig) -> list[Problem]:
    if platform.accelerator == "cpu":
        message = "has no meaning without a TPU; name the accelerator, or leave topology out"
        return [Problem("platform.topology", platform.topology, message)] if platform.topology else []
    try:
        tpu = slice_of(platform.accelerator, platform.topology)
    except ConfigError as error:
        return error.problems
    if tpu.hosts > 1 and platform.launcher == "in_pod":
        message = (
            f"{platform.accelerator} {tpu.topology} is {tpu.hosts} hosts of {tpu.chips_per_host} chips, and a step of "
            "Kubeflow is one pod; set launcher: jobset, or take a topology of one host"
        )
        return [Problem("platform.launcher", platform.launcher, message)]
    return []


def _launcher_problems(platform: PlatformConfig) -> list[Problem]:
    if platform.launcher == "jobset":
        message = "must name the runtime image that the JobSet's pods run, best by digest (NAME@sha256:...)"
        return [] if platform.image else [Problem("platform.image", platform.image, message)]
    given = dataclasses.asdict(platform)
    defaults = {each.name: each.default for each in dataclasses.fields(platform)}
    return [
        Problem(f"platform.{name}", given[name], _without_effect(name))
        for name in _JOBSET_ONLY
        if given[name] != defaults[name]
    ]


def _without_effect(name: str) -> str:
    if name == "runtime_class":
        return "the pod of a step of Kubeflow cannot be given one; set launcher: jobset, whose pods can"
    if name == "spot":
        return "a step whose own machine is taken away is not retried by Kubeflow; set launcher: jobset"
    return "is read under launcher: jobset alone; set that, or leave it out"

"""A TPU type and a topology -> the slice that Google Kubernetes Engine makes of them, or an error with those it can.

Figures: GKE "Plan TPUs" (accelerators, machine types, topologies) and the Cloud TPU pages of each type (memory, cores).
Where GKE has two machines for one topology, the table holds the one with all chips on one host: 2x4 of v5e and v6e.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from components.errors import ConfigError, Problem

_NAMED = 8
"""How many topologies an error spells out."""


@dataclass(frozen=True, slots=True)
class TpuSlice:
    """Chips that are wired together, and the hosts (nodes) that they sit in.

    `accelerator` and `topology` are the values of GKE's node labels. `memory_gib` is that of one chip, and a chip is
    `devices_per_chip` devices to JAX.
    """

    accelerator: str
    topology: str
    machine_type: str
    chips: int
    hosts: int
    memory_gib: int
    devices_per_chip: int = 1

    @property
    def chips_per_host(self) -> int:
        """What a pod asks for as google.com/tpu: all of its host."""
        return self.chips // self.hosts

    @property
    def devices(self) -> int:
        """Devices that JAX sees, over all hosts."""
        return self.chips * self.devices_per_chip


@dataclass(frozen=True, slots=True)
class _Type:
    """One TPU type. `machines` are those of a single host by topology; every other topology is made of `several`."""

    accelerator: str
    machines: Mapping[str, str]
    several: str
    topologies: Sequence[str]
    memory_gib: int
    devices_per_chip: int = 1


def slice_of(kind: str, topology: str) -> TpuSlice:
    """The slice of a TPU type. Raises ConfigError for a pair that does not exist, naming those that do."""
    if kind not in TPU_TYPES:
        message = f"is no TPU type that this table knows: {', '.join(TPU_TYPES)}"
        raise ConfigError(Problem("platform.accelerator", kind, message))
    found = TPU_TYPES[kind]
    possible = [*found.machines, *found.topologies]
    if topology not in possible:
        raise ConfigError(Problem("platform.topology", topology, _no_such(kind, topology, possible)))
    machine = found.machines.get(topology, found.several)
    chips = _chips(topology)
    return TpuSlice(
        accelerator=found.accelerator,
        topology=topology,
        machine_type=machine,
        chips=chips,
        hosts=chips // _chips_of_machine(machine),
        memory_gib=found.memory_gib,
        devices_per_chip=found.devices_per_chip,
    )


def _no_such(kind: str, topology: str, possible: Sequence[str]) -> str:
    listed = ", ".join(possible[:_NAMED])
    if len(possible) > _NAMED:
        listed += f", ... up to {possible[-1]} ({len(possible)} in all)"
    if topology:
        return f"{kind} has no topology {topology}; possible: {listed}"
    return f"{kind} needs a topology, which says how many chips; possible: {listed}"


def _chips(topology: str) -> int:
    return math.prod(int(side) for side in topology.split("x"))


def _chips_of_machine(machine: str) -> int:
    """A machine type ends with its chips: ct5lp-hightpu-4t has four."""
    return int(machine.rpartition("-")[2].removesuffix("t"))


def _cubes(largest: int) -> list[str]:
    """Slices of several hosts in three dimensions: parts of a cube of 64 chips, then whole cubes, up to `largest`."""
    sides = range(4, 4 * largest + 1, 4)
    whole = [
        sizes
        for sizes in itertools.combinations_with_replacement(sides, 3)
        if math.prod(side // 4 for side in sizes) <= largest
    ]
    by_size = sorted(whole, key=lambda sizes: (math.prod(sizes), sizes))
    return ["2x2x2", "2x2x4", "2x4x4", *("x".join(str(side) for side in sizes) for sizes in by_size)]


_FLAT = ("4x4", "4x8", "8x8", "8x16", "16x16")

TPU_TYPES: Mapping[str, _Type] = {
    "v4": _Type("tpu-v4-podslice", {"2x2x1": "ct4p-hightpu-4t"}, "ct4p-hightpu-4t", _cubes(64), memory_gib=32),
    "v5e": _Type(
        "tpu-v5-lite-podslice",
        {"1x1": "ct5lp-hightpu-1t", "2x2": "ct5lp-hightpu-4t", "2x4": "ct5lp-hightpu-8t"},
        "ct5lp-hightpu-4t",
        _FLAT,
        memory_gib=16,
    ),
    "v5p": _Type("tpu-v5p-slice", {"2x2x1": "ct5p-hightpu-4t"}, "ct5p-hightpu-4t", _cubes(96), memory_gib=95),
    "v6e": _Type(
        "tpu-v6e-slice",
        {"1x1": "ct6e-standard-1t", "2x2": "ct6e-standard-4t", "2x4": "ct6e-standard-8t"},
        "ct6e-standard-4t",
        _FLAT,
        memory_gib=32,
    ),
    "v7x": _Type(
        "tpu7x", {"2x2x1": "tpu7x-standard-4t"}, "tpu7x-standard-4t", _cubes(144), memory_gib=192, devices_per_chip=2
    ),
}
"""By the short name that a recipe gives."""

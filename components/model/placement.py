"""Numbers of devices -> where the trainer's and the engine's arrays live.

Without a placement both sides share the default device, and one frozen base. With one, each side has a mesh of its own
devices with one axis, `data`: the weights are whole on every device, and what comes in rows (micro-batches, slots of
the cache) is split over it. The compiler derives the rest from where the arrays are, so the programs are the same.
"""

from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from pydantic import Field

from components.config import config
from components.errors import ConfigError, Problem

T = TypeVar("T")

DATA = "data"


@config
class PlacementConfig:
    """Numbers of devices of each side: the first `trainer` devices and the `engine` ones that follow are disjoint."""

    trainer: Annotated[int, Field(ge=1)]
    engine: Annotated[int, Field(ge=1)]


@dataclass(frozen=True, slots=True)
class Placement:
    """Where one side lives. `mesh` None is the default device, on which everything already is."""

    mesh: Mesh | None = None

    @property
    def devices(self) -> int:
        """How many devices this side has."""
        return 1 if self.mesh is None else self.mesh.size

    def whole(self, tree: T) -> T:
        """The arrays of `tree`, each whole on every device of this side; what already is stays where it is."""
        return self._put(tree, PartitionSpec())

    def split(self, tree: T) -> T:
        """The arrays of `tree`: those of two axes or more split along the first, the flat ones whole.

        That is a micro-batch, whose flat arrays point into all of its rows, and a cache, whose first axis are slots.
        """
        if self.mesh is None:
            return tree
        return jax.tree.map(lambda leaf: self._put(leaf, PartitionSpec(DATA if leaf.ndim > 1 else None)), tree)

    def check_rows(self, rows: int, where: str) -> None:
        """Raise ConfigError, naming both numbers, when `rows`, of the setting `where`, cannot be split evenly."""
        if rows % self.devices:
            raise ConfigError(Problem(where, rows, f"must be a multiple of the {self.devices} devices that share them"))

    def _put(self, tree: T, axes: PartitionSpec) -> T:
        return tree if self.mesh is None else jax.device_put(tree, NamedSharding(self.mesh, axes))


HERE = Placement()


@dataclass(frozen=True, slots=True)
class Placements:
    """Both sides."""

    trainer: Placement = HERE
    engine: Placement = HERE


def make_placements(settings: PlacementConfig | None) -> Placements:
    """Two disjoint meshes over the devices that there are, or the default device for both.

    Raises ConfigError with both numbers when there are too few devices.
    """
    if settings is None:
        return Placements()
    devices, wanted = jax.devices(), settings.trainer + settings.engine
    if wanted > len(devices):
        message = (
            f"takes {settings.trainer} + {settings.engine} = {wanted} devices, and there are {len(devices)}; "
            "lower the numbers, or leave placement out for one device that both share"
        )
        raise ConfigError(Problem("placement", {"trainer": settings.trainer, "engine": settings.engine}, message))
    return Placements(trainer=_on(devices[: settings.trainer]), engine=_on(devices[settings.trainer : wanted]))


def placement_of(tree: Any) -> Placement:
    """Where the arrays of `tree` live, all of them on one side."""
    first = jax.tree.leaves(tree)[0]
    meshed = isinstance(first, jax.Array) and isinstance(first.sharding, NamedSharding)
    return Placement(first.sharding.mesh) if meshed else HERE


def _on(devices: list[jax.Device]) -> Placement:
    return Placement(Mesh(devices, (DATA,)))

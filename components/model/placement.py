"""Numbers of devices -> where the trainer's and the engine's arrays live.

Without a mesh both sides share the default device, and one frozen base. With one they share its devices, and still one
base, split over them (`sharding.py` says how). With a placement each side has a mesh of devices of its own. The
compiler derives the rest from where the arrays are, so the programs are the same.
"""

from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

import jax
import numpy as np
from jax.sharding import AbstractMesh, Mesh, NamedSharding, Sharding
from pydantic import Field

from components.config import config
from components.errors import ConfigError, Problem
from components.model.lockstep import program
from components.model.sharding import DATA, FSDP, MESH_AXES, ROWS, Axes, logical_axes, partition

T = TypeVar("T")


@config
class MeshConfig:
    """Numbers of devices along each axis of a mesh.

    `data`: copies of the weights, each with its share of the rows. `fsdp`: a share of the weights and of the rows.
    `tensor`: a share of the heads, hidden units and vocabulary.
    """

    data: Annotated[int, Field(ge=1)] = 1
    fsdp: Annotated[int, Field(ge=1)] = 1
    tensor: Annotated[int, Field(ge=1)] = 1

    @property
    def devices(self) -> int:
        """How many devices the mesh has."""
        return self.data * self.fsdp * self.tensor

    @property
    def shape(self) -> AbstractMesh:
        """The mesh without its devices: enough to tell how arrays are split."""
        return AbstractMesh((self.data, self.fsdp, self.tensor), MESH_AXES)


@config
class PlacementConfig:
    """A mesh for each side: the trainer's is of the first devices, the engine's of those that follow."""

    trainer: MeshConfig
    engine: MeshConfig


@dataclass(frozen=True, slots=True)
class Placement:
    """Where one side lives. `mesh` None is the default device, on which everything already is."""

    mesh: Mesh | None = None

    @property
    def devices(self) -> int:
        """How many devices this side has."""
        return 1 if self.mesh is None else self.mesh.size

    @property
    def shares(self) -> int:
        """Into how many shares rows are split."""
        return 1 if self.mesh is None else self.mesh.shape[DATA] * self.mesh.shape[FSDP]

    def weights(self, tree: T, prefix: str = "") -> T:
        """A base, an adapter, a train state or one array of theirs, split by the names of its arrays below `prefix`.

        What already is where it belongs stays there; an array of the host goes to each device in part.
        """

        def place(path: tuple[Any, ...], leaf: Any) -> Any:
            name = f"{prefix}.{jax.tree_util.keystr(path, simple=True, separator='.')}".strip(".")
            return self.put(leaf, logical_axes(name, leaf.ndim))

        return tree if self.mesh is None else jax.tree.map_with_path(place, tree)

    def whole(self, tree: T) -> T:
        """The arrays of `tree`, each whole on every device of this side."""
        return jax.tree.map(lambda leaf: self.put(leaf, (None,) * leaf.ndim), tree)

    def split(self, tree: T) -> T:
        """The arrays of a micro-batch: its rows split, the flat ones, which point into all of its rows, whole."""
        return jax.tree.map(lambda leaf: self.put(leaf, (ROWS, None) if leaf.ndim > 1 else (None,)), tree)

    def put(self, array: Any, axes: Axes) -> Any:
        """One array, split as these logical axes say."""
        sharding = self.sharding(axes, array.shape)
        return array if sharding is None else _put(array, sharding)

    def sharding(self, axes: Axes, shape: tuple[int, ...]) -> NamedSharding | None:
        """Where an array of this shape belongs; None for the default device."""
        return None if self.mesh is None else NamedSharding(self.mesh, partition(self.mesh, axes, shape))

    def check_rows(self, rows: int, where: str) -> None:
        """Raise ConfigError, naming both numbers, when `rows`, of the setting `where`, cannot be split evenly."""
        if rows % self.shares:
            message = f"must be a multiple of data x fsdp = {self.shares}, the shares that rows are split into"
            raise ConfigError(Problem(where, rows, message))


HERE = Placement()


@dataclass(frozen=True, slots=True)
class Placements:
    """Both sides; they are equal where both share the devices."""

    trainer: Placement = HERE
    engine: Placement = HERE


BOTH_HERE = Placements()


def make_placements(mesh: MeshConfig | None = None, placement: PlacementConfig | None = None) -> Placements:
    """One mesh that both sides share, or two disjoint ones, over the first devices; or the default device for both.

    Raises ConfigError with both numbers when there are too few devices, or when both settings are given.
    """
    if placement is not None:
        if mesh is not None:
            message = "placement gives each side a mesh of its own; leave out one of both"
            raise ConfigError(Problem("mesh", mesh, message))
        trainer, engine = placement.trainer.devices, placement.engine.devices
        devices = _devices("placement", f"{trainer} + {engine}", trainer + engine)
        return Placements(_on(devices[:trainer], placement.trainer), _on(devices[trainer:], placement.engine))
    if mesh is None:
        return BOTH_HERE
    shared = _on(_devices("mesh", f"{mesh.data} x {mesh.fsdp} x {mesh.tensor}", mesh.devices), mesh)
    return Placements(shared, shared)


def put_beside(array: Any, other: jax.Array) -> Any:
    """An array of this process where `other` is, if that is spread over hosts."""
    return array if other.is_fully_addressable else _put(array, other.sharding)


@program
def _put(array: Any, sharding: Sharding) -> jax.Array:
    return jax.device_put(array, sharding)


def placement_of(tree: Any) -> Placement:
    """Where the arrays of `tree` live, all of them on one side."""
    first = jax.tree.leaves(tree)[0]
    meshed = isinstance(first, jax.Array) and isinstance(first.sharding, NamedSharding)
    return Placement(first.sharding.mesh) if meshed else HERE


def _devices(where: str, how: str, wanted: int) -> list[jax.Device]:
    there = jax.devices()
    if wanted > len(there):
        message = (
            f"takes {how} = {wanted} devices, and there are {len(there)}; lower the numbers, or leave {where} out for "
            "one device that trainer and engine share"
        )
        raise ConfigError(Problem(where, wanted, message))
    return there[:wanted]


def _on(devices: list[jax.Device], shape: MeshConfig) -> Placement:
    return Placement(Mesh(np.array(devices).reshape(shape.data, shape.fsdp, shape.tensor), MESH_AXES))

"""Names of arrays -> over which axes of a mesh each of their axes is split.

A mesh has three axes. `data`: copies of the model, each with its share of the rows. `fsdp`: rows and weights are both
split, and a layer's weights come together when it is computed (arXiv:1910.02054). `tensor`: heads, hidden units and
vocabulary are split (arXiv:1909.08053). The compiler derives every exchange from where arrays are; `constrain` says
where activations are, so that it moves weights rather than rows.

An axis that the devices do not divide evenly is whole on each of them: slower, and right.
"""

import math
from collections.abc import Mapping
from typing import Any, TypeVar

import jax
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array

T = TypeVar("T")

DATA, FSDP, TENSOR = "data", "fsdp", "tensor"
MESH_AXES = (DATA, FSDP, TENSOR)

ROWS = "rows"
"""The logical axis of what comes in rows: sequences of a micro-batch, slots of a cache, tokens laid flat."""
MESH_AXES_OF: Mapping[str, tuple[str, ...]] = {
    ROWS: (DATA, FSDP),
    "embed": (FSDP,),
    "heads": (TENSOR,),
    "hidden": (TENSOR,),
    "vocab": (TENSOR,),
}
Axes = tuple[str | None, ...]

_INTO_OUT_OF: Mapping[str, Axes] = {
    "q_proj": ("embed", "heads"),
    "k_proj": ("embed", "heads"),
    "v_proj": ("embed", "heads"),
    "o_proj": ("heads", "embed"),
    "gate_proj": ("embed", "hidden"),
    "up_proj": ("embed", "hidden"),
    "down_proj": ("hidden", "embed"),
    "projection": ("embed", None),
    "gate": ("embed", None),
}
_ARRAYS: Mapping[str, Axes] = {
    "embedding": ("vocab", "embed"),
    "head": ("vocab", "embed"),
    "table": ("vocab", None),
    "gate_up": (None, "embed", "hidden"),
    "down": (None, "hidden", "embed"),
}
_PARTS = ("codes", "scales")
"""What a quantised matrix is made of."""


def logical_axes(path: str, ndim: int) -> Axes:
    """The logical axes of an array of a base, an adapter or an optimizer's state, by its dotted path there.

    What is not known by its name, and norms, are whole.
    """
    names = [name for name in path.split(".") if name not in _PARTS]
    module, field = ["", *names][-2:]
    into, out_of = _INTO_OUT_OF.get(module, (None, None))
    axes = {"weight": (into, out_of), "bias": (out_of,), "a": (into, None), "b": (None, out_of)}.get(field)
    axes = _ARRAYS.get(field, (None,) * ndim) if axes is None or module not in _INTO_OUT_OF else axes
    if ndim == len(axes) + 1:
        # nf4 keeps inputs as blocks and places in a block.
        axes = (*axes[:-1], None, axes[-1])
    return axes if len(axes) == ndim else (None,) * ndim


def partition(mesh: Mesh | AbstractMesh, axes: Axes, shape: tuple[int, ...]) -> PartitionSpec:
    """The mesh axes over which an array of `shape` with these logical axes is split."""
    spec: list[str | tuple[str, ...] | None] = []
    for axis, size in zip(axes, shape, strict=True):
        over = MESH_AXES_OF[axis] if axis is not None else ()
        over = tuple(each for each in over if mesh.shape[each] > 1)
        even = size % math.prod(mesh.shape[each] for each in over) == 0
        spec.append(None if not over or not even else over if len(over) > 1 else over[0])
    return PartitionSpec(*spec)


def constrain(x: Array, *axes: str | None) -> Array:
    """`x`, split as these logical axes say over the mesh that it is computed on; without one, `x`."""
    return _on(jax.typeof(x).sharding.mesh, x, axes)


def whole_beside(other: Any, tree: T) -> T:
    """The arrays of `tree`, each whole on every device of the mesh that the arrays of `other` are on.

    What a program gives to its caller must be so where a mesh spans hosts, as each can read only what it holds.
    """
    mesh = jax.typeof(jax.tree.leaves(other)[0]).sharding.mesh
    return jax.tree.map(lambda leaf: _on(mesh, leaf, (None,) * leaf.ndim), tree)


def _on(mesh: AbstractMesh, x: Array, axes: Axes) -> Array:
    if mesh.empty or mesh.size == 1:
        return x
    return jax.lax.with_sharding_constraint(x, NamedSharding(mesh, partition(mesh, axes, x.shape)))


def shares(array: Array, axis: str) -> int:
    """Into how many parts the mesh that `array` is computed on splits its first axis, which has this logical name."""
    mesh = jax.typeof(array).sharding.mesh
    if mesh.empty:
        return 1
    return parts(mesh, (axis, *(None,) * (array.ndim - 1)), array.shape)


def parts(mesh: Mesh | AbstractMesh, axes: Axes, shape: tuple[int, ...]) -> int:
    """Into how many parts a mesh splits an array of `shape` with these logical axes."""
    over = (each for each in partition(mesh, axes, shape) if each is not None)
    return math.prod(mesh.shape[name] for each in over for name in ((each,) if isinstance(each, str) else each))

"""Which axes of an array are split over which axes of a mesh; what needs eight devices is in `on_a_mesh.py`."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AbstractMesh, PartitionSpec

from components.model.sharding import constrain, logical_axes, partition
from tests.eight_devices import assert_passes_on_eight_devices

MESH = AbstractMesh((1, 2, 4), ("data", "fsdp", "tensor"))


@pytest.mark.long
def test_a_model_on_a_mesh_of_eight_devices_does_what_one_device_does():
    assert_passes_on_eight_devices("tests/model/on_a_mesh.py")


@pytest.mark.parametrize(
    ("path", "ndim", "axes"),
    [
        ("embedding", 2, ("vocab", "embed")),
        ("head.codes", 2, ("vocab", "embed")),
        ("layers.3.q_proj.weight", 2, ("embed", "heads")),
        ("layers.3.q_proj.bias", 1, ("heads",)),
        ("layers.3.o_proj.weight.scales", 2, ("heads", "embed")),
        ("layers.3.down_proj.weight.codes", 3, ("hidden", None, "embed")),
        ("layers.3.experts.gate_up", 3, (None, "embed", "hidden")),
        ("layers.3.experts.down.codes", 4, (None, "hidden", None, "embed")),
        ("layers.3.experts.router", 2, (None, None)),
        ("layers.3.attention_norm", 1, (None,)),
        ("layers.3.down_proj.a", 2, ("hidden", None)),
        ("optimizer.0.mu.layers.3.down_proj.b", 2, (None, "embed")),
        ("optimizer.0.count", 0, ()),
    ],
)
def test_an_array_is_known_by_its_name(path, ndim, axes):
    assert logical_axes(path, ndim) == axes


def test_moments_of_the_optimizer_are_known_by_the_pairs_that_they_belong_to():
    state = optax.adam(1e-3).init({"layers": [{"q_proj": {"a": jnp.ones((4, 2))}}]})
    leaves = jax.tree.leaves_with_path(state)
    found = [logical_axes(jax.tree_util.keystr(path, simple=True, separator="."), leaf.ndim) for path, leaf in leaves]
    assert sorted(found) == [(), ("embed", None), ("embed", None)]


@pytest.mark.parametrize(
    ("axes", "shape", "spec"),
    [
        (("embed", "heads"), (32, 64), ("fsdp", "tensor")),
        (("embed", "heads"), (32, 6), ("fsdp", None)),
        (("vocab", "embed"), (61, 33), (None, None)),
        (("rows", None), (8, 5), ("fsdp", None)),
        ((), (), ()),
    ],
)
def test_an_axis_is_split_where_the_devices_divide_it_and_whole_elsewhere(axes, shape, spec):
    assert partition(MESH, axes, shape) == PartitionSpec(*spec)


def test_rows_are_split_over_copies_and_shares_alike():
    mesh = AbstractMesh((2, 2, 2), ("data", "fsdp", "tensor"))
    assert partition(mesh, ("rows", None), (8, 3)) == PartitionSpec(("data", "fsdp"), None)
    assert partition(mesh, ("rows", None), (6, 3)) == PartitionSpec(None, None)


def test_without_a_mesh_nothing_is_constrained():
    program = jax.make_jaxpr(lambda x: constrain(x, "rows", None) * 2)(np.ones((4, 2), np.float32))
    assert "sharding_constraint" not in str(program)

"""Where arrays live; what needs more than one device is claimed in `tests/training/on_eight_devices.py`."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh

from components.config import load
from components.errors import ConfigError
from components.model.placement import (
    HERE,
    MeshConfig,
    Placement,
    PlacementConfig,
    Placements,
    make_placements,
    placement_of,
)

ONE = Placement(Mesh(np.array(jax.devices()[:1]).reshape(1, 1, 1), ("data", "fsdp", "tensor")))


def test_without_a_placement_nothing_moves_and_both_sides_share_it():
    tree = {"weight": jnp.ones((3, 2)), "host": np.ones(3)}
    assert make_placements(None) == Placements(HERE, HERE)
    for placed in (HERE.whole(tree), HERE.split(tree), HERE.weights(tree)):
        assert all(placed[name] is tree[name] for name in tree)
    assert HERE.devices == 1


def test_too_few_devices_are_told_with_both_numbers():
    there = len(jax.devices())
    with pytest.raises(
        ConfigError, match=rf"placement: takes 4 \+ {there} = {4 + there} devices, and there are {there}"
    ):
        make_placements(placement=PlacementConfig(trainer=MeshConfig(tensor=4), engine=MeshConfig(fsdp=there)))
    with pytest.raises(ConfigError, match=rf"mesh: takes 1 x 2 x {there} = {2 * there} devices, and there are {there}"):
        make_placements(MeshConfig(fsdp=2, tensor=there))


def test_a_mesh_is_shared_by_both_sides_and_stands_beside_no_placement():
    sides = make_placements(MeshConfig())
    assert sides.trainer == sides.engine
    assert sides.trainer.devices == 1
    with pytest.raises(ConfigError, match="mesh: placement gives each side a mesh of its own"):
        make_placements(MeshConfig(), PlacementConfig(trainer=MeshConfig(), engine=MeshConfig()))


@pytest.mark.parametrize(
    "values", [{"trainer": {}}, {"trainer": {"data": 0}, "engine": {}}, {"trainer": 4, "engine": 4}]
)
def test_a_placement_is_a_mesh_for_each_side(values):
    with pytest.raises(ConfigError):
        load(PlacementConfig, values, where="placement")


def test_rows_that_cannot_be_split_evenly_are_told_with_both_numbers():
    class Four(Placement):
        shares = 4

    Four().check_rows(8, "packing.rows")
    with pytest.raises(ConfigError, match=r"packing\.rows: must be a multiple of data x fsdp = 4.* \(got 6\)"):
        Four().check_rows(6, "packing.rows")


def test_where_arrays_live_is_read_off_them():
    assert placement_of({"host": np.ones(3)}) == HERE
    assert placement_of(jnp.ones(3)) == HERE
    assert placement_of(ONE.whole({"weight": jnp.ones(3)})) == ONE


def test_what_is_already_there_is_not_copied():
    placed = ONE.weights({"embedding": jnp.ones((3, 2))})
    again = ONE.weights(placed)
    assert again["embedding"].unsafe_buffer_pointer() == placed["embedding"].unsafe_buffer_pointer()

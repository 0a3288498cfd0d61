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
    Placement,
    PlacementConfig,
    Placements,
    make_placements,
    placement_of,
)

ONE = Placement(Mesh(jax.devices()[:1], ("data",)))


def test_without_a_placement_nothing_moves_and_both_sides_share_it():
    tree = {"weight": jnp.ones((3, 2)), "host": np.ones(3)}
    assert make_placements(None) == Placements(HERE, HERE)
    assert HERE.whole(tree) is tree
    assert HERE.split(tree) is tree
    assert HERE.devices == 1


def test_too_few_devices_are_told_with_both_numbers():
    there = len(jax.devices())
    with pytest.raises(
        ConfigError, match=rf"placement: takes 4 \+ {there} = {4 + there} devices, and there are {there}"
    ):
        make_placements(PlacementConfig(trainer=4, engine=there))


@pytest.mark.parametrize("values", [{"trainer": 4}, {"trainer": 0, "engine": 4}, {"trainer": 4, "engine": 4, "x": 1}])
def test_a_placement_says_both_numbers_and_nothing_else(values):
    with pytest.raises(ConfigError):
        load(PlacementConfig, values, where="placement")


def test_rows_that_cannot_be_split_evenly_are_told_with_both_numbers():
    class Four(Placement):
        devices = 4

    Four().check_rows(8, "packing.rows")
    with pytest.raises(ConfigError, match=r"packing\.rows: must be a multiple of the 4 devices .* \(got 6\)"):
        Four().check_rows(6, "packing.rows")


def test_rows_are_split_and_flat_arrays_are_whole():
    placed = ONE.split({"rows": jnp.ones((4, 3)), "flat": np.ones(5)})
    assert placed["rows"].sharding.spec == jax.P("data")
    assert placed["flat"].sharding.is_fully_replicated


def test_where_arrays_live_is_read_off_them():
    assert placement_of({"host": np.ones(3)}) == HERE
    assert placement_of(jnp.ones(3)) == HERE
    assert placement_of(ONE.whole({"weight": jnp.ones(3)})) == ONE


def test_what_is_already_there_is_not_copied():
    placed = ONE.whole(jnp.ones(3))
    assert ONE.whole(placed).unsafe_buffer_pointer() == placed.unsafe_buffer_pointer()

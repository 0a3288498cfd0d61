"""Trainer and engine on two disjoint sub-meshes, or on one mesh, in a process that sees eight devices."""

import pytest

from tests.eight_devices import assert_passes_on_eight_devices


@pytest.mark.long
def test_trainer_and_engine_on_several_devices_do_what_one_device_does():
    assert_passes_on_eight_devices("tests/training/on_eight_devices.py")

"""What is held is seen, and what is given back is no longer."""

import numpy as np

from components.telemetry.memory import resident_bytes


def test_resident_memory_grows_with_what_is_held_and_shrinks_after_it():
    before = resident_bytes()
    held = np.ones(64 * 2**20, np.uint8)
    grown = resident_bytes() - before
    assert 60 * 2**20 < grown < 80 * 2**20
    del held
    assert resident_bytes() < before + 16 * 2**20

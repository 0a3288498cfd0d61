"""While episodes run, the collector looks seldom; afterwards it is as it was."""

import gc

import pytest

from components.rollout.collector import THRESHOLDS, rare_collections


def test_the_collectors_settings_come_back_even_after_an_error():
    before = gc.get_threshold(), gc.get_freeze_count()

    def run():
        with rare_collections():
            assert gc.get_threshold() == THRESHOLDS
            assert gc.get_freeze_count() > 1000
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run()
    assert (gc.get_threshold(), gc.get_freeze_count()) == before

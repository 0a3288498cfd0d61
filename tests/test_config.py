"""A config cannot lie: every fault is named, all of them at once."""

from typing import Annotated

import pytest
from pydantic import Field

from components.config import config, dump, load
from components.errors import ConfigError


@config
class Inner:
    rank: Annotated[int, Field(ge=1)] = 16


@config
class Outer:
    inner: Inner = Inner()
    rate: float = 1e-4
    names: tuple[str, ...] = ()


def test_a_config_survives_a_round_trip_with_every_default_written_out():
    value = load(Outer, {"names": ["a"], "rate": 1})
    assert dump(value) == {"inner": {"rank": 16}, "rate": 1.0, "names": ["a"]}
    assert load(Outer, dump(value)) == value


def test_all_faults_are_reported_together_each_with_its_place():
    with pytest.raises(ConfigError) as caught:
        load(Outer, {"inner": {"rnk": 4, "rank": 0}, "rate": "fast"}, where="train")
    faults = {problem.where: problem.message for problem in caught.value.problems}
    assert set(faults) == {"train.inner.rnk", "train.inner.rank", "train.rate"}
    assert "did you mean rank?" in faults["train.inner.rnk"]


@pytest.mark.parametrize("value", ["3", 3.5, True, None])
def test_a_value_of_another_type_is_refused_and_never_converted(value):
    with pytest.raises(ConfigError, match="rank"):
        load(Inner, {"rank": value})

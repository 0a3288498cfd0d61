"""A config cannot lie: every fault is named, all of them at once."""

from enum import StrEnum
from typing import Annotated, Literal

import pytest
from pydantic import Field

from components.config import config, dump, load
from components.errors import ConfigError, Problem


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


class Colour(StrEnum):
    RED = "red"


@config
class Section:
    low: int = 0
    high: Annotated[int, Field(ge=1)] | Literal["auto"] = 1
    colour: Colour = Colour.RED

    def __post_init__(self) -> None:
        if self.high != "auto" and self.low > self.high:
            raise ConfigError(Problem("low", self.low, "is above high"))


@config
class Whole:
    first: Section = Section()
    second: tuple[Section, ...] = ()
    rate: float = 1.0


def test_what_a_section_refuses_is_placed_by_its_whole_path_and_hides_no_other_fault():
    values = {"first": {"low": 3}, "second": [{}, {"low": 2}, {"high": "some"}, {"hihg": 1}], "rate": float("inf")}
    with pytest.raises(ConfigError) as caught:
        load(Whole, values, where="train")
    assert str(caught.value).splitlines() == [
        "train.first.low: is above high (got 3)",
        "train.second.1.low: is above high (got 2)",
        "train.second.2.high: Input should be a valid integer, or: Input should be 'auto' (got 'some')",
        "train.second.3.hihg: unknown key; did you mean high? (got 1)",
        "train.rate: Input should be a finite number (got 'inf')",
    ]


def test_a_section_that_is_refused_is_shown_as_the_file_has_it_defaults_and_all():
    @config
    class Either:
        inner: Inner | None = None

        def __post_init__(self) -> None:
            raise ConfigError(Problem("tune.inner", self.inner, "changes nothing"))

    with pytest.raises(ConfigError, match=r"^tune\.inner: changes nothing \(got \{rank: 16\}\)$"):
        load(Either, {"inner": {"rank": 16}}, where="tune")


def test_a_section_that_names_itself_is_not_named_twice():
    @config
    class Inside:
        def __post_init__(self) -> None:
            raise ConfigError(Problem("tune.inside.key", None, "is wrong"))

    @config
    class Tune:
        inside: Inside

    with pytest.raises(ConfigError, match=r"^tune\.inside\.key: is wrong \(got nothing\)$"):
        load(Tune, {"inside": {}}, where="tune")


def test_made_in_python_it_is_checked_alike_and_shown_as_a_recipe_has_it():
    with pytest.raises(ConfigError, match=r"^low: is above high \(got 3\)$"):
        Section(low=3)
    with pytest.raises(ConfigError, match=r"^low: Input should be a valid integer \(got 1\.5\)$"):
        Section(low=1.5)
    shown = str(Problem("first", {"section": Section(low=1), "colours": (Colour.RED,), "on": True}, "is odd"))
    assert shown == "first: is odd (got {section: {low: 1}, colours: ['red'], on: true})"

"""Sizes, shorter copies and short looks take time by what was asked for, never by what was handed over."""

import pytest

from components.environments.sizes import characters_in, encodable, short_repr, shortened


def test_every_text_counts_its_characters_and_every_value_one_more():
    assert characters_in("abc", 100) == 4
    assert characters_in({"ab": ["c", 1, None]}, 100) == 1 + 3 + 1 + 2 + 1 + 1


def test_counting_stops_at_enough_even_in_a_list_that_holds_itself():
    endless: list = []
    endless.append(endless)
    assert characters_in(endless, 50) == 50
    assert characters_in([0] * 1_000_000, 50) > 50


@pytest.mark.parametrize("value", [{"a": [1, "bc"], "d": None}, ["x"], "text", 7])
def test_a_value_that_fits_is_not_shortened(value):
    assert shortened(value, 100) == value


def test_texts_are_cut_and_items_left_out():
    assert shortened({"a": "x" * 100, "b": 1}, 10) == {"a": "x" * 8}
    assert len(shortened([0] * 1000, 10)) == 9
    assert shortened(b"x" * 100, 10) == b"x" * 10


class Broken:
    def __repr__(self) -> str:
        raise ValueError


ODD = {
    "long text": "x" * 10_000,
    "long list": [1] * 10_000,
    "huge int": 10**5000,
    "huge int in a list": [10**5000],
    "no repr": Broken(),
    "no repr inside": {1: Broken()},
    "surrogate": "\ud800",
    "large dict": dict.fromkeys(range(10_000)),
    "large set": set(range(10_000)),
}


@pytest.mark.parametrize("name", ODD)
def test_a_look_at_anything_is_short_and_encodable_and_never_raises(name):
    seen = short_repr(ODD[name])
    assert 0 < len(seen) <= 200
    seen.encode()


def test_a_lone_surrogate_becomes_a_question_mark_and_other_texts_stay():
    assert encodable("é\ud800") == "é?"
    assert encodable("Zürich 😀") == "Zürich 😀"

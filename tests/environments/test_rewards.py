"""Rewards become plain floats or are refused by name. Case RW03."""

import json
from fractions import Fraction

import jax.numpy as jnp
import numpy as np
import pytest

from components.environments.rewards import Grade, as_reward, as_reward_parts, as_reward_reasons
from components.errors import GraderFailedError


@pytest.mark.parametrize(
    ("value", "number"),
    [
        (np.bool_(True), 1.0),
        (np.float32(0.5), 0.5),
        (np.int64(1), 1.0),
        (True, 1.0),
        (False, 0.0),
        (jnp.array(1.0), 1.0),
        (jnp.array([1.0], jnp.bfloat16), 1.0),
        (np.array([1.0]), 1.0),
        (np.array([[2]]), 2.0),
        (Fraction(1, 4), 0.25),
        (-3, -3.0),
    ],
)
def test_numbers_of_every_kind_become_python_floats(value, number):
    reward = as_reward(value, "grade")
    assert type(reward) is float
    assert reward == number
    assert json.loads(json.dumps(reward)) == number


@pytest.mark.parametrize(
    "value",
    [
        "1.0",
        float("inf"),
        float("nan"),
        np.float32("nan"),
        10**400,
        None,
        [1.0],
        np.array([1.0, 2.0]),
        np.array([]),
        1j,
    ],
)
def test_what_is_no_finite_number_is_refused_with_its_place(value):
    with pytest.raises(GraderFailedError, match="grade of sample 7"):
        as_reward(value, "grade of sample 7")


def test_named_parts_keep_their_names_and_a_whole_reward_is_one_part():
    assert as_reward_parts({"format": True, "answer": np.float32(0.5)}, "grade") == {"format": 1.0, "answer": 0.5}
    assert as_reward_parts(1, "grade") == {"reward": 1.0}


def test_a_bad_part_is_named():
    with pytest.raises(GraderFailedError, match="grade, part answer"):
        as_reward_parts({"format": 1.0, "answer": "yes"}, "grade")
    with pytest.raises(GraderFailedError, match="at least one part"):
        as_reward_parts({}, "grade")
    with pytest.raises(GraderFailedError, match="name must be text"):
        as_reward_parts({1: 1.0}, "grade")


def test_a_grade_is_a_reward_whose_reason_is_kept_beside_it():
    parts = {"answer": Grade(np.float32(1), "72 is 72"), "format": 0.5, "tool": Grade(0.0)}
    assert as_reward_parts(parts, "grade") == {"answer": 1.0, "format": 0.5, "tool": 0.0}
    assert as_reward_reasons(parts, "grade") == {"answer": "72 is 72"}
    assert as_reward_parts(Grade(True, "x"), "grade") == {"reward": 1.0}
    assert as_reward_reasons(Grade(1.0, "half \ud800 and " + "x" * 2000), "grade")["reward"].startswith("half ? and xx")
    assert len(as_reward_reasons(Grade(1.0, "x" * 2000), "grade")["reward"]) < 1100


def test_a_grade_is_refused_for_what_is_in_it():
    with pytest.raises(GraderFailedError, match="must be finite"):
        as_reward_parts(Grade(float("nan"), "x"), "grade")
    untold = Grade(1.0)
    object.__setattr__(untold, "reason", 5)
    with pytest.raises(GraderFailedError, match="reason must be text"):
        as_reward_reasons({"a": untold}, "grade")

import random

import pytest

from components.telemetry.latency import BOUNDS, histogram, latency_numbers, merged, quantile
from components.telemetry.timeline import REWARD, STEP
from components.telemetry.tool_calls import environment_numbers, tool_numbers


def test_each_tool_has_its_calls_errors_and_quantiles():
    calls = [("search", "ok", seconds / 100) for seconds in range(1, 100)] + [("search", "timeout", 5.0)]
    told = tool_numbers([*calls, ("sql", "raised", 0.5)])
    assert told["search"] == {
        "calls": 100,
        "errors": {"timeout": 1},
        "p50": 0.5,
        "p95": 0.95,
        "p99": 0.99,
        "max": 5.0,
        "seconds": pytest.approx(54.5),
        # 0.01 | 0.02 | to 0.05 | to 0.1 | to 0.2 | to 0.5 | to 1 | to 2 | to 5 s
        "histogram": [0, 0, 0, 1, 1, 3, 5, 10, 30, 49, 0, 1],
    }
    expected = {"p50": 0.5, "p95": 0.5, "p99": 0.5, "max": 0.5, "seconds": 0.5, "histogram": [0] * 8 + [1]}
    assert told["sql"] == {"calls": 1, "errors": {"raised": 1}, **expected}


def test_an_environment_has_the_latency_of_each_act_and_what_broke():
    told = environment_numbers({STEP: [0.5, 1.5], REWARD: [0.002]}, {None: 3, "grader": 1})
    assert (told["episodes"], told["errors"]) == (4, {"grader": 1})
    assert {act: (each["calls"], each["max"]) for act, each in told["acts"].items()} == {
        "step": (2, 1.5),
        "grade": (1, 0.002),
    }


def test_quantiles_of_steps_that_are_put_together_are_within_a_bucket_of_the_truth():
    chance = random.Random(0)
    steps = [[chance.lognormvariate(-2, 1.5) for _ in range(20)] for _ in range(100)]
    whole = sorted(value for step in steps for value in step)
    found = merged([latency_numbers(step) for step in steps])
    for key, share in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99)):
        assert histogram([found[key]]) == histogram([quantile(whole, share)]), key
    assert found["max"] == whole[-1]


def test_what_takes_longer_than_every_bucket_is_in_one_more():
    assert histogram([0.0, 0.001, 501.0]) == [2, *[0] * (len(BOUNDS) - 1), 1]
    assert merged([latency_numbers([700.0])])["p50"] == pytest.approx(600.0), "halfway from 500 s to the longest"
    assert merged([]) == {"p50": None, "p95": None, "p99": None, "max": None}


def test_a_quantile_is_a_value_that_was_measured():
    assert [quantile([1.0, 2.0, 3.0, 4.0], share) for share in (0.0, 0.25, 0.5, 0.51, 1.0)] == [1.0, 1.0, 2.0, 3.0, 4.0]

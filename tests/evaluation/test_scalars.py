"""Numbers that a table of runs can hold."""

import json

from components.evaluation.measures import Scores, compare, measure_names, tool_matrix
from components.evaluation.scalars import finite, measure_scalars, run_scalars
from components.telemetry.run_files import RunRecord


def test_what_a_metric_cannot_hold_is_left_out() -> None:
    values = {
        "kept": 0.5,
        "count": 2**53,
        "flag": True,
        "nan": float("nan"),
        "endless": float("inf"),
        "none": None,
        "text": "1",
        "list": [1],
        "too large": 2**53 + 1,
    }
    found = finite(values)
    assert found == {"kept": 0.5, "count": 2**53, "flag": 1}
    assert [type(value) for value in found.values()] == [float, int, int]
    json.dumps(found, allow_nan=False)


def test_the_improvement_has_its_interval_under_flat_names() -> None:
    before, after = Scores(greedy=[0.0] * 20, sampled=[]), Scores(greedy=[1.0] * 20, sampled=[])
    scalars = measure_scalars(compare(before, after, solved_at=1.0, max_failed_share=0.0))
    assert scalars["accuracy_improvement"] == 1.0
    # Newcombe's method 10 on 0/20 against 20/20 with Wilson's 0 to 0.161 and 0.839 to 1, by hand.
    assert round(scalars["accuracy_improvement_low"], 3) == 0.772
    assert scalars["accuracy_improvement_high"] == 1.0
    assert scalars["evaluation_tasks"] == 20


def test_all_numbers_of_a_run_are_in_one_table() -> None:
    run = RunRecord(
        summary={"steps": 2, "accuracy_after": 0.5, "recipe": "mine", "tokens": {"generated": 7, "trained": 7}},
        metrics=[
            {"step": 1, "reward_mean": 0.1, "trainer_seconds": {"update": 1.0}},
            {"step": 2, "reward_mean": 0.3, "trainer_seconds": {"update": 2.0}, "loss": None, "entropy": 1.5},
        ],
    )
    assert run_scalars(run) == {
        "steps": 2,
        "accuracy_after": 0.5,
        "tokens_generated": 7,
        "tokens_trained": 7,
        "reward_first_step": 0.1,
        "reward_last_step": 0.3,
        "trainer_seconds_total": 3.0,
        "entropy_last_step": 1.5,
    }


def test_outcomes_are_counted_against_tool_use() -> None:
    scores = Scores(greedy=[1.0, 1.0, 0.0, 0.5, None], sampled=[], called=[True, False, True, True, True])
    assert tool_matrix(scores, solved_at=1.0) == [[1, 1], [2, 0]]


def test_the_names_of_measures_are_known_before_anything_is_measured() -> None:
    scores = Scores(greedy=[1.0], sampled=[[1.0, 0.0, 0.0]])
    measured = [each["name"] for each in compare(scores, scores, solved_at=1.0, max_failed_share=0.0)]
    assert measured == measure_names(3)

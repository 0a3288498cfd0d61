"""What a person fills in is an override under another name."""

import pytest

from components.errors import ConfigError, Problem
from pipeline.parameters import KEYS, merged, renamed
from pipeline.recipe import load_recipe

EMPTY: dict[str, str | int | float] = {
    name: -1 if name in ("steps", "seed", "tasks") else -1.0 if name == "learning_rate" else "" for name in KEYS
}


def test_what_is_left_empty_is_left_to_the_recipe() -> None:
    assert merged(EMPTY, {}, {}) == {}
    assert merged(EMPTY, {"train.steps": 5}, {}) == {"train.steps": 5}


def test_a_parameter_gives_the_very_recipe_that_its_override_gives() -> None:
    filled = EMPTY | {"steps": 7, "learning_rate": 2e-05, "objective": "grpo", "seed": 0, "tasks": 50}
    by_override = {
        "train.steps": "7",
        "train.optimizer.learning_rate": "2e-05",
        "train.objective.preset": "grpo",
        "seed": "0",
        "evaluate.tasks": "50",
    }
    assert load_recipe("smoke", merged(filled, {}, {})) == load_recipe("smoke", by_override)


def test_a_key_that_is_set_twice_differently_is_refused() -> None:
    assert merged(EMPTY | {"steps": 5}, {"train.steps": "5"}, {}) == {"train.steps": 5}
    with pytest.raises(ConfigError, match=r"overrides: train\.steps: the parameter steps says 5; give one of both"):
        merged(EMPTY | {"steps": 5}, {"train.steps": 6}, {})


@pytest.mark.parametrize("name", ["steps", "seed", "learning_rate"])
def test_a_number_below_the_sentinel_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name}: must be 0 or more, or -1 for the recipe's own"):
        merged(EMPTY | {name: -2}, {}, {})


def test_a_trial_goes_before_what_all_trials_share_and_its_whole_numbers_are_integers() -> None:
    trial = {
        "train.steps": 3.0,
        "train.optimizer.learning_rate": 1e-4,
        "environment.options": {"operators": ["+"], "low": 5.0},
    }
    found = merged(EMPTY | {"steps": 9}, {"seed": 1}, trial)
    assert found["train.steps"] == 3
    assert isinstance(found["train.steps"], int)
    assert found["environment.options"] == {"operators": ["+"], "low": 5}
    assert found["seed"] == 1
    assert load_recipe("smoke", found).train.optimizer.learning_rate == 1e-4


def test_a_problem_is_placed_where_the_person_wrote_the_value() -> None:
    problem = Problem("--set train.steps", 0, "must be 1 or more")
    assert renamed(problem, EMPTY | {"steps": 0}).where == "steps (train.steps)"
    assert renamed(problem, EMPTY).where == "--set train.steps"

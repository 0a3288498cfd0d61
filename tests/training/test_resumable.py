"""What a run may change when it goes on, and what is refused by name with both values."""

import pytest

from components.algorithms.objective import ObjectiveConfig
from components.algorithms.presets import Preset
from components.config import dump
from components.errors import ConfigError
from components.training.critic import CriticConfig
from components.training.optimizer import OptimizerConfig
from components.training.resumable import FREE, flattened, refuse_changes
from components.training.run import TrainConfig
from pipeline.recipe import load_recipe

RECIPE = dump(load_recipe("smoke"))


def changed(**values) -> dict:
    return dump(load_recipe("smoke", {key.replace("__", "."): value for key, value in values.items()}))


@pytest.mark.parametrize(
    "values",
    [
        {"train__rollout__max_concurrency": 64},
        {"train__rollout__max_concurrency": "auto"},
        {"train__engine__slots": 16},
        {"train__checkpoint_every": 1},
        {"train__steps": 40},
        {"train__optimizer__max_skipped": 9},
    ],
)
def test_what_only_says_how_the_rest_is_played_may_change(values):
    assert refuse_changes(RECIPE, changed(**values)) is None


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"train__rollout__tasks_per_step": 8}, r"train\.rollout\.tasks_per_step: the run was started with 16.*got 8"),
        ({"train__rollout__group_size": 4}, r"train\.rollout\.group_size: the run was started with 8.*got 4"),
        ({"train__packing__rows": 32}, r"train\.packing\.rows: the run was started with 64.*got 32"),
        ({"train__objective__clip_high": 0.3}, r"train\.objective\.clip_high: the run was started with None.*got 0\.3"),
        ({"environment__options__low": 10}, r"environment\.options\.low: the run was started with 100.*got 10"),
        ({"seed": 3}, "seed: the run was started with 0.*got 3"),
    ],
)
def test_what_a_step_depends_on_is_refused_with_both_values(values, said):
    with pytest.raises(ConfigError, match=said):
        refuse_changes(RECIPE, changed(**values))


def test_the_number_of_steps_is_refused_where_the_learning_rate_depends_on_it():
    falling = {"train__optimizer__schedule": "linear"}
    with pytest.raises(ConfigError, match=r"train\.steps: the run was started with 25.*got 40"):
        refuse_changes(changed(**falling), changed(**falling, train__steps=40))


def test_every_free_key_is_a_key_of_the_train_section():
    critic = CriticConfig(optimizer=OptimizerConfig())
    whole = TrainConfig(steps=1, objective=ObjectiveConfig(preset=Preset.PPO), critic=critic)
    known = {f"train.{key}" for key in flattened(dump(whole))}
    for key in FREE:
        assert any(each == key or each.startswith(f"{key}.") for each in known), key

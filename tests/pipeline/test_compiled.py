"""Compiled pipelines: files that are none, and the types and sizes of what is sent."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from components.errors import ConfigError
from pipeline.compiled import CompiledPipeline, parse_parameters, read_compiled, shipped_pipeline

INPUTS = {
    "recipe": {"parameterType": "STRING"},
    "lr": {"parameterType": "NUMBER_DOUBLE", "defaultValue": 0.00002, "isOptional": True},
    "steps": {"parameterType": "NUMBER_INTEGER", "defaultValue": -1.0, "isOptional": True},
    "resume": {"parameterType": "BOOLEAN", "defaultValue": False, "isOptional": True},
    "tags": {"parameterType": "LIST", "defaultValue": [], "isOptional": True},
    "more": {"parameterType": "STRUCT", "isOptional": True},
    "kind": {"parameterType": "STRING", "defaultValue": "a", "isOptional": True, "literals": ["a", "b"]},
    "token": {"parameterType": "STRING", "defaultValue": "", "isOptional": True},
}


@pytest.fixture
def pipeline(tmp_path: Path) -> CompiledPipeline:
    """A pipeline with a parameter of every type."""
    spec = {
        "pipelineInfo": {"name": "mine"},
        "schemaVersion": "2.1.0",
        "root": {"dag": {"tasks": {"a": {"taskInfo": {"name": "a"}}}}, "inputDefinitions": {"parameters": INPUTS}},
    }
    path = tmp_path / "mine.yaml"
    path.write_text(json.dumps(spec))
    return read_compiled(path)


def test_the_committed_pipelines_are_read_with_all_their_defaults() -> None:
    compiled = read_compiled(shipped_pipeline("post_training"))
    assert compiled.name == "post-training"
    assert re.fullmatch("[0-9a-f]{12}", compiled.version)
    values = compiled.values({"recipe": "smoke"})
    assert values.keys() == compiled.parameters.keys()
    assert values["seed"] == -1
    assert isinstance(values["seed"], int)


def test_the_image_is_part_of_the_content_and_so_of_the_version() -> None:
    path = shipped_pipeline("post_training")
    plain, mine = read_compiled(path), read_compiled(path, image="me/headrace@sha256:00")
    assert plain.version != mine.version
    assert "image: me/headrace@sha256:00" in mine.text
    assert mine == read_compiled(path, image="me/headrace@sha256:00")


def test_text_of_the_command_line_becomes_the_declared_types(pipeline: CompiledPipeline) -> None:
    given = parse_parameters(["recipe=x", "lr=2e-05", "steps=100", "resume=true", 'tags=["a","b"]', 'more={"k": 1}'])
    values = pipeline.values(given)
    assert values["lr"] == 2e-05
    assert isinstance(values["lr"], float)
    assert values["steps"] == 100
    assert isinstance(values["steps"], int)
    assert values["resume"] is True
    assert values["tags"] == ["a", "b"]
    assert values["more"] == {"k": 1}
    assert values["kind"] == "a"


def test_a_rate_written_as_a_whole_number_is_a_float_and_a_missing_optional_one_is_not_sent(
    pipeline: CompiledPipeline,
) -> None:
    values = pipeline.values({"recipe": "x", "lr": "1"})
    assert isinstance(values["lr"], float)
    assert "more" not in values


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("steps", "1o0", "must be a number of type int"),
        ("steps", "1.5", "must be a whole number"),
        ("steps", str(2**53 + 1), "must be a whole number"),
        ("lr", "nan", "must be finite"),
        ("resume", "yes", "must be true or false"),
        ("tags", "a,b", "must be a JSON list"),
        ("more", "[]", "must be a JSON object"),
        ("kind", "c", "must be one of a, b"),
        ("token", "hunter2", "secrets do not go into parameters"),
        ("step", "3", "is no parameter of mine"),
    ],
)
def test_a_bad_value_is_named_before_anything_is_sent(
    pipeline: CompiledPipeline, name: str, value: str, message: str
) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        pipeline.values({"recipe": "x", name: value})
    assert [problem.where for problem in caught.value.problems] == [name]


def test_all_that_is_wrong_is_told_at_once(pipeline: CompiledPipeline) -> None:
    with pytest.raises(ConfigError) as caught:
        pipeline.values({"steps": "x", "lr": "y", "nothing": "z"})
    assert {problem.where for problem in caught.value.problems} == {"recipe", "steps", "lr", "nothing"}


@pytest.mark.parametrize("size", [10_001, 300_000])
def test_a_parameter_that_is_too_long_is_named(pipeline: CompiledPipeline, size: int) -> None:
    with pytest.raises(ConfigError, match=f"recipe: has {size:,} characters") as caught:
        pipeline.values({"recipe": "x" * size})
    assert len(str(caught.value)) < 500


def test_parameters_that_are_too_long_together_are_counted(pipeline: CompiledPipeline) -> None:
    with pytest.raises(ConfigError, match="together, and servers take 10,000; the longest is recipe"):
        pipeline.values({"recipe": "x" * 6_000, "kind": "a", "tags": ["y" * 5_000]})


@pytest.mark.parametrize("text", ["--param", "steps", "=3"])
def test_an_assignment_needs_a_name_and_a_value(text: str) -> None:
    with pytest.raises(ConfigError, match="write it as NAME=VALUE"):
        parse_parameters([text])


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("empty_file.yaml", "is empty"),
        ("invalid_yaml.yaml", 'has no field named "components_1"'),
        ("no_name.yaml", "has no name"),
        ("missing.yaml", "there is no such file"),
    ],
)
def test_files_that_are_no_pipelines_are_refused_in_one_line(shared: Path, name: str, message: str) -> None:
    path = shared / "cases" / "files" / "kfp" / "invalid" / name
    with pytest.raises(ConfigError, match=message) as caught:
        read_compiled(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [({"schemaVersion": "2.0.0"}, "servers take 2.1.0"), ({"root": {}}, "has no tasks")],
)
def test_a_pipeline_that_no_server_runs_is_refused(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    spec = {"pipelineInfo": {"name": "x"}, "schemaVersion": "2.1.0", "root": {"dag": {"tasks": {"a": {}}}}}
    (tmp_path / "x.yaml").write_text(json.dumps(spec | change))
    with pytest.raises(ConfigError, match=message):
        read_compiled(tmp_path / "x.yaml")


def test_broken_yaml_is_named(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text("a: [1")
    with pytest.raises(ConfigError, match="is no YAML"):
        read_compiled(tmp_path / "x.yaml")

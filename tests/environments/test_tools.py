"""Tools from functions: schemas, argument checks, results as text, errors as observations. Cases RE02, RE03, TP15."""

import asyncio
import json
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import pytest

from components.environments.tools import EMPTY_RESULT, ToolError, result_to_text, tool, tool_from_definition
from components.errors import DataError, ToolFailedError

BFCL = Path(__file__).resolve().parents[2].parent / "shared" / "cases" / "files" / "transcripts"


@tool
def search(
    query: str,
    limit: int = 3,
    order: Literal["newest", "best"] = "best",
    tags: Sequence[str] = (),
    near: float | None = None,
    options: Mapping[str, int] | None = None,
) -> list[str]:
    """Find documents.

    Of any kind.

    Args:
        query: words that
            must occur
        limit: at most so many
    """
    return [query] * limit


def call(made, **arguments):
    return asyncio.run(made.call(arguments))


def test_the_schema_comes_from_signature_and_docstring():
    assert search.definition == {
        "type": "function",
        "function": {
            "name": "search",
            "description": "Find documents. Of any kind.",
            "parameters": {
                "type": "object",
                "properties": {
                    "query": {"type": "string", "description": "words that must occur"},
                    "limit": {"type": "integer", "description": "at most so many"},
                    "order": {"enum": ["newest", "best"]},
                    "tags": {"type": "array", "items": {"type": "string"}},
                    "near": {"anyOf": [{"type": "number"}, {"type": "null"}]},
                    "options": {
                        "anyOf": [{"type": "object", "additionalProperties": {"type": "integer"}}, {"type": "null"}]
                    },
                },
                "required": ["query"],
            },
        },
    }


def test_a_method_becomes_a_tool_without_self():
    class Box:
        def open(self, key: str) -> str:
            """Open the box."""
            return f"opened with {key}"

    made = tool(Box().open)
    assert list(made.parameters["properties"]) == ["key"]
    assert call(made, key="gold").text == "opened with gold"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({}, 'error: search: missing argument "query"'),
        ({"querry": "x"}, 'error: search: missing argument "query"; unknown argument "querry"; did you mean "query"?'),
        ({"query": 7}, 'error: search: "query" must be a string, not 7'),
        ({"query": "x", "limit": "3"}, "error: search: \"limit\" must be an integer, not '3'"),
        ({"query": "x", "limit": True}, 'error: search: "limit" must be an integer, not True'),
        ({"query": "x", "order": "old"}, "error: search: \"order\" must be one of 'newest', 'best', not 'old'"),
        ({"query": "x", "tags": ["a", 1]}, 'error: search: "tags[1]" must be a string, not 1'),
        ({"query": "x", "options": {"a": "b"}}, "error: search: \"options.a\" must be an integer, not 'b'"),
        ({"query": "x", "near": "here"}, "error: search: \"near\" must be a number, not 'here'"),
    ],
)
def test_bad_arguments_are_told_in_a_short_text(arguments, text):
    result = call(search, **arguments)
    assert (result.text, result.is_error) == (text, True)


def test_good_arguments_run():
    result = call(search, query="x", limit=2, order="newest", tags=["a"], near=1)
    assert (result.text, result.is_error) == ('["x", "x"]', False)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, EMPTY_RESULT),
        ("", EMPTY_RESULT),
        ({"t": 3, "ort": "Zürich"}, '{"t": 3, "ort": "Zürich"}'),
        (b"\xff\xfe ok", "\ufffd\ufffd ok"),
        (7, "7"),
        (2.5, "2.5"),
        (True, "true"),
        (["a", "b"], '["a", "b"]'),
        (("a", None), '["a", null]'),
        ({"b": b"x"}, '{"b": "x"}'),
        ({3, 1, 2}, "[1, 2, 3]"),
        (float("nan"), "NaN"),
        ("as it is\n", "as it is\n"),
    ],
)
def test_every_result_has_one_stable_text(value, text):
    assert result_to_text(value) == text


def test_a_tool_that_raises_is_an_observation_flagged_as_an_error():
    def run(cmd: str) -> str:
        return {"cmd": cmd}["command"]

    result = call(tool(run), cmd="ls")
    assert (result.text, result.is_error) == ("error: KeyError: 'command'", True)


def test_a_refusal_shows_its_text_alone_and_a_result_that_has_no_text_is_an_error():
    def refuse() -> str:
        raise ToolError("the door is locked")

    def circular() -> list:
        items = []
        items.append(items)
        return items

    assert call(tool(refuse)).text == "error: the door is locked"
    assert call(tool(circular)).is_error


def test_a_broken_infrastructure_goes_through():
    def run() -> str:
        raise ToolFailedError("no connection to the database")

    with pytest.raises(ToolFailedError, match="database"):
        call(tool(run))


def test_a_tool_that_takes_too_long_is_an_observation():
    release = threading.Event()

    def hang() -> str:
        release.wait(30)
        return "late"

    async def sleep() -> str:
        await asyncio.sleep(30)
        return "late"

    try:
        for function in (hang, sleep):
            result = call(tool(function, timeout=0.05))
            assert (result.text, result.is_error) == (f"error: {function.__name__} took longer than 0.05 seconds", True)
    finally:
        release.set()


def test_a_time_out_of_the_tools_own_is_told_as_such():
    def fetch() -> str:
        raise TimeoutError("the server does not answer")

    assert call(tool(fetch)).text == "error: TimeoutError: the server does not answer"


def test_many_blocking_tools_run_at_the_same_time():
    barrier = threading.Barrier(40)

    def meet(name: int) -> int:
        barrier.wait(timeout=20)
        return name

    async def play():
        made = tool(meet, timeout=30.0)
        return await asyncio.gather(*(made.call({"name": i}) for i in range(40)))

    assert [result.text for result in asyncio.run(play())] == [str(i) for i in range(40)]


def test_a_blocking_tool_does_not_stop_the_event_loop():
    async def play():
        started = asyncio.create_task(tool(block).call({}))
        for _ in range(3):
            await asyncio.sleep(0)
        ticked.set()
        return await started

    ticked = threading.Event()

    def block() -> bool:
        return ticked.wait(20)

    assert asyncio.run(play()).text == "true"


def test_a_long_result_is_cut_with_a_note():
    def long() -> str:
        return "x" * 100

    assert call(tool(long, max_characters=10)).text == "x" * 10 + "\n[cut: 90 more characters]"


def test_parameters_without_a_type_or_a_name_are_refused_when_the_tool_is_made():
    with pytest.raises(TypeError, match="no type annotation"):
        tool(lambda text: text, name="echo")

    def spread(*words: str) -> str:
        return ""

    with pytest.raises(TypeError, match="cannot be given by name"):
        tool(spread)


def test_tool_lists_in_the_wild_are_read_as_json_schema():
    definition = {
        "name": "math.gcd",
        "parameters": {"type": "dict", "properties": {"a": {"type": "float"}, "b": {"type": "integer"}}},
    }
    made = tool_from_definition(definition, lambda a, b: a * b)
    assert made.parameters == {
        "type": "object",
        "properties": {"a": {"type": "number"}, "b": {"type": "integer"}},
        "required": [],
    }
    assert call(made, a=2, b=3).text == "6"


@pytest.mark.parametrize(
    ("definition", "field"),
    [
        ({}, "row 3.name"),
        ({"name": "f", "parameters": []}, "row 3.parameters"),
        ({"name": "f", "parameters": {"type": "list"}}, "row 3.parameters.type"),
        ({"name": "f", "parameters": {"type": "dict", "properties": {"a": {"type": "floot"}}}}, "properties.a.type"),
        ({"name": "f", "parameters": {"type": "dict", "properties": []}}, "parameters.properties"),
    ],
)
def test_a_bad_tool_definition_is_refused_with_its_field(definition, field):
    with pytest.raises(DataError, match=field):
        tool_from_definition(definition, print, where="row 3")


def test_all_tool_lists_of_the_case_bank_load_and_take_the_right_calls():
    rows = BFCL / "BFCL_v4_simple_python.first40.jsonl"
    if not rows.is_file():
        pytest.skip("the case bank is not beside the repository")
    answers = BFCL / "BFCL_v4_simple_python.first40.answers.jsonl"
    by_id = {row["id"]: row["ground_truth"] for row in map(json.loads, answers.read_text().splitlines())}
    loaded = 0
    for row in map(json.loads, rows.read_text().splitlines()):
        tools = [
            tool_from_definition(function, lambda **arguments: "ran", where=row["id"]) for function in row["function"]
        ]
        (name, choices), *_ = by_id[row["id"]][0].items()
        arguments = {key: values[0] for key, values in choices.items() if values[0] != ""}
        made = next(made for made in tools if made.name == name)
        assert call(made, **arguments).text == "ran", row["id"]
        loaded += 1
    assert loaded == 40

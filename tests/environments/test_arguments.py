"""Annotations of any common kind become a schema, a check with a short text, and the value that the function wants."""

import asyncio
import enum
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, NotRequired, TypedDict

import pytest
from pydantic import BaseModel, Field

from components.environments.json_schema import normalised, problems
from components.environments.tools import tool, tool_from_definition
from components.errors import DataError
from components.types import CallOutcome

BFCL = Path(__file__).resolve().parents[2].parent / "shared" / "cases" / "files" / "transcripts"


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Size(TypedDict):
    width: int
    depth: NotRequired[float]


@dataclass
class Point:
    x: int
    y: int = 0
    colour: Colour = Colour.RED
    names: list[str] = field(default_factory=list)


class Order(BaseModel):
    item: str = Field(min_length=2)
    count: int = Field(default=1, ge=1, le=9)
    at: Point | None = None


@tool(timeout=2.0)
async def place(
    order: Order,
    points: list[Point],
    size: Size | None = None,
    colour: Colour = Colour.BLUE,
    level: Annotated[int, Field(ge=0, description="from the ground")] = 0,
    note: Annotated[str, "what to write on it"] = "",
    table: dict[str, list[float]] | None = None,
    how: Literal["fast", 2] = "fast",
) -> str:
    """Place an order."""
    assert isinstance(order, Order)
    assert all(isinstance(point, Point) and isinstance(point.colour, Colour) for point in points)
    assert isinstance(colour, Colour)
    return f"{order.count} {order.item} at {points[0].x},{points[0].y} {points[0].colour.name} {colour.name} {size}"


def call(**arguments):
    return asyncio.run(place.call(arguments))


GOOD: dict[str, Any] = {"order": {"item": "pen"}, "points": [{"x": 1, "colour": "blue"}]}


def test_every_kind_of_annotation_has_a_schema():
    properties = place.parameters["properties"]
    point = {
        "type": "object",
        "properties": {
            "x": {"type": "integer"},
            "y": {"type": "integer"},
            "colour": {"enum": ["red", "blue"]},
            "names": {"type": "array", "items": {"type": "string"}},
        },
        "required": ["x"],
    }
    assert properties["points"] == {"type": "array", "items": point}
    size = {
        "type": "object",
        "properties": {"width": {"type": "integer"}, "depth": {"type": "number"}},
        "required": ["width"],
    }
    assert properties["size"] == {"anyOf": [size, {"type": "null"}]}
    assert properties["level"] == {"type": "integer", "minimum": 0, "description": "from the ground"}
    assert properties["note"] == {"type": "string", "description": "what to write on it"}
    assert properties["order"]["properties"]["count"]["maximum"] == 9
    assert properties["how"] == {"enum": ["fast", 2]}
    assert place.parameters["required"] == ["order", "points"]
    assert "$ref" not in json.dumps(place.definition)


def test_records_arrive_as_what_they_are_annotated_as():
    result = call(**GOOD, size={"width": 3})
    assert (result.text, result.outcome) == ("1 pen at 1,0 BLUE BLUE {'width': 3}", CallOutcome.OK)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"order": {}}, 'missing argument "order.item"'),
        ({"order": {"item": "p"}}, '"order.item" must have 2 characters or more, not 1'),
        ({"order": {"item": "pen", "count": 10}}, '"order.count" must be at most 9, not 10'),
        ({"order": {"item": "pen", "cuont": 1}}, 'unknown argument "order.cuont"; did you mean "count"?'),
        ({"points": [{"y": 1}]}, 'missing argument "points[0].x"'),
        ({"points": {"x": 1}}, "\"points\" must be an array, not {'x': 1}"),
        ({"colour": "green"}, "\"colour\" must be one of 'red', 'blue', not 'green'"),
        ({"level": -1}, '"level" must be at least 0, not -1'),
        ({"size": {"width": "3"}}, "\"size.width\" must be an integer, not '3'"),
        ({"table": {"a": [1, "b"]}}, "\"table.a[1]\" must be a number, not 'b'"),
    ],
)
def test_what_does_not_fit_is_named_by_its_place(change, text):
    result = call(**{**GOOD, **change})
    assert (result.text, result.outcome) == (f"error: place: {text}", CallOutcome.ARGUMENTS)


def test_what_only_the_maker_of_a_value_finds_is_told_as_shortly():
    @dataclass
    class Even:
        number: int

        def __post_init__(self) -> None:
            if self.number % 2:
                raise ValueError("is odd")

    def half(even: Even) -> int:
        return even.number // 2

    made = tool(half)
    assert asyncio.run(made.call({"even": {"number": 4}})).text == "2"
    result = asyncio.run(made.call({"even": {"number": 3}}))
    assert (result.text, result.outcome) == ('error: half: "even": Value error, is odd', CallOutcome.ARGUMENTS)


def test_references_are_put_in_their_place_and_a_circle_ends_unchecked():
    schema = normalised(
        {
            "type": "object",
            "$defs": {
                "Node": {"type": "object", "properties": {"v": {"type": "int"}, "next": {"$ref": "#/$defs/Node"}}}
            },
            "properties": {"head": {"$ref": "#/$defs/Node", "description": "first"}},
        },
        "row 1",
    )
    head = schema["properties"]["head"]
    assert (head["description"], head["properties"]["v"]) == ("first", {"type": "integer"})
    assert problems({"head": {"v": "x"}}, schema) == ["\"head.v\" must be an integer, not 'x'"]
    assert problems({"head": {"v": 1, "next": {"any": "thing"}}}, schema) == []


@pytest.mark.parametrize(
    ("schema", "value", "fits"),
    [
        ({"type": ["string", "null"]}, None, True),
        ({"type": ["string", "null"]}, 3, False),
        ({"type": "STRING", "nullable": True}, None, True),
        ({"type": "any"}, object, True),
        ({"type": "tuple", "items": {"type": "float"}}, [1, 2.5], True),
        ({"type": "tuple", "items": {"type": "float"}}, ["a"], False),
        ({"type": "array", "items": [{"type": "string"}]}, ["a"], True),
        ({"type": "object"}, {"any": 1}, True),
        ({"type": "object", "additionalProperties": {"type": "dict"}}, {"a": {}}, True),
        ({"type": "object", "additionalProperties": {"type": "dict"}}, {"a": 1}, False),
        ({"oneOf": [{"type": "string"}, {"type": "integer"}]}, 1.5, False),
        ({"allOf": [{"type": "integer"}, {"minimum": 3}]}, 2, False),
        ({"const": "a"}, "b", False),
        ({"type": "integer", "exclusiveMaximum": 3}, 3, False),
        ({"type": "array", "maxItems": 1}, [1, 2], False),
        ({"type": "string", "pattern": "^(a+)+$"}, "a" * 50 + "b", True),
    ],
)
def test_keywords_of_tool_lists_in_the_wild_are_checked(schema, value, fits):
    assert (problems(value, normalised(schema, "row 1")) == []) is fits


@pytest.mark.parametrize(
    ("schema", "field"),
    [
        ({"type": "object", "required": "name"}, r"row 2\.parameters\.required"),
        ({"type": "object", "properties": {"a": {"required": True}}}, r"properties\.a\.required"),
        ({"type": "object", "properties": {"a": {"enum": "x"}}}, r"properties\.a\.enum"),
        ({"type": "object", "properties": {"a": {"type": 3}}}, r"properties\.a\.type"),
        ({"type": "object", "properties": {"a": {"type": []}}}, r"properties\.a\.type"),
        ({"type": "object", "properties": {"a": {"items": "string"}}}, r"properties\.a\.items"),
        ({"type": "object", "properties": {"a": {"anyOf": [{"type": "strng"}]}}}, r"properties\.a\.anyOf\[0\]\.type"),
        ({"type": "object", "properties": {"a": {"$ref": "#/$defs/B"}}}, r"properties\.a\.\$ref"),
    ],
)
def test_a_schema_that_is_none_is_refused_with_row_and_field(schema, field):
    with pytest.raises(DataError, match=field):
        tool_from_definition({"name": "f", "parameters": schema}, print, where="row 2")


def test_a_schema_that_nests_without_end_is_refused():
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(500):
        schema = {"type": "array", "items": schema}
    with pytest.raises(DataError, match="nests more than 64 deep"):
        tool_from_definition({"name": "f", "parameters": {"type": "object", "properties": {"a": schema}}}, print)


@pytest.mark.parametrize("name", ["irrelevance.first20", "live_parallel", "simple_python.first40"])
def test_all_tool_lists_of_the_case_bank_load(name):
    path = BFCL / f"BFCL_v4_{name}.jsonl"
    if not path.is_file():
        pytest.skip("the case bank is not beside the repository")
    kinds = json.dumps([])
    for row in map(json.loads, path.read_text().splitlines()):
        loaded = [tool_from_definition(each, print, where=row["id"]) for each in row["function"]]
        kinds += json.dumps([each.parameters for each in loaded])
    assert '"dict"' not in kinds
    assert '"float"' not in kinds


def test_a_sequence_of_records_may_be_optional():
    def count(points: Sequence[Point] | None = None) -> int:
        return sum(point.x for point in points or ())

    made = tool(count)
    assert asyncio.run(made.call({"points": [{"x": 2}, {"x": 3}]})).text == "5"
    assert asyncio.run(made.call({"points": None})).text == "0"

"""Strict, frozen configuration: mappings in, dataclasses out, and an error that names every key that is wrong.

A config is declared beside the code that it configures:

    @config
    class LoraConfig:
        rank: Annotated[int, Field(ge=1)] = 16

An unknown key, a wrong type or a value out of range is a `ConfigError` that lists all problems at once.
"""

import dataclasses
import difflib
import json
import typing
from collections.abc import Mapping
from typing import Any, TypeVar, dataclass_transform

from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass as pydantic_dataclass

from components.errors import ConfigError, Problem

T = TypeVar("T")


@dataclass_transform(frozen_default=True, kw_only_default=True)
def config(cls: type[T]) -> type[T]:
    """Make a class a strict, frozen, keyword-only configuration. A number is not a string and 1 is not true."""
    settings = ConfigDict(extra="forbid", strict=True, validate_default=True)
    return pydantic_dataclass(frozen=True, kw_only=True, config=settings)(cls)  # type: ignore[return-value]


def load(kind: type[T], values: Mapping[str, Any], *, where: str = "") -> T:
    """Check `values` against the config class `kind`. `where` is put before every key in the messages.

    Raises ConfigError with one Problem per fault; a key that is close to a known one is suggested.
    """
    text = json.dumps(values, default=repr)
    try:
        # From JSON, so that a list is a tuple and a word is an enum's value, as a YAML file has neither of the two.
        return TypeAdapter(kind).validate_json(text)
    except ValidationError as error:
        raise ConfigError([_problem(kind, dict(fault), where) for fault in error.errors()]) from None


def from_json(kind: type[T], text: str, *, where: str = "") -> T:
    """`load` from the JSON text in which a section travels to its step. Raises ConfigError as `load` does."""
    try:
        values = json.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigError(Problem(where=where, value=text, message=f"is no JSON: {error}")) from None
    if not isinstance(values, dict):
        raise ConfigError(Problem(where=where, value=text, message="must be a JSON object"))
    return load(kind, values, where=where)


def dump(value: Any) -> dict[str, Any]:
    """The config as plain mappings and lists, every default written out. `load(kind, dump(value)) == value`."""
    return TypeAdapter(type(value)).dump_python(value, mode="json")


def _problem(kind: type, fault: dict[str, Any], where: str) -> Problem:
    path = [str(part) for part in fault["loc"]]
    message = fault["msg"]
    if fault["type"] == "unexpected_keyword_argument":
        message = f"unknown key; {_suggestion(kind, path)}"
    return Problem(where=".".join([part for part in [where] if part] + path), value=fault["input"], message=message)


def _suggestion(kind: Any, path: list[str]) -> str:
    for key in path[:-1]:
        kind = _fields(kind).get(key)
    known = sorted(_fields(kind))
    close = difflib.get_close_matches(path[-1], known, n=1)
    return f"did you mean {close[0]}?" if close else f"known keys: {', '.join(known) or 'none'}"


def _fields(kind: Any) -> dict[str, Any]:
    # A section that may be left out is a union with None.
    kind = next((each for each in typing.get_args(kind) if dataclasses.is_dataclass(each)), kind)
    return {field.name: field.type for field in dataclasses.fields(kind)} if dataclasses.is_dataclass(kind) else {}

"""Strict, frozen configuration: mappings in, dataclasses out, and an error that names every key that is wrong.

A config is declared beside the code that it configures:

    @config
    class LoraConfig:
        rank: Annotated[int, Field(ge=1)] = 16

An unknown key, a wrong type or a value out of range is a `ConfigError` that lists all problems at once. So is what a
`__post_init__` raises as `ConfigError`: it names keys as they stand below its class, and `load` puts the rest before.
"""

import dataclasses
import difflib
import functools
import json
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, dataclass_transform

from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass as pydantic_dataclass

from components.errors import ConfigError, Problem

T = TypeVar("T")


class _RefusedError(ValueError):
    """A ConfigError on its way through pydantic, which knows where the section stands and goes on with the others."""

    def __init__(self, problems: list[Problem]) -> None:
        super().__init__("\n".join(str(problem) for problem in problems))
        self.problems = problems


@dataclass_transform(frozen_default=True, kw_only_default=True)
def config(cls: type[T]) -> type[T]:
    """Make a class a strict, frozen, keyword-only configuration. A number is not a string, 1 is not true, and no number
    is infinite. Raises ConfigError where one is made of wrong values.
    """
    check = vars(cls).get("__post_init__")
    if check is not None:
        cls.__post_init__ = _refusing(check)  # type: ignore[attr-defined]
    settings = ConfigDict(extra="forbid", strict=True, validate_default=True, allow_inf_nan=False)
    made = pydantic_dataclass(frozen=True, kw_only=True, config=settings)(cls)
    made.__init__ = _checked(made.__init__, made)  # type: ignore[method-assign]
    return made  # type: ignore[return-value]


def load(kind: type[T], values: Mapping[str, Any], *, where: str = "") -> T:
    """Check `values` against the config class `kind`. `where` is put before every key in the messages.

    Raises ConfigError with one Problem per fault; a key that is close to a known one is suggested.
    """
    text = json.dumps(values, default=repr)
    try:
        # From JSON, so that a list is a tuple and a word is an enum's value, as a YAML file has neither of the two.
        return TypeAdapter(kind).validate_json(text)
    except ValidationError as error:
        found = _problems(kind, error, where)
        raise ConfigError([_as_written(each, values, where) for each in found]) from None


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


def _refusing(check: Callable[[Any], None]) -> Callable[[Any], None]:
    @functools.wraps(check)
    def checked(self: Any) -> None:
        try:
            check(self)
        except ConfigError as error:
            raise _RefusedError(error.problems) from None

    return checked


def _checked(make: Callable[..., None], kind: type) -> Callable[..., None]:
    @functools.wraps(make)
    def checked(self: Any, *arguments: Any, **values: Any) -> None:
        try:
            make(self, *arguments, **values)
        except ValidationError as error:
            raise ConfigError(_problems(kind, error, "")) from None

    return checked


def _as_written(problem: Problem, values: Any, where: str) -> Problem:
    """Of a section the value that the file has: the section itself no longer knows which defaults were written out."""
    if not dataclasses.is_dataclass(problem.value):
        return problem
    keys = problem.where.removeprefix(where).strip(".").split(".")
    for key in filter(None, keys):
        if not isinstance(values, Mapping) or key not in values:
            return problem
        values = values[key]
    return Problem(problem.where, values, problem.message)


def _problems(kind: type, error: ValidationError, where: str) -> list[Problem]:
    found: list[Problem] = []
    for fault in error.errors():
        for problem in _problems_of(kind, dict(fault), where):
            if found and found[-1].where == problem.where and _is_choice(kind, fault["loc"]):
                # A value that no type of a union takes is a fault of each of them.
                problem = Problem(problem.where, problem.value, f"{found.pop().message}, or: {problem.message}")
            found.append(problem)
    return found


def _problems_of(kind: type, fault: dict[str, Any], where: str) -> list[Problem]:
    keys = _keys(kind, fault["loc"])
    path = [*([where] if where else []), *keys]
    refused = fault.get("ctx", {}).get("error")
    if isinstance(refused, _RefusedError):
        return [Problem(_joined(path, each.where), each.value, each.message) for each in refused.problems]
    message, value = str(refused or fault["msg"]), fault["input"]
    if fault["type"] == "unexpected_keyword_argument":
        message = f"unknown key; {_suggestion(kind, keys)}"
    elif fault["type"] == "json_invalid":
        # It was made by json.dumps: only half of a pair of surrogates is what it writes and nobody reads.
        message, value = "holds a text that is no Unicode", None
    elif fault["type"] == "missing":
        value = None  # What pydantic gives is the section that lacks it.
    elif fault["type"] == "dataclass_type":
        message = "must be a mapping of keys to values"
    return [Problem(".".join(path), value, message)]


def _joined(path: list[str], below: str) -> str:
    """Two parts of a path as one, where the second may begin with the end of the first: a.b and b.c are a.b.c."""
    keys = below.split(".")
    common = next(size for size in range(min(len(path), len(keys)), -1, -1) if path[len(path) - size :] == keys[:size])
    return ".".join([*path, *keys[common:]])


def _suggestion(kind: Any, path: list[str]) -> str:
    section = kind
    for key in path[:-1]:
        section = _below(section, key)
    known = sorted(_fields(section))
    if close := difflib.get_close_matches(path[-1], known, n=1):
        return f"did you mean {close[0]}?"
    if elsewhere := sorted(_places(kind, path[-1]), key=lambda place: (place.count("."), place)):
        return f"it stands in other sections: {', '.join(elsewhere[:3])}"
    return f"known keys: {', '.join(known) or 'none'}"


def _places(kind: Any, key: str) -> list[str]:
    """Where a key is known, below a config class: its paths."""
    found = [key] if key in _fields(kind) else []
    return found + [f"{name}.{place}" for name, below in _fields(kind).items() for place in _places(below, key)]


def _keys(kind: Any, place: tuple[int | str, ...]) -> list[str]:
    """A place as a person writes it: pydantic also names which type of a union was tried."""
    keys: list[str] = []
    for part in place:
        if len(_variants(kind)) > 1:
            kind = None
            continue
        keys.append(str(part))
        kind = _below(kind, str(part))
    return keys


def _is_choice(kind: Any, place: tuple[int | str, ...]) -> bool:
    return len(_keys(kind, place)) < len(place)


def _below(kind: Any, key: str) -> Any:
    """The declared type of what stands at a key, or in a list; None where there is none."""
    kind = next(iter(_variants(kind)), None)
    if dataclasses.is_dataclass(kind):
        return _fields(kind).get(key)
    return next(iter(typing.get_args(kind)), None) if typing.get_origin(kind) is tuple else None


def _variants(kind: Any) -> list[Any]:
    """The types that a declared type may be, None left out."""
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        return [each for member in typing.get_args(kind) for each in _variants(member)]
    if typing.get_origin(kind) is typing.Annotated:
        return _variants(typing.get_args(kind)[0])
    return [] if kind is type(None) else [kind]


def _fields(kind: Any) -> dict[str, Any]:
    kind = next(iter(_variants(kind)), None)
    return {field.name: field.type for field in dataclasses.fields(kind)} if dataclasses.is_dataclass(kind) else {}

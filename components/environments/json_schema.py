"""Python signatures -> JSON Schema, and values -> the list of what is wrong with them.

Only the part of JSON Schema that tool lists use: type, properties, required, items, enum, anyOf, description. A key
that is not known is kept and not checked. Tool lists in the wild write "dict" and "float"; `normalised` reads them as
"object" and "number".
"""

import difflib
import inspect
import re
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from components.errors import DataError, Problem

_TYPES: dict[Any, str] = {str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null"}
_ALIASES = {
    "dict": "object",
    "float": "number",
    "double": "number",
    "int": "integer",
    "long": "integer",
    "bool": "boolean",
    "str": "string",
    "list": "array",
    "tuple": "array",
    "none": "null",
    "any": None,
}
_PYTHON_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "object": (Mapping,),
    "array": (list, tuple),
    "null": (type(None),),
}


def from_signature(function: Callable[..., Any]) -> dict[str, Any]:
    """The schema of a function's arguments. Descriptions come from the docstring's "Args:" section.

    Raises TypeError for *args, **kwargs and for a parameter without an annotation: the policy sees the types.
    """
    hints = typing.get_type_hints(function.__init__ if inspect.isclass(function) else function)
    described = _described_arguments(inspect.getdoc(function) or "")
    properties, required = {}, []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            raise TypeError(f"{function.__name__}: parameter {parameter} cannot be given by name")
        if parameter.name not in hints:
            raise TypeError(f"{function.__name__}: parameter {parameter.name} has no type annotation")
        schema = of_annotation(hints[parameter.name])
        if parameter.name in described:
            schema["description"] = described[parameter.name]
        properties[parameter.name] = schema
        if parameter.default is parameter.empty:
            required.append(parameter.name)
    return {"type": "object", "properties": properties, "required": required}


def of_annotation(annotation: Any) -> dict[str, Any]:
    """The schema of one type: the plain types, list, dict, Literal and unions of them. Anything else is unchecked."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if annotation in _TYPES:
        return {"type": _TYPES[annotation]}
    if origin is typing.Annotated:
        return of_annotation(arguments[0])
    if origin is Literal:
        return {"enum": list(arguments)}
    if origin in (typing.Union, types.UnionType):
        return {"anyOf": [of_annotation(argument) for argument in arguments]}
    kind = origin or annotation
    if inspect.isclass(kind) and issubclass(kind, Mapping):
        return {"type": "object"}
    if inspect.isclass(kind) and issubclass(kind, Sequence):
        element = arguments[0] if arguments else Any
        return {"type": "array", "items": of_annotation(element)}
    return {}


def normalised(schema: Any, where: str) -> dict[str, Any]:
    """A schema in JSON Schema's own words: dict is object, float is number. Raises DataError that names the field."""
    if not isinstance(schema, Mapping):
        raise DataError(Problem(where=where, value=schema, message="a schema must be an object"))
    result = dict(schema)
    if "type" in result:
        kind = result["type"]
        if not isinstance(kind, str) or kind not in {**_PYTHON_TYPES, **_ALIASES}:
            raise DataError(Problem(where=f"{where}.type", value=kind, message="not a type of JSON Schema"))
        result["type"] = _ALIASES.get(kind, kind)
        if result["type"] is None:
            del result["type"]
    if "properties" in result:
        if not isinstance(result["properties"], Mapping):
            raise DataError(Problem(f"{where}.properties", result["properties"], "properties must be an object"))
        result["properties"] = {
            name: normalised(value, f"{where}.properties.{name}") for name, value in result["properties"].items()
        }
    if "items" in result:
        result["items"] = normalised(result["items"], f"{where}.items")
    return result


def problems(value: Any, schema: Mapping[str, Any], where: str = "") -> list[str]:
    """What is wrong with `value`, as short sentences that a model can learn from; empty when it fits."""
    if "anyOf" in schema:
        tries = [problems(value, option, where) for option in schema["anyOf"]]
        return min(tries, key=len) if all(tries) else []
    if "enum" in schema and value not in schema["enum"]:
        return [f"{_named(where)} must be one of {', '.join(map(repr, schema['enum']))}, not {_short(value)}"]
    if "type" in schema and not _is_a(value, schema["type"]):
        return [f"{_named(where)} must be {_with_article(schema['type'])}, not {_short(value)}"]
    if isinstance(value, Mapping) and "properties" in schema:
        return _object_problems(value, schema, where)
    if isinstance(value, (list, tuple)) and "items" in schema:
        return [fault for i, item in enumerate(value) for fault in problems(item, schema["items"], f"{where}[{i}]")]
    return []


def _object_problems(value: Mapping[str, Any], schema: Mapping[str, Any], where: str) -> list[str]:
    properties = schema["properties"]
    found = [f'missing argument "{_joined(where, name)}"' for name in schema.get("required", ()) if name not in value]
    for name, item in value.items():
        if name in properties:
            found += problems(item, properties[name], _joined(where, name))
        elif not schema.get("additionalProperties", False):
            close = difflib.get_close_matches(str(name), properties, n=1)
            hint = f'did you mean "{close[0]}"?' if close else f"it takes: {', '.join(properties) or 'nothing'}"
            found.append(f'unknown argument "{_joined(where, name)}"; {hint}')
    return found


def _is_a(value: Any, kind: str) -> bool:
    if isinstance(value, bool):
        return kind == "boolean"
    return isinstance(value, _PYTHON_TYPES[kind])


def _described_arguments(docstring: str) -> dict[str, str]:
    """The `name: text` lines of a docstring's "Args:" section; a deeper line goes on with the one before it."""
    section = re.search(r"^Args:\n((?:[ \t]+.*\n?|\n)+)", docstring, flags=re.MULTILINE)
    described: dict[str, str] = {}
    name = None
    for line in section.group(1).splitlines() if section else ():
        start = re.match(r" {1,4}(\w+)(?: \([^)]*\))?: *(.*)", line)
        if start:
            name = start.group(1)
            described[name] = start.group(2).strip()
        elif name and line.strip():
            described[name] = f"{described[name]} {line.strip()}"
    return described


def _joined(where: str, name: object) -> str:
    return f"{where}.{name}" if where else str(name)


def _named(where: str) -> str:
    return f'"{where}"' if where else "the value"


def _with_article(kind: str) -> str:
    return f"{'an' if kind[0] in 'aeiou' else 'a'} {kind}"


def _short(value: Any, limit: int = 60) -> str:
    text = repr(value)
    return text if len(text) <= limit else f"{text[:limit]}..."

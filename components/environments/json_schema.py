"""Python signatures -> JSON Schema, and values -> the list of what is wrong with them.

Only the part of JSON Schema that tool lists use: type, properties, additionalProperties, required, items, enum, const,
anyOf, oneOf, allOf, and bounds of numbers and lengths. A key that is not known is kept and not checked, and neither is
a pattern: one that somebody else wrote may take for ever. Tool lists in the wild write "dict" and "float";
`normalised` reads them as "object" and "number".
"""

import dataclasses
import difflib
import enum
import inspect
import operator
import re
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from pydantic import TypeAdapter

from components.environments.arguments import constrained, is_record
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
    "set": "array",
    "arraylist": "array",
    "hashmap": "object",
    "char": "string",
    "byte": "integer",
    "short": "integer",
    "bigint": "integer",
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
_BOUNDS: dict[str, tuple[str, Callable[[Any, Any], bool]]] = {
    "minimum": ("at least", operator.ge),
    "maximum": ("at most", operator.le),
    "exclusiveMinimum": ("more than", operator.gt),
    "exclusiveMaximum": ("less than", operator.lt),
}
_ITEMS = ("items", "minItems", "maxItems")
_MAX_DEPTH = 64


def from_signature(function: Callable[..., Any]) -> dict[str, Any]:
    """The schema of a function's arguments. Descriptions come from the docstring's "Args:" section.

    Raises TypeError for *args, **kwargs and for a parameter without an annotation: the policy sees the types.
    """
    hints = typing.get_type_hints(function.__init__ if inspect.isclass(function) else function, include_extras=True)
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
    """The schema of one type; {} for one that is not checked.

    Plain types, list, dict, Literal, Enum, unions of them, and records: dataclasses, TypedDicts and pydantic models. A
    text in Annotated is a description, a pydantic Field in it adds its constraints.
    """
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if annotation in _TYPES:
        return {"type": _TYPES[annotation]}
    if origin is typing.Annotated:
        told = [{"description": each} for each in arguments[1:] if isinstance(each, str)]
        plain = _of_pydantic(annotation) if constrained(annotation) else of_annotation(arguments[0])
        return {**plain, **(told[0] if told else {})}
    if origin is Literal:
        return {"enum": list(arguments)}
    if origin in (typing.Union, types.UnionType):
        return {"anyOf": [of_annotation(argument) for argument in arguments]}
    kind = origin or annotation
    if not inspect.isclass(kind):
        return {}
    if is_record(kind) or typing.is_typeddict(kind):
        return _of_record(kind)
    if issubclass(kind, Mapping):
        values = of_annotation(arguments[1]) if len(arguments) == 2 else {}
        return {"type": "object", **({"additionalProperties": values} if values else {})}
    if issubclass(kind, Sequence):
        return {"type": "array", "items": of_annotation(arguments[0] if arguments else Any)}
    return {}


def _of_record(kind: type[Any]) -> dict[str, Any]:
    if typing.is_typeddict(kind):
        hints = typing.get_type_hints(kind)
        required = [name for name in hints if name in kind.__required_keys__]
        return {
            "type": "object",
            "properties": {name: of_annotation(hint) for name, hint in hints.items()},
            "required": required,
        }
    if issubclass(kind, enum.Enum):
        return {"enum": [member.value for member in kind]}
    return from_signature(kind) if dataclasses.is_dataclass(kind) else _of_pydantic(kind)


def _of_pydantic(annotation: Any) -> dict[str, Any]:
    return normalised(TypeAdapter(annotation).json_schema(), str(annotation))


def normalised(schema: Any, where: str) -> dict[str, Any]:
    """A schema in JSON Schema's own words: dict is object, float is number; what $ref names is put in its place.

    A schema that refers to itself is unchecked from there on. Raises DataError that names the field.
    """
    definitions = schema if isinstance(schema, Mapping) else {}
    return _Normalising(definitions).of(schema, where, ())


class _Normalising:
    """Knows the whole schema that a part refers to."""

    def __init__(self, whole: Mapping[str, Any]) -> None:
        self._whole = whole

    def of(self, schema: Any, where: str, inside: tuple[str, ...]) -> dict[str, Any]:
        """The part `schema` at `where`. `inside` are the references that led here."""
        if schema is True:
            return {}
        if not isinstance(schema, Mapping):
            raise DataError(Problem(where=where, value=schema, message="a schema must be an object"))
        if where.count(".") > _MAX_DEPTH:
            raise DataError(Problem(where=where, value="", message=f"nests more than {_MAX_DEPTH} deep"))
        if "$ref" in schema:
            return self._referred(schema, where, inside)
        result = {key: value for key, value in schema.items() if key not in ("$defs", "definitions", "$schema")}
        self._type(result, where)
        for key, form in (("required", list), ("enum", list), ("properties", Mapping)):
            if key in result and not isinstance(result[key], form):
                kind = "an object" if form is Mapping else "a list"
                raise DataError(Problem(f"{where}.{key}", result[key], f"{key} must be {kind}"))
        if "properties" in result:
            result["properties"] = {
                name: self.of(value, f"{where}.properties.{name}", inside)
                for name, value in result["properties"].items()
            }
        for key in ("anyOf", "oneOf", "allOf"):
            if isinstance(result.get(key), list):
                result[key] = [self.of(each, f"{where}.{key}[{i}]", inside) for i, each in enumerate(result[key])]
        for key in ("items", "additionalProperties"):
            # A list of schemas, for places, and False are left as they are.
            if isinstance(result.get(key), Mapping) or (key == "items" and isinstance(result.get(key), str)):
                result[key] = self.of(result[key], f"{where}.{key}", inside)
        return result

    def _type(self, result: dict[str, Any], where: str) -> None:
        if "type" not in result:
            return
        given = result["type"]
        kinds = given if isinstance(given, list) else [given]
        words = [kind.lower() if isinstance(kind, str) else kind for kind in kinds]
        if not words or not all(isinstance(word, str) and word in {**_PYTHON_TYPES, **_ALIASES} for word in words):
            raise DataError(Problem(f"{where}.type", given, "not a type of JSON Schema"))
        names = [_ALIASES.get(word, word) for word in words]
        if result.pop("nullable", False) is True and "null" not in names:
            names.append("null")
        if None in names:
            del result["type"]
        else:
            result["type"] = names[0] if len(names) == 1 else names

    def _referred(self, schema: Mapping[str, Any], where: str, inside: tuple[str, ...]) -> dict[str, Any]:
        name = schema["$ref"]
        beside = {key: value for key, value in schema.items() if key != "$ref"}
        if name in inside:
            return beside
        found: Any = self._whole
        for part in str(name).removeprefix("#").strip("/").split("/"):
            found = found.get(part) if isinstance(found, Mapping) else None
        if found is None:
            raise DataError(Problem(f"{where}.$ref", name, "names nothing in this schema"))
        return {**self.of(found, where, (*inside, str(name))), **beside}


def problems(value: Any, schema: Mapping[str, Any], where: str = "") -> list[str]:
    """What is wrong with `value`, as short sentences that a model can learn from; empty when it fits."""
    options = schema.get("anyOf") or schema.get("oneOf")
    if options:
        tries = [problems(value, option, where) for option in options]
        if all(tries):
            return min(tries, key=len)
    if "enum" in schema and value not in schema["enum"]:
        return [f"{_named(where)} must be one of {', '.join(map(repr, schema['enum']))}, not {_short(value)}"]
    if "const" in schema and value != schema["const"]:
        return [f"{_named(where)} must be {_short(schema['const'])}, not {_short(value)}"]
    kinds = schema.get("type", ())
    kinds = (kinds,) if isinstance(kinds, str) else kinds
    if kinds and not any(_is_a(value, kind) for kind in kinds):
        return [f"{_named(where)} must be {' or '.join(map(_with_article, kinds))}, not {_short(value)}"]
    found = [fault for part in schema.get("allOf", ()) for fault in problems(value, part, where)]
    found += _bound_problems(value, schema, where)
    if isinstance(value, Mapping) and ("properties" in schema or "additionalProperties" in schema):
        return found + _object_problems(value, schema, where)
    if isinstance(value, (list, tuple)) and isinstance(schema.get("items"), Mapping):
        for number, item in enumerate(value):
            found += problems(item, schema["items"], f"{where}[{number}]")
    return found


def _bound_problems(value: Any, schema: Mapping[str, Any], where: str) -> list[str]:
    """Numbers that are too small or too large, texts and lists that are too short or too long."""
    found = []
    if isinstance(value, int | float) and not isinstance(value, bool):
        for key, (words, fits) in _BOUNDS.items():
            if isinstance(schema.get(key), int | float) and not fits(value, schema[key]):
                found.append(f"{_named(where)} must be {words} {schema[key]:g}, not {_short(value)}")
    elif isinstance(value, str | list | tuple):
        noun, least, most = ("characters", "minLength", "maxLength") if isinstance(value, str) else _ITEMS
        if isinstance(schema.get(least), int) and len(value) < schema[least]:
            found.append(f"{_named(where)} must have {schema[least]} {noun} or more, not {len(value)}")
        if isinstance(schema.get(most), int) and len(value) > schema[most]:
            found.append(f"{_named(where)} must have at most {schema[most]} {noun}, not {len(value)}")
    return found


def _object_problems(value: Mapping[str, Any], schema: Mapping[str, Any], where: str) -> list[str]:
    properties = schema.get("properties", {})
    found = [f'missing argument "{_joined(where, name)}"' for name in schema.get("required", ()) if name not in value]
    others = schema.get("additionalProperties", False)
    for name, item in value.items():
        if name in properties:
            found += problems(item, properties[name], _joined(where, name))
        elif isinstance(others, Mapping):
            found += problems(item, others, _joined(where, name))
        elif not others:
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

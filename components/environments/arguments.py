"""Arguments as JSON has them -> arguments as a function's annotations want them.

A policy writes objects, lists and words. A function that is annotated with a dataclass, an Enum or a pydantic model
gets one, made by pydantic; a plain type, and a TypedDict, is handed over as it is.
"""

import dataclasses
import enum
import functools
import inspect
import typing
from collections.abc import Callable, Mapping
from typing import Any

from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo


class ArgumentsError(Exception):
    """The arguments fit the schema, and yet no value could be made of one. The policy reads the error's text."""


def is_record(annotation: Any) -> bool:
    """Whether JSON has no such type, and pydantic makes one: a dataclass, an Enum or a model."""
    if not inspect.isclass(annotation):
        return False
    return dataclasses.is_dataclass(annotation) or issubclass(annotation, enum.Enum | BaseModel)


def constrained(annotation: Any) -> bool:
    """Whether it is Annotated[..., Field(...)]."""
    return typing.get_origin(annotation) is typing.Annotated and any(
        isinstance(each, FieldInfo) for each in typing.get_args(annotation)[1:]
    )


def needs_making(annotation: Any) -> bool:
    """Whether a record, or one of pydantic's constraints, stands anywhere in an annotation."""
    if is_record(annotation) or constrained(annotation):
        return True
    return any(needs_making(part) for part in typing.get_args(annotation))


def converting(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, or one that first makes the records of its arguments; a coroutine function stays one."""
    hints = typing.get_type_hints(function.__init__ if inspect.isclass(function) else function, include_extras=True)
    names = [name for name in inspect.signature(function).parameters if needs_making(hints.get(name))]
    if not names:
        return function
    makers = {name: TypeAdapter(hints[name]).validate_python for name in names}
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def awaited(**arguments: Any) -> Any:
            return await function(**_made(arguments, makers))

        return awaited

    @functools.wraps(function)
    def called(**arguments: Any) -> Any:
        return function(**_made(arguments, makers))

    return called


def _made(arguments: Mapping[str, Any], makers: Mapping[str, Callable[[Any], Any]]) -> dict[str, Any]:
    made = dict(arguments)
    for name in makers.keys() & arguments.keys():
        try:
            made[name] = makers[name](arguments[name])
        except ValidationError as error:
            raise ArgumentsError("; ".join(_fault(name, dict(fault)) for fault in error.errors()[:5])) from error
    return made


def _fault(name: str, fault: Mapping[str, Any]) -> str:
    path = ".".join([name, *map(str, fault["loc"])])
    return f'"{path}": {fault["msg"]}'

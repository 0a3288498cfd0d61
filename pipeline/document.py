"""YAML text -> plain values, and the line on which each key stands.

Numbers are read as people write them: 2e-05 and 1e5 are numbers (PyYAML takes them for text, as YAML 1.1 has no
exponent without a dot and a sign), and 010, 1:30, yes and off are text. A key that stands twice is an error, and so are
aliases.
"""

import re
from dataclasses import dataclass, field
from typing import Any

import yaml

from components.errors import ConfigError, Problem


@dataclass(frozen=True, slots=True)
class Document:
    """What a YAML file says. `lines` maps a path of keys ("train.steps") to its line, from 1."""

    source: str
    values: dict[str, Any]
    lines: dict[str, int] = field(default_factory=dict)

    def where(self, path: str) -> str:
        """The place of `path` for a person: file, line and key. A missing key is placed at the line of its section."""
        parent = path
        while parent and parent not in self.lines:
            parent = parent.rpartition(".")[0]
        line = f":{self.lines[parent]}" if parent else ""
        return f"{self.source}{line}: {path}" if path else f"{self.source}{line}"


def read_document(text: str, source: str) -> Document:
    """Parse `text`; `source` is its name in messages. Raises ConfigError when it is no mapping of text keys."""
    try:
        node = _Loader(text).get_single_node()
    except yaml.YAMLError as error:
        raise ConfigError(_unreadable(text, source, error)) from None
    except RecursionError:
        raise ConfigError(Problem(source, text[:40], _TOO_DEEP)) from None
    if node is None:
        raise ConfigError(Problem(source, text[:40], "the file is empty; it must hold a mapping of keys to values"))
    if not isinstance(node, yaml.MappingNode):
        raise ConfigError(Problem(source, text[:40], "the file must hold a mapping of keys to values"))
    builder = _Builder(source)
    values = builder.value(node, "")
    if builder.problems:
        raise ConfigError(builder.problems)
    return Document(source=source, values=values, lines=builder.lines)


def read_value(text: str) -> Any:
    """One value as it would be read from a file: `1e-5` is a number, `[1, 2]` a list, anything unreadable is text."""
    try:
        node = _Loader(text).get_single_node()
    except (yaml.YAMLError, RecursionError):
        return text
    builder = _Builder("")
    value = text if node is None else builder.value(node, "")
    return text if builder.problems else value


class _Builder:
    """Nodes to plain values; keeps the line of each key and everything that is wrong."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.lines: dict[str, int] = {}
        self.problems: list[Problem] = []

    def value(self, node: yaml.Node, path: str) -> Any:
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path)
        if isinstance(node, yaml.SequenceNode):
            return [self.value(item, f"{path}.{index}") for index, item in enumerate(node.value)]
        try:
            return _Loader("").construct_object(node)
        except (yaml.YAMLError, ValueError):
            where = f"{self.source}:{node.start_mark.line + 1}: {path}"
            kind = str(node.tag).removeprefix("tag:yaml.org,2002:")
            self.problems.append(Problem(where, node.value, f"a value with this tag is not read: {kind}"))
            return None

    def _mapping(self, node: yaml.MappingNode, path: str) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for key_node, value_node in node.value:
            where = f"{self.source}:{key_node.start_mark.line + 1}"
            if not isinstance(key_node, yaml.ScalarNode):
                self.problems.append(Problem(where, "a list or a mapping", "a key must be text"))
                continue
            key = str(key_node.value)
            below = f"{path}.{key}" if path else key
            if key in values:
                message = f"the key stands twice, first in line {self.lines[below]}"
                self.problems.append(Problem(f"{where}: {below}", key, message))
                continue
            self.lines[below] = key_node.start_mark.line + 1
            values[key] = self.value(value_node, below)
        return values


class _Loader(yaml.SafeLoader):
    """SafeLoader with the scalars of YAML 1.2's core schema, and without aliases."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012 (PyYAML's own shape)

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            event = self.peek_event()
            raise yaml.composer.ComposerError(
                None, None, "aliases (*name) are not read; write it out", event.start_mark
            )
        return super().compose_node(parent, index)


_SCALARS = {
    "null": (r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    "bool": (r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    "int": (r"[-+]?(?:0|[1-9][0-9]*)", list("-+0123456789")),
    "float": (r"[-+]?(?:\.[0-9]+|(?:0|[1-9][0-9]*)(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?", list("-+.0123456789")),
}
for _name, (_pattern, _first) in _SCALARS.items():
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_name}", re.compile(f"^(?:{_pattern})$"), _first)


_TOO_DEEP = "lists or mappings stand in each other hundreds of levels deep, which is not read"


def _unreadable(text: str, source: str, error: yaml.YAMLError) -> Problem:
    """What is wrong with a text that is no YAML, with the line in which reading stopped."""
    mark = error.problem_mark if isinstance(error, yaml.MarkedYAMLError) else None
    reason = (error.problem if isinstance(error, yaml.MarkedYAMLError) else None) or str(error).splitlines()[0]
    if "'\\t'" in reason:
        reason = "a tab; YAML is indented by spaces"
    lines = text.splitlines()
    if mark is None or mark.line >= len(lines):
        return Problem(source, text[:40], f"this is not YAML: {reason}")
    return Problem(f"{source}:{mark.line + 1}", lines[mark.line], f"this is not YAML: {reason}")

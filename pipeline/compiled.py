"""A compiled pipeline's file -> its name, hash and declared parameters; what a person wrote -> their values.

The checks are the server's own (names, types, allowed values, size), made before anything is sent.
"""

import dataclasses
import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from google.protobuf import json_format
from kfp.pipeline_spec import pipeline_spec_pb2

from components.errors import ConfigError, Problem
from components.steps.image import RUNTIME_IMAGE
from pipeline.recipe import MAX_PARAMETER, check_parameter_sizes

SCHEMA = "2.1.0"
"""The one version of the format that servers run."""

_SECRETS = ("password", "secret", "api_key", "apikey", "token", "credential")
# The one that is written in C, where it is built: ten times as fast.
_LOADER = vars(yaml).get("CSafeLoader", yaml.SafeLoader)
_EXACT = 2**53  # the server keeps numbers as doubles


@dataclass(frozen=True, slots=True)
class Parameter:
    """What the pipeline says of one of its parameters. `type` is a word such as int; a default of None is none."""

    name: str
    type: str
    required: bool
    default: Any = None
    allowed: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class CompiledPipeline:
    """A pipeline that a server will take. `version` names its content: the start of the text's SHA-256."""

    name: str
    text: str
    version: str
    parameters: Mapping[str, Parameter]

    def values(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """All parameters with the values that are sent: those given, text read as the declared type, and the defaults.

        Raises ConfigError naming every unknown or missing parameter, every wrong value, and what is too long.
        """
        problems = [
            Problem(name, value, f"is no parameter of {self.name}; it has {', '.join(self.parameters)}")
            for name, value in given.items()
            if name not in self.parameters
        ]
        values: dict[str, Any] = {}
        for name, parameter in self.parameters.items():
            if name not in given and parameter.required:
                problems.append(Problem(name, "", f"must be given to {self.name}; it is of type {parameter.type}"))
                continue
            if name not in given:
                if parameter.default is not None:
                    values[name] = parameter.default
                continue
            try:
                values[name] = _typed(parameter, given[name])
            except ValueError as error:
                problems.append(Problem(name, given[name], str(error)))
        if problems:
            raise ConfigError(problems)
        check_sizes(values)
        return values


def shipped_pipeline(name: str) -> Path:
    """The file of a shipped pipeline by its name, or the path that `name` is."""
    shipped = Path(__file__).parent / f"{name}.yaml"
    return shipped if "/" not in name and shipped.is_file() else Path(name)


def read_compiled(path: Path, *, image: str = "") -> CompiledPipeline:
    """Read a compiled pipeline; its steps then run in `image` instead of the usual one.

    Raises ConfigError with one line that names the file and what is wrong with it.
    """
    try:
        text = path.read_text(encoding="utf-8")
        text = text.replace(RUNTIME_IMAGE, image) if image else text
        documents = [each for each in yaml.load_all(text, Loader=_LOADER) if each is not None]
    except (FileNotFoundError, IsADirectoryError):
        raise _no_pipeline(path, "there is no such file") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise _no_pipeline(path, f"is no YAML: {' '.join(str(error).split())}") from None
    if not documents:
        raise _no_pipeline(path, "is empty; write one with `headrace compile -o FILE`")
    try:
        spec = json_format.ParseDict(documents[0], pipeline_spec_pb2.PipelineSpec())
    except json_format.ParseError as error:
        said = " ".join(str(error).split()).partition(" Available Fields")[0]
        raise _no_pipeline(path, f"is no compiled pipeline: {said}") from None
    if not spec.pipeline_info.name:
        raise _no_pipeline(path, "has no name (pipelineInfo.name)")
    if spec.schema_version != SCHEMA:
        raise _no_pipeline(path, f"has schema version {spec.schema_version!r}, and servers take {SCHEMA}")
    if not spec.root.dag.tasks:
        raise _no_pipeline(path, "has no tasks")
    declared = spec.root.input_definitions.parameters
    return CompiledPipeline(
        name=spec.pipeline_info.name,
        text=text,
        version=hashlib.sha256(text.encode()).hexdigest()[:12],
        parameters={name: _parameter(name, declared[name]) for name in sorted(declared)},
    )


def parse_parameters(assignments: list[str]) -> dict[str, str]:
    """`["steps=100"]` -> `{"steps": "100"}`. Raises ConfigError for one without a name or an equals sign."""
    pairs = [assignment.partition("=") for assignment in assignments]
    problems = [
        Problem("--param", assignment, "write it as NAME=VALUE, for example steps=100")
        for assignment, (name, equals, _) in zip(assignments, pairs, strict=True)
        if not name.strip() or not equals
    ]
    if problems:
        raise ConfigError(problems)
    return {name.strip(): value for name, _, value in pairs}


def check_sizes(values: Mapping[str, Any]) -> None:
    """Raises ConfigError naming each parameter that is too long, or all where they are too long together."""
    texts = {name: value if isinstance(value, str) else json.dumps(value) for name, value in values.items()}
    check_parameter_sizes(texts)
    size = len(json.dumps(values).encode())
    if size > MAX_PARAMETER:
        longest = max(texts, key=lambda name: len(texts[name]))
        message = (
            f"have {size:,} bytes together, and servers take {MAX_PARAMETER:,}; the longest is {longest} with "
            f"{len(texts[longest]):,} characters: put it into a file"
        )
        raise ConfigError(Problem("the parameters", longest, message))


def _parameter(name: str, declared: Any) -> Parameter:
    """From the proto. Defaults are doubles there, also of whole numbers."""
    kinds = pipeline_spec_pb2.ParameterType.ParameterTypeEnum
    kind = _TYPES[kinds.Name(declared.parameter_type)]
    has_default = declared.HasField("default_value")
    default = json_format.MessageToDict(declared.default_value) if has_default else None
    parameter = Parameter(
        name=name,
        type=kind,
        required=not (has_default or declared.is_optional),
        allowed=tuple(json_format.MessageToDict(each) for each in declared.literals),
    )
    return dataclasses.replace(parameter, default=_typed(parameter, default) if has_default else None)


_TYPES = {
    "PARAMETER_TYPE_ENUM_UNSPECIFIED": "text",
    "NUMBER_INTEGER": "int",
    "NUMBER_DOUBLE": "float",
    "STRING": "text",
    "BOOLEAN": "bool",
    "LIST": "list",
    "STRUCT": "mapping",
    "TASK_FINAL_STATUS": "status",
    "TASK_CONFIG": "task settings",
}


def _typed(parameter: Parameter, value: Any) -> Any:
    """The value in the declared type. Raises ValueError saying what was expected."""
    if parameter.type == "text":
        if not isinstance(value, str):
            raise ValueError("must be text")
        if any(word in parameter.name.lower() for word in _SECRETS) and value:
            raise ValueError("secrets do not go into parameters, which everybody sees; use a Kubernetes secret")
        typed: Any = value
    elif parameter.type in ("int", "float"):
        typed = _number(parameter.type, value)
    else:
        typed = _structured(parameter.type, value)
    if parameter.allowed and typed not in parameter.allowed:
        raise ValueError(f"must be one of {', '.join(map(str, parameter.allowed))}")
    return typed


def _number(kind: str, value: Any) -> int | float:
    text = str(value).strip()
    try:
        # Text of digits not through a double, which would round it.
        number = int(text) if text.lstrip("+-").isdecimal() else float(text)
    except ValueError:
        raise ValueError(f"must be a number of type {kind}") from None
    if not math.isfinite(number):
        raise ValueError("must be finite")
    if kind == "float":
        return float(number)
    if number != int(number) or abs(number) > _EXACT:
        raise ValueError(f"must be a whole number of at most {_EXACT}")
    return int(number)


def _structured(kind: str, value: Any) -> Any:
    """A bool, a list or a mapping; text is read as JSON."""
    expected = {"bool": bool, "list": list, "mapping": dict}.get(kind)
    if expected is None:
        raise ValueError("is set by the server alone")
    if isinstance(value, str):
        try:
            value = json.loads(value.lower() if kind == "bool" else value)
        except json.JSONDecodeError:
            value = None
    if not isinstance(value, expected):
        example = {"bool": "true or false", "list": 'a JSON list such as ["a", "b"]', "mapping": "a JSON object"}[kind]
        raise ValueError(f"must be {example}")
    return value


def _no_pipeline(path: Path, message: str) -> ConfigError:
    return ConfigError(Problem("pipeline", str(path), message))

"""What a Kubeflow Pipelines 2.17 server accepts, as its sources say: fields, pipelines, parameters, cron expressions.

Fields and types come from the models of `kfp_server_api`, which are made from the server's own API; the rest follows
`backend/src/apiserver` (protojson without unknown fields, `validatePipelineJobInputs`) and robfig/cron 1.2.
"""

import json
import re
from typing import Any

import kfp_server_api
import yaml
from google.protobuf import json_format
from kfp.pipeline_spec import pipeline_spec_pb2

INVALID, NOT_FOUND, EXISTS, DENIED, INTERNAL, UNKNOWN_USER = 3, 5, 6, 7, 13, 16
HTTP = {INVALID: 400, NOT_FOUND: 404, EXISTS: 409, DENIED: 403, INTERNAL: 500, UNKNOWN_USER: 401}
"""HTTP status by gRPC code, as the gateway maps them."""

# The one in C is ten times as fast, where it is built.
_Loader = vars(yaml).get("CSafeLoader", yaml.SafeLoader)
_CRON = ((0, 59), (0, 59), (0, 23), (1, 31), (1, 12), (0, 6))
_MONTHS = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]
_WEEKDAYS = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"]
_NAMES = ([], [], [], [], _MONTHS, _WEEKDAYS)
_JSON_TYPES = {"str": str, "bool": bool, "int": int, "datetime": str}
_PARAMETER_TYPES = {
    "NUMBER_DOUBLE": (int | float, "double or integer"),
    "NUMBER_INTEGER": (int | float, "double or integer"),
    "STRING": (str, "string"),
    "BOOLEAN": (bool, "bool"),
    "LIST": (list, "list"),
    "STRUCT": (dict, "struct"),
}


class RefusedError(Exception):
    """An answer that is an error."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


def check_fields(body: Any, model: str) -> dict[str, Any]:
    """A request's body, if protojson reads it as this message. Raises RefusedError for an unknown field or a type."""
    if not isinstance(body, dict):
        raise RefusedError(INVALID, f"proto: syntax error: unexpected token {json.dumps(body)}")
    kind = getattr(kfp_server_api, model)
    known = {kind.attribute_map[name]: declared for name, declared in kind.openapi_types.items()}
    for name, value in body.items():
        if name not in known:
            raise RefusedError(INVALID, f'proto: (line 1:2): unknown field "{name}"')
        _check_type(name, value, known[name])
    return body


def _check_type(name: str, value: Any, declared: str) -> None:
    if declared.startswith("V2beta1") or declared in ("RecurringRunMode", "GoogleRpcStatus"):
        kind = getattr(kfp_server_api, declared)
        values = getattr(kind, "allowable_values", None)
        if values is None:
            check_fields(value, declared)
        elif value not in values:
            raise RefusedError(INVALID, f"proto: (line 1:2): invalid value for enum field {name}: {json.dumps(value)}")
    elif declared.startswith("list["):
        for each in value:
            _check_type(name, each, declared.removeprefix("list[").removesuffix("]"))
    elif declared.startswith(("dict(", "object")):
        if not isinstance(value, dict):
            raise RefusedError(INVALID, f"proto: (line 1:2): unexpected token {json.dumps(value)}")
    # A number of 64 bits is text in JSON, and may be a number.
    elif not isinstance(value, _JSON_TYPES[declared]) and not (declared == "str" and type(value) is int):
        raise RefusedError(
            INVALID, f"proto: (line 1:2): invalid value for {declared} field {name}: {json.dumps(value)}"
        )


def read_pipeline(text: bytes) -> dict[str, Any]:
    """The specification in an uploaded file. Raises RefusedError for what is none."""
    try:
        documents = [each for each in yaml.load_all(text, Loader=_Loader) if each]
        spec = json_format.ParseDict(documents[0], pipeline_spec_pb2.PipelineSpec())
    except (yaml.YAMLError, json_format.ParseError, IndexError) as error:
        raise RefusedError(INVALID, f"pipeline spec is invalid: {error}") from None
    if not spec.pipeline_info.name or spec.schema_version != "2.1.0" or not spec.HasField("root"):
        raise RefusedError(INVALID, "pipeline spec is invalid: no pipeline spec is provided")
    return documents[0]


def check_parameters(spec: dict[str, Any], given: dict[str, Any]) -> None:
    """Raises RefusedError for parameters that the pipeline of `spec` cannot be started with."""
    declared = spec["root"].get("inputDefinitions", {}).get("parameters", {})
    for name, parameter in declared.items():
        if name not in given:
            if not parameter.get("isOptional") and "defaultValue" not in parameter:
                raise RefusedError(
                    INVALID,
                    f"parameter {name} is not optional, yet has neither default value nor user provided value",
                )
            continue
        kind, word = _PARAMETER_TYPES[parameter["parameterType"]]
        if not isinstance(given[name], kind) or (kind == int | float and isinstance(given[name], bool)):
            raise RefusedError(
                INVALID,
                f"input parameter {name} requires type {word}, but the parameter value is not of {word} value type",
            )
    if extra := given.keys() - declared.keys():
        raise RefusedError(INVALID, f"parameter(s) provided are not required by pipeline: {', '.join(sorted(extra))}")
    if len(json.dumps(given)) > 10_000:
        raise RefusedError(INVALID, "The input parameter length exceed maximum size of 10000")


def check_cron(text: str) -> None:
    """Raises RefusedError for what robfig/cron 1.2 does not parse. Five fields are read as six without the weekday."""
    fields = text.split()
    if len(fields) not in (5, 6):
        raise RefusedError(INVALID, f"Expected 5 to 6 fields, found {len(fields)}: {text}")
    for number, field in enumerate(fields):
        for part in field.split(","):
            _check_range(part, _CRON[number], _NAMES[number])


def _check_range(part: str, bounds: tuple[int, int], names: list[str]) -> None:
    found = re.fullmatch(r"(\*|\?|\w+)(?:-(\w+))?(?:/(\d+))?", part)
    if found is None:
        raise RefusedError(INVALID, f"Failed to parse int from {part}")
    for word in found.groups()[:2]:
        if word in (None, "*", "?") or word.lower() in names:
            continue
        if not word.isdecimal() or not bounds[0] <= int(word) <= bounds[1]:
            raise RefusedError(INVALID, f"Failed to parse int from {word}, or it is out of {bounds}")


def select(items: list[dict[str, Any]], filter_text: str) -> list[dict[str, Any]]:
    """Those that a list call's filter leaves, for text that is equal. Raises RefusedError for any other filter."""
    if not filter_text:
        return items
    # The server knows older names, but only as they are written here.
    body = json.loads(filter_text.replace('"stringValue":', '"string_value":'))
    for predicate in body.get("predicates", []):
        # An enum may be its number.
        check_fields({**predicate, "operation": "EQUALS"}, "V2beta1Predicate")
        if predicate["operation"] not in (1, "EQUALS") or predicate["key"] not in ("display_name", "name"):
            raise RefusedError(INVALID, f"Cannot list by predicate {predicate}")
        items = [each for each in items if each.get(predicate["key"]) == predicate["string_value"]]
    return items

"""Tools -> what a prompt says of them, in the wording that each family of models was trained with."""

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from components.environments.tools import Tool
from components.rollout.pieces import Pieces, marked

_HERMES_HEAD = (
    "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
    "You are provided with function signatures within <tools></tools> XML tags:\n<tools>\n"
)
_HERMES_TAIL = marked(
    "\n</tools>\n\nFor each function call, return a json object with function name and arguments within "
    "<tool_call></tool_call> XML tags:\n"
    '<tool_call>\n{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call>'
)
_XML_HEAD = "# Tools\n\nYou have access to the following functions:\n\n<tools>"
_XML_TAIL = marked(
    "\n</tools>\n\nIf you choose to call a function ONLY reply in the following format with NO suffix:\n\n"
    "<tool_call>\n<function=example_function_name>\n<parameter=example_parameter_1>\nvalue_1\n</parameter>\n"
    "<parameter=example_parameter_2>\nThis is the value for the second parameter\nthat can span\nmultiple lines\n"
    "</parameter>\n</function>\n</tool_call>\n\n<IMPORTANT>\nReminder:\n"
    "- Function calls MUST follow the specified format: an inner <function=...></function> block must be nested within "
    "<tool_call></tool_call> XML tags\n- Required parameters MUST be specified\n"
    "- You may provide optional reasoning for your function call in natural language BEFORE the function call, but NOT "
    "after\n- If there is no function call available, answer the question like normal with your current knowledge and "
    "do not tell the user about function calls\n</IMPORTANT>"
)
_LLAMA_HEAD = (
    "Given the following functions, please respond with a JSON for a function call with its proper arguments that best "
    'answers the given prompt.\n\nRespond in the format {"name": function name, "parameters": dictionary of argument '
    "name and its value}.Do not use variables.\n\n"
)


def hermes(tools: Sequence[Tool]) -> Pieces:
    """JSON lines in `<tools>`, and the form of a call: Hermes, Qwen2.5, Qwen3."""
    listed = "\n".join(json.dumps(tool.definition, ensure_ascii=False) for tool in tools)
    return (_HERMES_HEAD + listed, *_HERMES_TAIL)


def qwen_xml(tools: Sequence[Tool]) -> Pieces:
    """A list in tags, and the form of a call: Qwen3-Coder."""
    return (_XML_HEAD + "".join(map(_in_tags, tools)), *_XML_TAIL)


def llama(tools: Sequence[Tool]) -> Pieces:
    """Indented JSON below the form of a call: Llama 3.1 and later. The user's own words follow directly."""
    listed = "".join(json.dumps(tool.definition, ensure_ascii=False, indent=4) + "\n\n" for tool in tools)
    return (_LLAMA_HEAD + listed,)


def _in_tags(tool: Tool) -> str:
    parameters = tool.parameters
    properties = parameters.get("properties", {})
    listed = "".join(_property(name, schema) for name, schema in properties.items())
    return (
        f"\n<function>\n<name>{tool.name}</name>\n<description>{tool.description.strip()}</description>\n<parameters>"
        f"{listed}{_others(parameters, ('type', 'properties'))}\n</parameters>\n</function>"
    )


def _property(name: str, schema: Mapping[str, Any]) -> str:
    kind = f"\n<type>{schema['type']}</type>" if "type" in schema else ""
    said = f"\n<description>{schema['description'].strip()}</description>" if "description" in schema else ""
    others = _others(schema, ("name", "type", "description"))
    return f"\n<parameter>\n<name>{name}</name>{kind}{said}{others}\n</parameter>"


def _others(schema: Mapping[str, Any], known: Collection[str]) -> str:
    """Whatever else a schema says, each in a tag of its own."""
    return "".join(f"\n<{key}>{_said(value)}</{key}>" for key, value in schema.items() if key not in known)


def _said(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, Mapping | list | tuple) else str(value)

"""`headrace doctor RECIPE`: what is wrong with a recipe, and what it would do."""

import argparse
import json
from collections.abc import Mapping
from typing import Any

from components.errors import ConfigError, Problem
from pipeline.commands.command import BAD_INPUT, OK, Command, add_json, add_recipe
from pipeline.doctor import diagnose, problem_record
from pipeline.machine import GIB
from pipeline.recipe import load_recipe, parse_assignments

ISOLATION = {
    "none": "Isolation: none is needed, as the environment runs no code of the model",
    "sandbox": "Isolation: code of the model runs in namespaces of its own, without network, files or rights",
    "process": "Isolation: code of the model runs in limited processes, with no claim of safety",
    "unavailable": "Isolation: this machine cannot isolate code of the model",
}


def doctor(options: argparse.Namespace) -> int:
    """Say what is wrong with a recipe, and what it would do."""
    try:
        diagnosis = diagnose(load_recipe(options.recipe, parse_assignments(options.set)))
    except ConfigError as error:
        problems = [problem_record(problem) for problem in error.problems]
        diagnosis = {"valid": False, "problems": problems, "objective": "", "memory_plan": {}, "isolation": ""}
        diagnosis["warnings"] = []
    print(json.dumps(diagnosis) if options.json else _text(diagnosis))
    return OK if diagnosis["valid"] else BAD_INPUT


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """A recipe."""
    add_recipe(parser)
    add_json(parser)


def _text(diagnosis: Mapping[str, Any]) -> str:
    problems = [f"  {Problem(**each)}" for each in diagnosis["problems"]]
    plan = {key: value for key, value in diagnosis["memory_plan"].items() if key.endswith("_bytes") or "bytes" in key}
    lines = [
        "valid" if diagnosis["valid"] else "1 problem" if len(problems) == 1 else f"{len(problems)} problems",
        *problems,
        *(f"  warning: {Problem(**each)}" for each in diagnosis["warnings"]),
    ]
    if diagnosis["objective"]:
        lines += ["", "Objective", *(f"  {line}" for line in diagnosis["objective"].splitlines())]
    if plan:
        width, devices = max(map(len, plan)), diagnosis["memory_plan"]["devices"]
        lines += [
            "",
            "Memory while training" + (f", on each of {devices} devices" if devices > 1 else ""),
            *(f"  {key:<{width}}  {value / GIB:8.3f} GiB" for key, value in plan.items()),
        ]
        lines.append(f"  {'total, estimated':<{width}}  {diagnosis['memory_plan']['total_gib_estimate']:8.3f} GiB")
    if diagnosis["isolation"]:
        lines += ["", ISOLATION[diagnosis["isolation"]]]
    return "\n".join(lines)


COMMAND = Command("doctor", doctor, add_arguments)

"""What a person fills in -> overrides of the recipe. There is one way to replace a value, and this is a name for it.

Kubeflow Pipelines has no None: an empty text, or -1 for a number, leaves a value to the recipe.
"""

from collections.abc import Mapping
from typing import Any

from components.errors import ConfigError, Problem

Value = str | int | float

KEYS: Mapping[str, str] = {
    "model": "init_model.source",
    "data": "environment.options.data",
    "objective": "train.objective.preset",
    "steps": "train.steps",
    "learning_rate": "train.optimizer.learning_rate",
    "seed": "seed",
    "accelerator": "platform.accelerator",
    "topology": "platform.topology",
    "parent": "parent",
    "tasks": "evaluate.tasks",
}
"""Parameters of the pipelines, and the key of the recipe that each of them replaces."""


def merged(parameters: Mapping[str, Value], overrides: Mapping[str, Any], trial: Mapping[str, Any]) -> dict[str, Any]:
    """All overrides of a run: those of the parameters that are filled in, the others, and those of a sweep's trial.

    Raises ConfigError for a number below -1, and for a key that a parameter and an override set to different values.
    """
    problems = [
        Problem(name, value, "must be 0 or more, or -1 for the recipe's own")
        for name, value in parameters.items()
        if not isinstance(value, str) and value < 0 and value != -1
    ]
    filled = {KEYS[name]: value for name, value in parameters.items() if value not in ("", -1)}
    problems += [
        Problem(f"overrides: {key}", overrides[key], f"the parameter {_name(key)} says {value!r}; give one of both")
        for key, value in filled.items()
        if key in overrides and str(overrides[key]) != str(value)
    ]
    if problems:
        raise ConfigError(problems)
    return {**overrides, **filled, **{key: _whole(value) for key, value in trial.items()}}


def renamed(problem: Problem, parameters: Mapping[str, Value]) -> Problem:
    """The problem, placed at the parameter that brought the value instead of at the override which that one is."""
    names = {f"--set {KEYS[name]}": name for name, value in parameters.items() if value not in ("", -1)}
    name = names.get(problem.where)
    return Problem(f"{name} ({KEYS[name]})", problem.value, problem.message) if name else problem


def _name(key: str) -> str:
    return next(name for name, known in KEYS.items() if known == key)


def _whole(value: Any) -> Any:
    """Numbers inside an object or a list arrive as floats: those that are whole are integers again."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [_whole(each) for each in value]
    return {key: _whole(each) for key, each in value.items()} if isinstance(value, dict) else value

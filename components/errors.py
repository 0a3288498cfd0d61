"""The error vocabulary. An error says what was wrong, the value, where, and what to do.

    HeadraceError
    ├── ConfigError        what a person wrote cannot work; raised before anything runs
    ├── DataError          a row or a file of the data is unusable
    ├── WeightsError       a checkpoint, adapter or tokenizer cannot be read as the model that it claims to be
    ├── CheckpointError    a run cannot be resumed from what is on the storage
    ├── ProofError         weights that were moved are not the weights that arrived
    ├── ClusterError       a cluster refuses a request, or could not run a job to its end
    ├── RunStoppedError    a limit that the recipe sets was reached (too many failures, no data left)
    └── RolloutError       an episode broke at a boundary to the outside: the one error that becomes data

Anything else that is raised is a bug, and ends the run.
"""

import dataclasses
import enum
import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


class HeadraceError(Exception):
    """Base of every error that Headrace raises on purpose."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong: `where` is a path of keys or a file and line, `value` what stands there."""

    where: str
    value: Any
    message: str

    def __str__(self) -> str:
        if not self.where:
            return self.message  # It was raised as a text, of no value.
        return f"{self.where}: {self.message} (got {_shortened(self.value)})"


def folded(problems: Sequence[Problem], told: int = 3) -> list[Problem]:
    """The problems in their order, of more than `told` with one message the first only; the last of these says how many
    more there are.
    """
    alike = Counter(each.message for each in problems)
    seen: Counter[str] = Counter()
    found = []
    for each in problems:
        seen[each.message] += 1
        if seen[each.message] < told or alike[each.message] <= told:
            found.append(each)
        elif seen[each.message] == told:
            more = f"{each.message} (and {alike[each.message] - told} more like these)"
            found.append(Problem(each.where, each.value, more))
    return found


class _ListedError(HeadraceError):
    """An error made of problems, so that a person sees all of them at once."""

    def __init__(self, problems: list[Problem] | Problem | str) -> None:
        if isinstance(problems, str):
            super().__init__(problems)
            self.problems = [Problem(where="", value="", message=problems)]
            return
        self.problems = problems if isinstance(problems, list) else [problems]
        super().__init__("\n".join(str(problem) for problem in self.problems))


class ConfigError(_ListedError):
    """What a person wrote cannot work."""


class DataError(_ListedError):
    """A row or a file of the data is unusable."""


class WeightsError(HeadraceError):
    """A checkpoint, adapter or tokenizer is not the model that it claims to be."""


class CheckpointError(HeadraceError):
    """A run cannot be resumed from what is on the storage."""


class ProofError(HeadraceError):
    """Weights that were moved are not the weights that arrived."""


class ClusterError(HeadraceError):
    """A cluster refuses a request, or could not run a job to its end."""


class RunStoppedError(HeadraceError):
    """A limit that the recipe sets was reached."""


class RolloutError(HeadraceError):
    """An episode broke at a boundary to the outside. `kind` is the boundary; counters are kept by it.

    A failed episode is never reward 0: it is left out of its group's statistics, counted, and retried up to a bound.
    Where it came out of a tool, `tool` is the tool's name and `seconds` what the call took.
    """

    kind = "rollout"
    tool: str | None = None
    seconds: float = 0.0


class EnvironmentFailedError(RolloutError):
    """The environment itself raised or returned something unusable."""

    kind = "environment"


class ToolFailedError(RolloutError):
    """A tool's infrastructure failed. A tool's refusal of bad arguments is not this: that is an observation."""

    kind = "tool"


class SandboxFailedError(RolloutError):
    """The sandbox could not be started or was lost."""

    kind = "sandbox"


class GraderFailedError(RolloutError):
    """The grader raised, hung, or returned something that is no finite number."""

    kind = "grader"


class EngineFailedError(RolloutError):
    """The engine could not serve a request."""

    kind = "engine"


class EpisodeTimeoutError(RolloutError):
    """The episode took longer than its limit in seconds."""

    kind = "timeout"


class CancelledEpisodeError(RolloutError):
    """The episode was cancelled from outside."""

    kind = "cancelled"


def plain(value: Any) -> Any:
    """A value as JSON and YAML can hold it: of a config what differs from its defaults, of an enum its value."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        given = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        return {name: plain(each) for name, each in given.items() if each != _default(type(value), name)}
    if isinstance(value, enum.Enum):
        return plain(value.value)
    if isinstance(value, Mapping):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value if isinstance(value, str | int | float | bool | None) else str(value)


def _default(kind: type, name: str) -> Any:
    return next(field.default for field in dataclasses.fields(kind) if field.name == name)


def _shortened(value: Any, limit: int = 200) -> str:
    """A value in one line, nearly as a recipe has it; texts are in quotes, so that what cannot be seen is."""
    text = _line(plain(value)) if value is not None else "nothing"
    return text if len(text) <= limit else f"{text[:limit]}... ({len(text)} characters)"


def _line(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {_line(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(_line(each) for each in value) + "]"
    return repr(value) if isinstance(value, str) else json.dumps(value)

"""What code may use up, and what came of running it: the two records of the sandbox."""

import dataclasses
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field

from components.config import config

Isolation = Literal["sandbox", "process"]
"""`sandbox`: namespaces, a filter of system calls, and limits. `process`: limits alone, with no claim of safety."""

DEFAULT_ISOLATION: Isolation = "sandbox"
"""What a recipe gets that says nothing. Nothing weaker is taken instead of it."""


@config
class Limits:
    """What one execution may use.

    `seconds` is wall time, `cpu_seconds` is of each process. `memory_megabytes` is the address space of each process;
    all of them together can use `processes` times as much. `output_bytes` holds for stdout and stderr each. The folder
    and /tmp hold `folder_megabytes` each, and one file no more than that.
    """

    seconds: Annotated[float, Field(gt=0, le=600)] = 5.0
    cpu_seconds: Annotated[int, Field(ge=1)] = 5
    memory_megabytes: Annotated[int, Field(ge=64)] = 512
    processes: Annotated[int, Field(ge=1, le=256)] = 8
    output_bytes: Annotated[int, Field(ge=1, le=16_000_000)] = 64_000
    folder_megabytes: Annotated[int, Field(ge=1)] = 32
    files: Annotated[int, Field(ge=16)] = 1000


DEFAULT_LIMITS = Limits()


class Outcome(StrEnum):
    """How an execution ended: by itself, with an exception, or at which limit."""

    FINISHED = "finished"
    RAISED = "raised"
    TIME = "time"
    OUTPUT = "output"
    KILLED = "killed"


@dataclass(frozen=True, slots=True)
class Execution:
    """What came of it.

    `value` is the repr of the last expression, None where there is none. `error` is a short traceback, or what ended
    it, in words. `exit_code` is None where a signal or a limit ended it. `cpu_seconds` is of all its processes,
    `peak_megabytes` the most memory that one of them had resident.
    """

    outcome: Outcome
    stdout: str = ""
    stderr: str = ""
    value: str | None = None
    error: str | None = None
    exit_code: int | None = None
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    peak_megabytes: float = 0.0

    @property
    def ok(self) -> bool:
        """It ran to its end, and its exit code is 0."""
        return self.outcome is Outcome.FINISHED and self.exit_code == 0

    def record(self) -> dict[str, object]:
        """As JSON holds it."""
        return dataclasses.asdict(self)

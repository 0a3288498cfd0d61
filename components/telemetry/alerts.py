"""Numbers of the last steps -> what a person should look at before they trust or pay for the run.

Rules are on by default, and a rule set to null is off. A rule looks at the mean of the last `window` steps, so that one
odd step is no alarm, and tells once: again only after it has been well in between.
"""

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Annotated, Any

from pydantic import Field

from components.config import config
from components.telemetry.clock import STARTING, idle_share

BASELINE_STEPS = 5
"""So many first steps say what mismatch of engine and trainer is normal in this run."""

SMALLEST_BASELINE = 1e-6
"""In nats: below it is rounding, and its multiples say nothing."""


@config
class AlertConfig:
    """Where a rule begins to tell; null switches it off. Shares are of 1.

    `max_mismatch_growth` is a multiple of the first steps' `mismatch_kl`; `max_heartbeat_seconds` is for who watches.
    """

    window: Annotated[int, Field(ge=1)] = 5
    min_effective_sample_size: Annotated[float, Field(gt=0, lt=1)] | None = 0.5
    max_mismatch_growth: Annotated[float, Field(gt=1)] | None = 5.0
    max_failure_share: Annotated[float, Field(gt=0, lt=1)] | None = 0.02
    max_silent_groups: Annotated[float, Field(gt=0, lt=1)] | None = 0.6
    max_trainer_idle: Annotated[float, Field(gt=0, lt=1)] | None = 0.2
    max_malformed_share: Annotated[float, Field(gt=0, lt=1)] | None = 0.5
    max_heartbeat_seconds: Annotated[float, Field(gt=0)] | None = 600.0


@dataclass(frozen=True, slots=True)
class Alert:
    """`rule` is its name in the metrics, `text` says what was seen and what to look at."""

    rule: str
    step: int
    text: str

    def __str__(self) -> str:
        return f"step {self.step}, {self.rule}: {self.text}"


class Alerts:
    """Looks at each step once. `standing` are the rules that are broken now, `told` all alerts so far."""

    def __init__(self, settings: AlertConfig) -> None:
        self.standing: set[str] = set()
        self.told: list[Alert] = []
        self._settings = settings
        self._window: deque[Mapping[str, Any]] = deque(maxlen=settings.window)
        self._baseline: list[float] = []

    def look(self, step: int, numbers: Mapping[str, Any]) -> list[Alert]:
        """The alerts that this step raises. Nothing is raised before the window is full."""
        self._window.append(numbers)
        if len(self._baseline) < BASELINE_STEPS and "mismatch_kl" in numbers:
            self._baseline.append(float(numbers["mismatch_kl"]))
        if len(self._window) < self._settings.window:
            return []
        broken = {rule: text for rule, text in self._rules().items() if text is not None}
        raised = [Alert(rule, step, text) for rule, text in broken.items() if rule not in self.standing]
        self.standing = set(broken)
        self.told += raised
        return raised

    def _rules(self) -> dict[str, str | None]:
        return {
            "effective_sample_size": self._sample_size(),
            "mismatch": self._mismatch(),
            "failures": self._failures(),
            "silent_groups": self._silent(),
            "trainer_idle": self._idle(),
            "malformed_calls": self._malformed(),
        }

    def _mean(self, number: Callable[[Mapping[str, Any]], float | None]) -> float | None:
        found = [value for value in map(number, self._window) if value is not None]
        return sum(found) / len(found) if found else None

    def _sample_size(self) -> str | None:
        bound, size = self._settings.min_effective_sample_size, self._mean(_number("effective_sample_size"))
        if bound is None or size is None or size >= bound:
            return None
        head = f"the effective sample size is {size:.2f}, below {bound:g}: a few tokens outweigh all others, "
        if self._mean(_number("same_version_share")) == 1.0:
            return (
                f"{head}although all were sampled at the trainer's own version. Engine and trainer compute different "
                "log-probs: look at mismatch_kl, and compare their dtypes and sampling settings"
            )
        return (
            f"{head}as the policy has moved far from the versions that sampled them, and training may collapse. Lower "
            "train.rollout.max_staleness or the learning rate, or hold the weights with objective.proximal: current"
        )

    def _mismatch(self) -> str | None:
        bound, mismatch = self._settings.max_mismatch_growth, self._mean(_number("mismatch_kl"))
        if bound is None or mismatch is None or len(self._baseline) < BASELINE_STEPS:
            return None
        normal = max(median(self._baseline), SMALLEST_BASELINE)
        if mismatch <= bound * normal:
            return None
        return (
            f"engine and trainer differ by {mismatch:.2g} nats at one version, {mismatch / normal:.0f} times what they "
            "did at first. Look at the sync proof, at dtypes, and at what is kept in the engine's cache over an update"
        )

    def _failures(self) -> str | None:
        bound = self._settings.max_failure_share
        episodes = sum(int(each.get("episodes", 0)) for each in self._window)
        failed: dict[str, int] = {}
        for each in self._window:
            for kind, amount in each.get("failures", {}).items():
                failed[kind] = failed.get(kind, 0) + amount
        share = sum(failed.values()) / episodes if episodes else 0.0
        if bound is None or share <= bound:
            return None
        kinds = ", ".join(f"{kind} {amount}" for kind, amount in sorted(failed.items(), key=lambda item: -item[1]))
        return (
            f"{share:.1%} of the episodes broke, more than {bound:.0%} ({kinds}). They train nothing and are played "
            "again; trajectories.jsonl holds each with its reason"
        )

    def _silent(self) -> str | None:
        bound = self._settings.max_silent_groups
        share = self._mean(lambda each: _share(each.get("groups_without_signal"), each.get("groups")))
        if bound is None or share is None or share <= bound:
            return None
        return (
            f"{share:.0%} of the groups have rewards that are all equal, more than {bound:.0%}: they teach nothing. "
            "The tasks are too easy or too hard; choose others, a larger group, or objective.dynamic_sampling"
        )

    def _idle(self) -> str | None:
        bound, idle = self._settings.max_trainer_idle, self._mean(lambda each: _idle_share(each))
        if bound is None or idle is None or idle <= bound:
            return None
        return f"the trainer waits {idle:.0%} of its time, over {bound:.0%}; `headrace report --why` names the cause"

    def _malformed(self) -> str | None:
        bound = self._settings.max_malformed_share
        malformed, calls = self._mean(_number("malformed_calls")), self._mean(_number("tool_calls"))
        share = _share(malformed, (malformed or 0.0) + (calls or 0.0))
        if bound is None or share is None or share <= bound:
            return None
        return (
            f"{share:.0%} of the tool calls cannot be understood, more than {bound:.0%}. Look whether the renderer is "
            "the one that the model was trained with, and at the calls in the report's trajectories"
        )


def heartbeat(settings: AlertConfig, seconds: float) -> str | None:
    """What to tell of a run whose last sign of life is so many seconds old."""
    bound = settings.max_heartbeat_seconds
    if bound is None or seconds <= bound:
        return None
    return (
        f"the last sign of life is {seconds:.0f} s old, more than {bound:g} s. Look whether its process or pod is "
        "there; `headrace run --resume` goes on with it"
    )


def _number(key: str) -> Callable[[Mapping[str, Any]], float | None]:
    return lambda numbers: float(numbers[key]) if numbers.get(key) is not None else None


def _share(part: int | float | None, whole: int | float | None) -> float | None:
    return part / whole if part is not None and whole else None


def _idle_share(numbers: Mapping[str, Any]) -> float | None:
    seconds = numbers.get("trainer_seconds", {})
    return idle_share(seconds) if any(state != STARTING for state in seconds) else None

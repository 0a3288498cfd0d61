"""Settings of a run before and now -> whether one may go on as the other."""

from collections.abc import Iterable, Mapping
from typing import Any

from components.errors import ConfigError, Problem

FREE = (
    "train.checkpoint_every",
    "train.checkpoints_kept",
    "train.sync_tolerance",
    "train.grace_seconds",
    "train.telemetry",
    "train.engine",
    "train.mesh",
    "train.placement",
    "train.rollout.max_concurrency",
    "train.rollout.max_staleness",
    "train.rollout.drop_older_than",
    "train.rollout.group_quorum",
    "train.rollout.max_attempts",
    "train.rollout.max_failures_in_a_row",
    "train.rollout.max_failure_share",
    "train.objective.refill_limit",
    "train.optimizer.max_skipped",
    "train.critic.optimizer.max_skipped",
)
"""Keys, and sections, that say how the rest of a run is played and not what its steps compute."""

_SCHEDULE, _CRITICS_SCHEDULE = "train.optimizer.schedule", "train.critic.optimizer.schedule"


def refuse_changes(before: Mapping[str, Any], now: Mapping[str, Any], free: Iterable[str] = FREE) -> None:
    """Raise ConfigError naming every key that differs and is neither one of `free` nor below one.

    The number of steps may change too, unless the learning rate depends on it.
    """
    old, new = flattened(before), flattened(now)
    # A critic without an optimizer of its own has the policy's.
    constant = all(
        each.get(_SCHEDULE) == "constant" and each.get(_CRITICS_SCHEDULE, "constant") == "constant"
        for each in (old, new)
    )
    allowed = (*free, "train.steps") if constant else tuple(free)
    problems = [
        Problem(key, new.get(key), f"the run was started with {old.get(key)!r}; resume with that, or start a new run")
        for key in sorted(old | new)
        if old.get(key) != new.get(key) and not any(key == each or key.startswith(f"{each}.") for each in allowed)
    ]
    if problems:
        raise ConfigError(problems)


def flattened(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mappings as one of dotted keys."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        flat |= flattened(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return flat

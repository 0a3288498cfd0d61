"""A run folder that a killed process left -> the very state that it was in: checkpoint, then the journal after it.

Optimizer steps that are in the journal and in no checkpoint are computed again from their trajectories; nothing is
generated for them. What was running is started again, with the same keys.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from components.errors import CheckpointError, ConfigError, Problem
from components.telemetry.progress import say
from components.training.checkpoint import Checkpoints
from components.training.history import Event, History, Opened, Step, steps_of
from components.training.learner import Learner
from components.training.weight_sync import fingerprint

FREE = (
    "train.checkpoint_every",
    "train.checkpoints_kept",
    "train.sync_tolerance",
    "train.grace_seconds",
    "train.engine",
    "train.placement",
    "train.rollout.max_concurrency",
    "train.rollout.max_staleness",
    "train.rollout.drop_older_than",
    "train.rollout.group_quorum",
    "train.rollout.max_attempts",
    "train.rollout.max_failures_in_a_row",
    "train.rollout.max_failure_share",
)
"""Keys, and sections, that say how the rest of a run is played and not what its steps compute."""

OnStep = Callable[[Step, Mapping[str, float]], None]


def resume(
    events: Iterable[Event],
    checkpoints: Checkpoints,
    learner: Learner,
    *,
    on_step: OnStep = lambda step, numbers: None,
) -> History:
    """Bring `learner` and the history to where the run was. A history without events is a run that has not begun.

    `on_step` is called with every optimizer step that is computed again, and what came out of it. Raises
    CheckpointError when journal and checkpoint do not fit. Settings are compared by `check_opening`, before.
    """
    history = History()
    found = checkpoints.restore(learner.state)
    if found is not None:
        learner.state = found.state
    after, facts = (found.step, found.facts) if found is not None else (0, {"events": 0})
    for step in steps_of(_verifying(events, history, facts, str(checkpoints.folder)), history):
        if step.version > after:
            say(f"step {step.version} is computed again from the journal")
            on_step(step, _again(learner, step))
    if history.version < after or history.events < facts["events"]:
        raise CheckpointError(
            f"{checkpoints.folder} holds step {after}, and the journal beside it ends before that (step "
            f"{history.version}); bring back the whole run folder, or start a new run"
        )
    return history


def recompute(learner: Learner, step: Step) -> dict[str, float]:
    """Make an optimizer step from its trajectories. Gives what the learner says of it."""
    for group in step.groups:
        learner.add(group)
    return learner.finish()


def refuse_changes(before: Mapping[str, Any], now: Mapping[str, Any], free: Iterable[str] = FREE) -> None:
    """Raise ConfigError naming every key that differs and is neither one of `free` nor below one.

    The number of steps may change too, unless the learning rate depends on it.
    """
    old, new = flattened(before), flattened(now)
    constant = all(each.get("train.optimizer.schedule") == "constant" for each in (old, new))
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


def check_opening(first: Event, opening: Opened) -> None:
    """Compare a journal's first event with how the run is started now.

    Raises ConfigError naming each setting that has changed and must not, CheckpointError for other tasks.
    """
    if not isinstance(first, Opened):
        raise CheckpointError(f"the journal begins with {type(first).__name__}, not with the run's settings")
    refuse_changes(first.settings, opening.settings)
    if first.tasks != opening.tasks:
        raise CheckpointError(
            f"the run was started on tasks {first.tasks}, and these are tasks {opening.tasks}; "
            "resume with the same data, or start a new run"
        )


def _verifying(events: Iterable[Event], history: History, facts: Mapping[str, Any], where: str) -> Iterable[Event]:
    """The events; when as many have been applied as the checkpoint saw, the two accounts must agree."""
    for event in events:
        if history.events and history.events == facts["events"]:
            history.check(facts, where)
        yield event
    if history.events and history.events == facts["events"]:
        history.check(facts, where)


def _again(learner: Learner, step: Step) -> dict[str, float]:
    numbers = recompute(learner, step)
    if fingerprint(learner.state.adapter) != step.fingerprint:
        say(
            f"step {step.version}: computed again, the adapter is {fingerprint(learner.state.adapter)} and was "
            f"{step.fingerprint}; other hardware rounds otherwise, and the run goes on with the new one"
        )
    return numbers

"""A run folder that a killed process left -> the very state that it was in: checkpoint, then the journal after it.

Optimizer steps that are in the journal and in no checkpoint are computed again from their trajectories; nothing is
generated for them. What was running is started again, with the same keys.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from components.errors import CheckpointError
from components.telemetry.progress import say
from components.training.checkpoint import Checkpoints
from components.training.history import Event, History, Opened, Step, steps_of
from components.training.learner import Learner
from components.training.resumable import refuse_changes
from components.training.weight_sync import fingerprint

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


def check_opening(first: Event, opening: Opened) -> None:
    """Compare a journal's first event with how the run is started now.

    Raises ConfigError naming each setting that has changed and must not, CheckpointError for another input.
    """
    if not isinstance(first, Opened):
        raise CheckpointError(f"the journal begins with {type(first).__name__}, not with the run's settings")
    refuse_changes(first.settings, opening.settings)
    for name, before in first.fingerprints.items():
        if (now := opening.fingerprints[name]) != before:
            raise CheckpointError(
                f"the run was started on {name} with fingerprint {before} (in {first.inputs[name]}), and this is {now} "
                f"(in {opening.inputs[name]}); its data, its source or the program that made it has changed: bring "
                "back what it was, or start a new run"
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
            f"{step.fingerprint}; other hardware, or other versions of jax and of this program, round otherwise. "
            "The run goes on with the new one"
        )
    return numbers

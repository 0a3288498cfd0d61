"""Seconds by state of a run's trainer and engine -> what it lost time to, the largest loss first, and what to do.

    for loss in losses(read_run(folder)):
        print(loss.cause, loss.share, loss.advice)

A loss is time in which the trainer did no training, or time of either role that went into compiling. The engine's own
waiting is told beside it and is no loss by itself: with one trainer to feed, an engine may well be ahead.
"""

from dataclasses import dataclass

from components.telemetry.clock import COMPILING, STARTING, is_waiting
from components.telemetry.run_files import RunRecord

SMALL = 0.02
"""A loss below this share of the wall time is not worth a look."""

ADVICE = {
    "generation": "the trainer waits for the engine: raise train.rollout.max_staleness, so that it may run ahead, "
    "shorten completions (environment.limits.max_new_tokens), or give the engine more devices (train.placement)",
    "tools": "tools answer slowly: look at the seconds of each tool, at its time-out and concurrency limit, and raise "
    "train.rollout.max_concurrency or max_staleness, so that other episodes fill the wait",
    "graders": "rewards come slowly: look at what the grader does, give it workers or a shorter time-out, and raise "
    "train.rollout.max_staleness, so that training goes on with what is graded",
    "environments": "environments open or close slowly: keep what their reset builds from one episode to the next",
    "group completion": "one member of a group samples on when all others have ended: close groups without their "
    "slowest members (train.rollout.group_quorum), or cut completions (environment.limits.max_new_tokens)",
    "admission": "too few episodes run at once, and rows of the engine stand empty: raise "
    "train.rollout.max_concurrency, or set it to auto",
    "failed attempts": "episodes break and are played again: trajectories.jsonl holds each failure and its reason",
    "engine compiling": "the engine compiles while the trainer waits: shapes differ from step to step, or its "
    "cache is cold; see the `compile` spans in trace.json",
    COMPILING: "programs are compiled again and again: shapes differ from step to step (train.packing.capacities, "
    "train.engine.prefill_chunk); only the first steps of a run should compile",
    "weight sync": "new weights take long to prove and to swap: use a smaller adapter",
    "checkpoint": "saving holds up training: raise train.checkpoint_every, or look at the storage",
}


_ONLY_AT_FIRST = "only the first steps compiled, as they must, each shape once; a longer run loses less to it"


@dataclass(frozen=True, slots=True)
class Loss:
    """Time that did not train: `seconds` of the whole run, their `share` of its wall time, and what to do."""

    cause: str
    seconds: float
    share: float
    advice: str


def losses(run: RunRecord) -> list[Loss]:
    """What the trainer lost time to, by cause, the largest first; an empty list where nothing is known."""
    trainer = run.seconds("trainer")
    wall = sum(seconds for state, seconds in trainer.items() if state != STARTING)
    if not wall:
        return []
    lost: dict[str, float] = {}
    for state, seconds in trainer.items():
        if is_waiting(state) or state in ADVICE:
            cause = state.removeprefix("waiting for ")
            lost[cause] = lost.get(cause, 0.0) + seconds
    found = [
        Loss(cause, seconds, seconds / wall, _advice(run, cause)) for cause, seconds in lost.items() if seconds > 0
    ]
    return sorted(found, key=lambda loss: -loss.seconds)


def _advice(run: RunRecord, cause: str) -> str:
    if cause in (COMPILING, "engine compiling"):
        later = run.metrics[len(run.metrics) // 2 :]
        compiled = sum(line.get("trainer_seconds", {}).get(_state(cause), 0.0) for line in later)
        if compiled < SMALL * sum(line.get("seconds", 0.0) for line in later):
            return _ONLY_AT_FIRST
    return ADVICE.get(cause, "look at the trace")


def _state(cause: str) -> str:
    return cause if cause == COMPILING else f"waiting for {cause}"


def unaccounted_share(run: RunRecord) -> float:
    """How far the trainer's seconds by state are from the wall time of its steps, as a share of that time."""
    wall = sum(line.get("seconds", 0.0) for line in run.metrics)
    named = sum(sum(line.get("trainer_seconds", {}).values()) for line in run.metrics)
    return abs(wall - named) / wall if wall else 0.0


def explained(run: RunRecord) -> str:
    """The losses for people, one paragraph each, and what the engine did meanwhile."""
    found = losses(run)
    if not found:
        return "nothing is known of where the time went: the run has no step yet"
    large = [loss for loss in found if loss.share >= SMALL]
    lines = [f"trainer: {1 - sum(loss.share for loss in found):.0%} of the time it trained"]
    lines += [f"  {loss.share:6.1%}  {loss.cause} ({loss.seconds:.1f} s)" for loss in large or found[:1]]
    engine = {state: seconds for state, seconds in run.seconds("engine").items() if state != STARTING}
    whole = sum(engine.values())
    if whole:
        lines.append("engine:")
        ranked = sorted(engine.items(), key=lambda item: -item[1])
        lines += [f"  {seconds / whole:6.1%}  {state}" for state, seconds in ranked if seconds >= SMALL * whole]
    if large:
        lines.append(f"first cause: {large[0].cause}. {large[0].advice[0].upper()}{large[0].advice[1:]}.")
    else:
        lines.append("no cause takes more than 2 % of the time")
    return "\n".join(lines)

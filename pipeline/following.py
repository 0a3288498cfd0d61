"""A run's folder, local or on gs:// -> what a person at a terminal wants to see of it, again and again until it ends.

Whether a run is alive is told by the lock that its process holds; on gs://, where there is none, by how long ago it
wrote a line.
"""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from components import storage
from components.config import load
from components.errors import ConfigError, Problem
from components.telemetry import formatting
from components.telemetry.alerts import AlertConfig, heartbeat
from components.telemetry.clock import STARTING, idle_share
from components.telemetry.run_files import METRICS, SUMMARY, TUNING, RunRecord, failure_of, read_run
from pipeline import manifest as manifests

SILENT_SECONDS = 600.0
"""After so long without a line a run on gs:// is said to be silent."""

_LOCKS = ("run.lock", "tune.lock", "train.lock")
_OF_A_RUN = (METRICS, TUNING, SUMMARY, manifests.MANIFEST, storage.OWN_MARKER, *_LOCKS)
"""Any of these says that a folder is a run's; of one that has only just begun there are no more than the last."""
_SIGNS_OF_LIFE = ("journal.jsonl", METRICS, TUNING, "log.txt")
_LAST = 10  # steps that a share or a mean is taken over


class State(StrEnum):
    """How a run is."""

    STARTING = "starting"
    RUNNING = "running"
    SILENT = "silent"
    FINISHED = "finished"
    FAILED = "failed"
    DEAD = "dead"

    @property
    def is_end(self) -> bool:
        """Whether there is nothing more to wait for."""
        return self in (State.FINISHED, State.FAILED, State.DEAD)


@dataclass(frozen=True, slots=True)
class Look:
    """A run's folder at one moment. `age` is how many seconds ago it last wrote, None where that is not known;
    `alert` what to tell of that.
    """

    folder: str
    record: RunRecord
    state: State
    planned: int | None = None
    age: float | None = None
    alert: str | None = None

    @property
    def step(self) -> int:
        """The last optimizer step that is written down; 0 before the first."""
        return int(self.record.metrics[-1]["step"]) if self.record.metrics else 0

    @property
    def tuned(self) -> int | None:
        """The last step of tuning on examples, 0 before the first; None where there is none."""
        return int(self.record.tuning[-1]["step"]) if self.record.tuning else None

    @property
    def seconds_left(self) -> float | None:
        """As long as the steps that are left take at the pace of the last ones; None where that is not known."""
        paces = [value for _, value in self.record.series("seconds")][-_LAST:]
        if self.planned is None or not paces or self.state is not State.RUNNING:
            return None
        return sum(paces) / len(paces) * max(0, self.planned - self.step)


def look(folder: str, *, now: Callable[[], float] = time.time) -> Look:
    """Read what the run has written so far. Raises ConfigError for what is no run's folder."""
    folder = folder.rstrip("/")
    if not any(storage.exists(storage.join(folder, name)) for name in _OF_A_RUN):
        raise ConfigError(Problem("RUN", folder, "is neither a run's folder nor a run's id"))
    record = read_run(folder, trajectories=False)
    written = _last_written(folder)
    age = None if written is None else max(0.0, now() - written)
    train, state = _train_section(folder), _state(folder, record, age)
    steps = train.get("steps")
    return Look(folder, record, state, steps if isinstance(steps, int) else None, age, _heartbeat(train, state, age))


def follow(
    folder: str,
    *,
    show: Callable[[Look], None],
    every: float = 2.0,
    sleep: Callable[[float], None] = time.sleep,
    now: Callable[[], float] = time.time,
) -> Look:
    """Look every so many seconds and show each look, until the run has ended. Gives the last one."""
    while True:
        seen = look(folder, now=now)
        show(seen)
        if seen.state.is_end:
            return seen
        sleep(every)


class Lines:
    """Tells what is new as plain lines, each once."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._state: State | None = None
        self._tuned = -1
        self._step = 0

    def show(self, seen: Look) -> None:
        """Say what has changed since the last look."""
        for line in seen.record.tuning:
            if line["step"] > self._tuned:
                self._say(tuning_text(line))
        for line in seen.record.metrics:
            if line["step"] > self._step:
                self._say(step_text(line, seen.planned))
        # A resumed run may have taken steps back.
        self._tuned = -1 if seen.tuned is None else seen.tuned
        self._step = seen.step
        if seen.state is not self._state:
            self._state = seen.state
            self._say(state_text(seen))


def state_text(seen: Look) -> str:
    """How the run is, in one line, and what to do where something has to be done."""
    text = f"{seen.record.summary.get('recipe', 'run')}: {seen.state}"
    if seen.step:
        text += f", step {seen.step}" + (f" of {seen.planned}" if seen.planned else "")
    elif seen.tuned is not None:
        text += f", step {seen.tuned} of tuning"
    if seen.age is not None and seen.state not in (State.FINISHED, State.FAILED):
        text += f", last heard of {formatting.seconds(seen.age)} ago"
    if seen.alert:
        text += f"; {seen.alert}"
    if seen.state is State.FAILED:
        text += f"; {failure_text(seen.record.summary)}"
        if "--resume" not in text and (seen.step or seen.tuned):
            text += f"; go on with --resume {seen.folder}"
    if seen.state is State.DEAD:
        text += f"; no process works in {seen.folder}: go on with --resume, or see log.txt there"
    return _plain(text)


def failure_text(summary: Mapping[str, Any]) -> str:
    """What a run has failed of, in one line; empty where it has not."""
    failure = failure_of(summary)
    if failure is None:
        return ""
    first = failure["message"].strip().partition("\n")[0]
    return f"{failure['step']}: {first}" if failure["step"] else first


def step_text(line: Mapping[str, Any], planned: int | None = None) -> str:
    """One optimizer step in one line."""
    text = f"step {line['step']}" + (f"/{planned}" if planned else "")
    text += f"  reward {formatting.number(line.get('reward_mean'))}"
    if line.get("seconds") is not None:
        text += f"  {formatting.seconds(line['seconds'])}"
    if line.get("trainer_seconds"):
        text += f"  trainer waiting {formatting.percent(idle_share(line['trainer_seconds']))}"
    if failed := sum((line.get("failures") or {}).values()):
        text += f"  {failed} failed"
    return _plain(text)


def tuning_text(line: Mapping[str, Any]) -> str:
    """One step of tuning in one line; step 0 is what was measured before the first."""
    text = f"tuning step {line['step']}"
    if line.get("loss") is not None:
        text += f"  loss {formatting.number(line['loss'])}"
    if held_out := line.get("held_out"):
        numbers = (f"{name.replace('_', ' ')} {formatting.number(value)}" for name, value in held_out.items())
        text += f"  held out: {', '.join(numbers)}"
    return _plain(text)


def shares(metrics: Sequence[Mapping[str, Any]], role: str) -> list[tuple[str, float]]:
    """(state, share) of the last steps' time of a role, the largest first; the start does not count."""
    totals: dict[str, float] = {}
    for line in metrics[-_LAST:]:
        for state, spent in (line.get(f"{role}_seconds") or {}).items():
            if state != STARTING:
                totals[state] = totals.get(state, 0.0) + spent
    whole = sum(totals.values())
    return sorted(((state, spent / whole) for state, spent in totals.items() if spent), key=lambda each: -each[1])


def _plain(text: str) -> str:
    return text.replace("\u202f", " ")


def _state(folder: str, record: RunRecord, age: float | None) -> State:
    held = [storage.is_held(storage.join(folder, name)) for name in _LOCKS]
    is_over = "wall_seconds" in record.summary or "promotion" in record.summary or "outcome" in record.summary
    working = State.RUNNING if record.metrics or record.tuning else State.STARTING
    if True in held:
        return working
    # Without a lock to look at, a run that has failed may be in another try.
    if None not in held and failure_of(record.summary):
        return State.FAILED
    # Between two steps of a pipeline on this machine the lock of the run is held; without it nobody works here.
    if is_over or (None not in held and "accuracy_after" in record.summary):
        return State.FINISHED
    if None not in held:
        return State.DEAD
    if age is not None and age > SILENT_SECONDS:
        return State.SILENT
    return working


def _train_section(folder: str) -> Mapping[str, Any]:
    """The train section of the run's manifest; empty where there is none."""
    try:
        manifest = json.loads(storage.read_text(storage.join(folder, manifests.MANIFEST)))
    except FileNotFoundError:
        return {}
    section = manifest.get("exact", {}).get("train")
    return section if isinstance(section, dict) else {}


def _heartbeat(train: Mapping[str, Any], state: State, age: float | None) -> str | None:
    """The alert of a run that should write and does not."""
    if age is None or state.is_end:
        return None
    rules = train.get("telemetry", {}).get("alerts", {})
    return heartbeat(load(AlertConfig, rules, where="train.telemetry.alerts"), age)


def _last_written(folder: str) -> float | None:
    """The Unix time of the run's last line: of a local file, or of an object, whose generation tells it."""
    if not storage.is_remote(folder):
        files = [Path(folder, name) for name in _SIGNS_OF_LIFE]
        return max((file.stat().st_mtime for file in files if file.is_file()), default=None)
    uris = [storage.join(folder, name) for name in (METRICS, TUNING)]
    moments = [storage.read_versioned(uri)[1] / 1e6 for uri in uris if storage.exists(uri)]
    # A generation of Google's is the time in microseconds; one that is no such time says nothing.
    return max((moment for moment in moments if moment > 1e9), default=None)

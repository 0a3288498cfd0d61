"""Which episodes were doing what while the trainer waited, or the engine did -> waiting seconds by cause.

    trainer   waiting for generation | tools | graders | environments   what the last member of the awaited group did
                          group completion                              the others had ended, and it was still sampling
                          admission | failed attempts                   it had not begun: no room, or a broken attempt
                          engine compiling                              the engine was compiling meanwhile
    engine    waiting for tools | graders | environments                what most episodes did that asked for no tokens
                          trainer | weight sync | checkpoint            no episode may begin before the next version

The seconds of a role over all its states are its wall time, so that what is named here is what is missing elsewhere.
"""

from typing import Any

from components.engine.engine import Engine
from components.telemetry.clock import COMPILING, RoleClock
from components.telemetry.spans import now, record
from components.telemetry.timeline import Activity, Timeline, waited_for
from components.telemetry.tool_calls import environment_numbers
from components.types import Group, SequenceId

WAITING = "waiting for rollouts"
"""The trainer's state while it waits; the seconds then go to their causes."""

_SAMPLING = ("generation", "group completion")
_MAX_SHARE = 0.5
"""Of the rows of an engine that are in use: below it, and with room for no further episode, room is what is missing."""


class Stalls:
    """Keeps the timelines of the episodes whose groups are not consumed yet. Used on the event loop."""

    def __init__(self, trainer: RoleClock, engine: Engine) -> None:
        self._trainer = trainer
        self._engine = engine
        self._activity = Activity(self._engine_waits_for)
        self._timelines: dict[tuple[str, int], list[Timeline]] = {}
        self._ages: list[float] = []
        self._since = 0.0
        self._crowded = False
        self._compiled = 0.0
        self._decoded = (0, 0)

    def open(self, sequence: SequenceId) -> Timeline:
        """The timeline of an episode that begins."""
        timeline = Timeline(sequence.episode, self._activity, retry=sequence.attempt > 0)
        self._timelines.setdefault((sequence.task_id, sequence.epoch), []).append(timeline)
        return timeline

    def begin(self, *, crowded: bool) -> None:
        """The trainer begins to wait. `crowded`: more episodes might go on, if there were room for them."""
        self._since, self._crowded = now(), crowded
        self._compiled, self._decoded = self._compile_seconds(), self._dispatches()
        self._trainer.switch(WAITING)

    def end(self, state: str, group: Group | None) -> None:
        """The trainer goes on in `state`, with the group that it has waited for, if it is not told to stop."""
        self._trainer.switch(state)
        end = now()
        timelines = self._timelines.get((group.task.id, group.epoch), []) if group else []
        causes = waited_for(timelines, self._since, end)
        sampling = sum(causes.get(cause, 0.0) for cause in _SAMPLING)
        compiling = min(self._compile_seconds() - self._compiled, sampling)
        if sampling and compiling:
            causes |= {cause: causes[cause] * (1 - compiling / sampling) for cause in _SAMPLING if cause in causes}
            causes["engine compiling"] = compiling
        if self._crowded and self._rows_used() < _MAX_SHARE:
            causes["admission"] = causes.get("admission", 0.0) + sum(causes.pop(cause, 0.0) for cause in _SAMPLING)
        self._trainer.reassign(WAITING, {f"waiting for {cause}": seconds for cause, seconds in causes.items()})

    def consumed(self, group: Group, step: int) -> None:
        """A group is on its way into optimizer step `step`, or out: its timelines are over."""
        moment = now()
        for timeline in self._timelines.pop((group.task.id, group.epoch), []):
            if timeline.ended is not None:
                record("training queue", timeline.ended, moment, episode=timeline.name, step=step)
                self._ages.append(moment - timeline.ended)

    def queue_numbers(self) -> dict[str, float]:
        """How long episodes have waited for the trainer, of those consumed since the last call; in seconds."""
        ages, self._ages = self._ages, []
        return {"queue_seconds_mean": sum(ages) / max(len(ages), 1), "queue_seconds_max": max(ages, default=0.0)}

    def environment_numbers(self) -> dict[str, Any]:
        """How long the environment's acts took and how episodes ended since the last call; see telemetry.tool_calls."""
        return environment_numbers(*self._activity.taken())

    def settle(self) -> None:
        """The trainer has changed its state: an engine without episodes waits for another thing than before."""
        if self._activity.cause() is None:
            self._engine_waits_for(None)

    def _engine_waits_for(self, cause: str | None) -> None:
        # Work on the worker thread, a proof or a save: the clock's state names it.
        state = self._trainer.state
        self._engine.idle_because(cause or (state if state in ("weight sync", "checkpoint") else "trainer"))

    def _dispatches(self) -> tuple[int, int]:
        """Rows that were decoded so far, and those that there was place for."""
        engine = self._engine.statistics()
        return engine.decoded_rows, engine.decode_dispatches * engine.rows

    def _rows_used(self) -> float:
        """The share of rows in use since the trainer began to wait."""
        rows, places = (after - before for after, before in zip(self._dispatches(), self._decoded, strict=True))
        return rows / places if places else 0.0

    def _compile_seconds(self) -> float:
        return self._engine.clock.totals().get(COMPILING, 0.0)

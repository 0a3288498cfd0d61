"""What one episode was waiting for, from its first moment to its last -> spans, and seconds by phase.

    timeline = Timeline("task-1/0/3/0")
    timeline.enter("policy", turn=0)      # from now on it waits for the policy
    timeline.enter("step", turn=0)        # now for the environment: its tools
    timeline.end()
    timeline.seconds(start, end)          # {"policy": 1.2, "step": 0.4}: what it waited for between two moments

An episode is in one phase at a time. Each phase becomes a span when it is left, with the episode's name, so that a
whole episode can be put together again from the spans of one name.
"""

from collections import Counter
from collections.abc import Callable

from components.telemetry.spans import now, record

RESET, POLICY, STEP, REWARD, CLOSE = "reset", "policy", "step", "reward", "close"

SPAN_NAMES = {RESET: "reset", POLICY: "chat", STEP: "step", REWARD: "reward", CLOSE: "close"}
"""The span of each phase; that of the whole episode is `rollout`."""

CAUSES = {RESET: "environments", POLICY: "generation", STEP: "tools", REWARD: "graders", CLOSE: "environments"}
"""What somebody waits for who waits for an episode in this phase."""


class Activity:
    """How many episodes are in which phase. `changed` is told when another phase than before holds the most of them.

    `spent` are the seconds of each visit to a phase, and `endings` the episodes that ended by the failure's kind (None
    where nothing broke): both of what was not taken yet. Used on one thread, that of the event loop.
    """

    def __init__(self, changed: Callable[[str | None], None] = lambda cause: None) -> None:
        self.counts: Counter[str] = Counter()
        self.spent: dict[str, list[float]] = {}
        self.endings: Counter[str | None] = Counter()
        self._changed = changed
        self._cause: str | None = None

    def move(self, left: str | None, entered: str | None) -> None:
        """An episode has gone from one phase to another; None is before its start and after its end."""
        if left is not None:
            self.counts[left] -= 1
        if entered is not None:
            self.counts[entered] += 1
        cause = self.cause()
        if cause != self._cause:
            self._cause = cause
            self._changed(cause)

    def left(self, phase: str, seconds: float) -> None:
        """An episode was so long in a phase."""
        self.spent.setdefault(phase, []).append(seconds)

    def taken(self) -> tuple[dict[str, list[float]], Counter[str | None]]:
        """What was spent, and the endings, since the last call."""
        found = self.spent, self.endings
        self.spent, self.endings = {}, Counter()
        return found

    def cause(self) -> str | None:
        """What keeps the episodes that ask for no tokens; None where there is no such episode."""
        busiest = max((STEP, REWARD, RESET, CLOSE), key=lambda phase: self.counts[phase])
        return CAUSES[busiest] if self.counts[busiest] else None


class Timeline:
    """The phases of one episode; times are readings of `spans.now` (seconds). `retry`: an attempt before it failed."""

    __slots__ = ("_activity", "_began", "_notes", "_phase", "_since", "_turn", "ended", "name", "phases", "retry")

    def __init__(self, name: str, activity: Activity | None = None, *, retry: bool = False) -> None:
        self.phases: list[tuple[str, float, float]] = []
        self.ended: float | None = None
        self.retry = retry
        self.name = name
        self._activity = activity
        self._phase: str | None = None
        self._turn = 0
        self._notes: dict[str, object] = {}
        self._began = self._since = now()

    @property
    def started(self) -> float:
        """When it began."""
        return self._began

    def enter(self, phase: str, turn: int = 0) -> None:
        """Leave the present phase for another. After the end nothing happens: what was ended by force may still run."""
        if self.ended is not None:
            return
        self._leave(phase)
        self._phase, self._turn = phase, turn

    def note(self, **attributes: object) -> None:
        """What is known of the present phase, for its span."""
        self._notes |= attributes

    def call(self, tool: str, outcome: str, seconds: float) -> None:
        """A tool was called in the present phase, from its beginning on."""
        record("execute_tool", self._since, self._since + seconds, tool=tool, outcome=outcome, **self._where())

    def end(self, *, failure: str | None = None, **attributes: object) -> None:
        """Leave the last phase. `failure` is the kind of what broke it; `attributes` describe it, in its span."""
        self._leave(None)
        self._phase, self.ended = None, self._since
        if self._activity is not None:
            self._activity.endings[failure] += 1
        if failure is not None:
            attributes["failure"] = failure
        record("rollout", self._began, self.ended, episode=self.name, **attributes)

    def seconds(self, start: float, end: float) -> dict[str, float]:
        """Seconds by phase between two moments; those in which it was in none are not counted."""
        found: dict[str, float] = {}
        for phase, entered, left in self.phases:
            shared = min(left, end) - max(entered, start)
            if shared > 0:
                found[phase] = found.get(phase, 0.0) + shared
        return found

    def _where(self) -> dict[str, object]:
        return {"episode": self.name, "turn": self._turn}

    def _leave(self, entered: str | None) -> None:
        moment = now()
        if self._phase is not None:
            self.phases.append((self._phase, self._since, moment))
            record(SPAN_NAMES[self._phase], self._since, moment, **self._where(), **self._notes)
            self._notes = {}
        if self._activity is not None:
            if self._phase is not None:
                self._activity.left(self._phase, moment - self._since)
            self._activity.move(self._phase, entered)
        self._since = moment


def waited_for(timelines: list[Timeline], start: float, end: float) -> dict[str, float]:
    """What kept a group of episodes from being complete between two moments -> seconds by cause, `end - start` in all.

    The member that ended last is what the others waited for. Where it was sampling while all others had ended, the
    cause is `group completion`; while it had not begun, `admission` or, after an attempt that broke, `failed attempts`.
    """
    whole = max(end - start, 0.0)
    complete = [each for each in timelines if each.ended is not None]
    if not complete:
        return {"generation": whole} if whole else {}
    *others, last = sorted(complete, key=lambda each: each.ended or 0.0)
    alone_since = max((each.ended or 0.0 for each in others), default=end) if others else end
    found: dict[str, float] = {}
    for phase, seconds in last.seconds(start, min(end, alone_since)).items():
        found[CAUSES[phase]] = found.get(CAUSES[phase], 0.0) + seconds
    for phase, seconds in last.seconds(max(start, alone_since), end).items():
        cause = "group completion" if phase == POLICY else CAUSES[phase]
        found[cause] = found.get(cause, 0.0) + seconds
    before = max(0.0, min(last.started, end) - start)
    if before:
        found["failed attempts" if last.retry else "admission"] = before
    # The moments between the last episode's end and the trainer's hearing of it go to what is named already.
    rest = whole - sum(found.values())
    largest = max(found, key=lambda cause: found[cause], default="generation")
    return found | {largest: found.get(largest, 0.0) + rest}

"""What is seen of a job, look by look -> lines for a person, and the moment at which it is over.

Decides and tells; lists and watches nothing itself (see `mirror`).
"""

import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

from components import storage
from components.errors import ClusterError
from components.launcher import reading
from components.launcher.cluster import Cluster
from components.launcher.job import REFUSED, JobPlan
from components.launcher.pod_log import PodLog
from components.launcher.pulse import SignsOfLife
from components.launcher.reading import Object, Restarts
from components.telemetry.formatting import seconds
from components.telemetry.progress import say

TAIL_LINES = 40
"""Of a failed pod's log in the error."""
CATCH_UP_LINES = 200
"""Of the log that a launcher shows of a job that it finds running."""
LAST_LINES_SECONDS = 30.0
"""How long the end of a log is waited for."""

_TOLD_FAILURES = 3
"""How many pods of the last attempt the error quotes."""
_NEVER_FITS = "> maximum capacity"
"""Kueue's words for a request above all that a queue will ever have."""


class JobFailedError(ClusterError):
    """The job is over, and badly: nothing will come of its JobSet any more."""


class JobGoneError(ClusterError):
    """Somebody else has deleted the JobSet."""


class JobWatch:
    """One job under watch. `uid` is that of its JobSet; `attached` says that it was found and not made."""

    def __init__(
        self,
        plan: JobPlan,
        cluster: Cluster,
        *,
        uid: str,
        show: Callable[[str], None],
        repeat: float,
        attached: bool,
    ) -> None:
        self._plan = plan
        self._cluster = cluster
        self._uid = uid
        self._show = show
        self._repeat = repeat
        self._catch_up = CATCH_UP_LINES if attached else 0
        self._restarts: Restarts | None = None
        self._noted: set[str] = set()
        self._failures: dict[int, list[str]] = {}
        self._logs: dict[str, PodLog] = {}
        self._heard: set[str] = set()
        self._pods_seen = time.monotonic()
        self._said = ("", 0.0)

    def note(self, pods: Sequence[Object]) -> None:
        """Take in states of pods, also of those that are gone again: a pod that fails is replaced within moments.

        Raises JobFailedError when another try would fail, too.
        """
        for pod in pods:
            self._note_failure(pod)

    def look(self, job_sets: Sequence[Object], pods: Sequence[Object], signs: SignsOfLife) -> Restarts | None:
        """Take in what is there now. Gives the restarts once the job has run to its end, and None before.

        Raises JobFailedError when it has failed, and JobGoneError when it is not there any more.
        """
        job_set = next((each for each in job_sets if reading.uid_of(each) == self._uid), None)
        if job_set is None:
            raise JobGoneError(f"JobSet {self._plan.name} was deleted by somebody else")
        self._note_restarts(reading.restarts(job_set))
        ending = reading.ended(job_set)
        if ending is not None:
            # Job set and pods come by two streams, and the one may be ahead of the other.
            pods = self._cluster.pods(self._plan.name)
            self.note(pods)
        newest = reading.newest_attempt(pods)
        self._follow_log(newest)
        if ending == "Completed":
            say(f"JobSet {self._plan.name} has completed, after {_told(reading.restarts(job_set))}")
            return reading.restarts(job_set)
        if ending == "Failed":
            raise JobFailedError(self._failed(job_set))
        self._check(job_set, newest, signs)
        return None

    def close(self) -> None:
        """No more looks: the last lines of the logs that are open are shown, if they come at once."""
        for log in self._logs.values():
            log.finish(0.0)

    def _note_restarts(self, counts: Restarts) -> None:
        if self._restarts is not None and counts != self._restarts:
            say(f"JobSet {self._plan.name} starts its pods again: {_told(counts)}")
        self._restarts = counts

    def _note_failure(self, pod: Object) -> None:
        if reading.phase_of(pod) != "Failed" or reading.uid_of(pod) in self._noted:
            return
        self._noted.add(reading.uid_of(pod))
        name, reason = reading.name_of(pod), reading.taken_away(pod)
        if reason is not None:
            say(f"pod {name}: its machine was taken away ({reason}); this counts as no failure")
            return
        code = reading.exit_code(pod)
        # The log may be gone with the pod; what the kubelet has kept of it came with the pod's last state.
        tail = (self._cluster.log_tail(name, TAIL_LINES) or reading.last_words(pod)).rstrip("\n")
        text = f"pod {name} has failed with {_ended_with(pod)}; its last lines:\n{_indented(tail or 'none is left')}"
        # When one host fails, others fail for want of it: the first ones tell more.
        self._failures.setdefault(reading.attempt_of(pod), []).append(text)
        say(text if reading.index_of(pod) else text.partition(";")[0])
        if code == REFUSED:
            raise JobFailedError(f"the job cannot run as it was asked to: {self._said_by_job()}\n{text}")

    def _said_by_job(self) -> str:
        try:
            return storage.read_text(self._plan.failure)
        except FileNotFoundError:
            return "it has left no reason"

    def _failed(self, job_set: Object) -> str:
        counts = reading.restarts(job_set)
        lines = [f"JobSet {self._plan.name} has failed after {_told(counts)}: {reading.end_message(job_set)}"]
        if self._failures:
            lines += self._failures[max(self._failures)][:_TOLD_FAILURES]
        return "\n".join(lines)

    def _follow_log(self, newest: Sequence[Object]) -> None:
        speakers = [pod for pod in newest if reading.index_of(pod) == 0 and reading.has_begun(pod)]
        for pod in speakers:
            uid = reading.uid_of(pod)
            if uid not in self._heard:
                self._heard.add(uid)
                self._logs[uid] = PodLog(self._cluster, reading.name_of(pod), self._show, tail=self._catch_up)
                self._logs[uid].start()
                self._catch_up = 0
        running = {reading.uid_of(pod) for pod in speakers if reading.phase_of(pod) == "Running"}
        for uid in [uid for uid in self._logs if uid not in running]:
            self._logs.pop(uid).finish(LAST_LINES_SECONDS)

    def _check(self, job_set: Object, newest: Sequence[Object], signs: SignsOfLife) -> None:
        if reading.is_suspended(job_set):
            self._pods_seen = time.monotonic()
            signs.renew()
            self._report_queue()
            return
        running = [pod for pod in newest if reading.phase_of(pod) in ("Running", "Succeeded")]
        if len(running) == self._plan.platform.hosts:
            self._pods_seen = time.monotonic()
            self._check_signs(signs)
            return
        signs.renew()
        self._check_start(newest, len(running))

    def _check_start(self, newest: Sequence[Object], running: int) -> None:
        minutes = self._plan.platform.unschedulable_minutes
        obstacles = [found for found in map(reading.obstacle, newest) if found is not None]
        for each in obstacles:
            waited = (datetime.now(UTC) - each.since).total_seconds()
            if each.hopeless or waited > 60 * minutes:
                raise JobFailedError(f"pod {each.pod} has not started for {seconds(waited)}: {each.message}")
        if newest:
            self._pods_seen = time.monotonic()
        elif time.monotonic() - self._pods_seen > 60 * minutes:
            told = self._cluster.warnings(self._plan.name)[-3:] or ["and no event says why"]
            raise JobFailedError(
                f"JobSet {self._plan.name} has had no pods for {seconds(60 * minutes)}: {'; '.join(told)}"
            )
        waiting = f"; {obstacles[0].pod} waits: {obstacles[0].message}" if obstacles else ""
        self._report(f"{running} of {self._plan.platform.hosts} pods run", waiting)

    def _check_signs(self, signs: SignsOfLife) -> None:
        minutes = self._plan.platform.stalled_minutes
        if self._plan.signs and signs.age > 60 * minutes:
            raise JobFailedError(
                f"the pods run, and gave no sign of life for {seconds(signs.age)} (stalled_minutes is {minutes:g}); "
                f"the last step on the storage is {signs.step}"
            )
        hosts = self._plan.platform.hosts
        told = f"; step {signs.step}, last sign of life {seconds(signs.age)} ago" if signs.given else ""
        self._report(f"{hosts} of {hosts} pods run", told)

    def _report_queue(self) -> None:
        kind = f"waits in queue {self._plan.platform.queue or '(suspended by hand)'}"
        if self._said[0] == kind and time.monotonic() - self._said[1] < self._repeat:
            return
        messages = [
            str(condition.get("message", ""))
            for workload in self._cluster.workloads(self._uid)
            for condition in workload.get("status", {}).get("conditions", [])
            if condition["type"] == "QuotaReserved" and condition["status"] == "False"
        ]
        for message in messages:
            if _NEVER_FITS in message:
                raise JobFailedError(f"queue {self._plan.platform.queue} can never run this job: {message}")
        self._report(kind, f": {messages[0]}" if messages else "")

    def _report(self, kind: str, rest: str) -> None:
        """Say it when its kind is new, and again now and then."""
        if self._said[0] != kind or time.monotonic() - self._said[1] >= self._repeat:
            self._said = (kind, time.monotonic())
            say(f"JobSet {self._plan.name}: {kind}{rest}")


def _told(counts: Restarts) -> str:
    return f"{counts.failures} restarts after failures and {counts.taken_away} because a machine was taken away"


def _ended_with(pod: Object) -> str:
    code, reason = reading.exit_code(pod), reading.end_reason(pod)
    return f"exit code {code}" + (f" ({reason})" if reason not in ("", "Error") else "")


def _indented(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.splitlines())

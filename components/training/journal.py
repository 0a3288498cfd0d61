"""Events of a run -> lines on a storage, in their order, and back: what makes a kill lose nothing.

    RUN/journal.jsonl     one event a line, never rewritten

A thread of its own writes what has gathered since its last write, so that nobody waits for the storage but who calls
`flush`. Lines reach the storage in the order of `append`: whatever has survived a kill is a beginning of the story, and
a trajectory of version 7 is never there without the optimizer step that made version 7.
"""

import queue
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future

from components import storage
from components.errors import CheckpointError
from components.telemetry.progress import say
from components.training.history import Event
from components.training.journal_lines import from_line, to_line
from components.types import Task

JOURNAL = "journal.jsonl"

_Flush = Future[None]

REMOTE_INTERVAL = 1.0
"""Seconds between two writes to one object: Google Cloud Storage refuses more."""


def read_journal(run_folder: str, tasks: Mapping[str, Task]) -> Iterator[Event]:
    """The events so far. A last line that a kill has cut does not count; nothing comes where there is no journal.

    Raises CheckpointError naming the line for one that is damaged, or that speaks of a task which is not in `tasks`.
    """
    uri = storage.join(run_folder, JOURNAL)
    for number, line in enumerate(storage.read_lines(uri), start=1):
        try:
            event = from_line(line, tasks)
        except (ValueError, KeyError, TypeError) as error:
            raise CheckpointError(
                f"{uri}:{number} is no event of this run ({type(error).__name__}: {error}); nothing was changed. "
                "Bring back the file as it was, or start a new run"
            ) from error
        yield event


class Journal:
    """Takes events; use as a context manager, which ends with all of them on the storage. It has one writer.

    Make it before the journal is read: then what another process adds in between, which this one would not know of, is
    found out by the first write.

    What the writing thread dies of is raised by the next `append`, and by `flush`: ConflictError where another process
    writes this journal.
    """

    def __init__(self, run_folder: str) -> None:
        uri = storage.join(run_folder, JOURNAL)
        self._log = storage.LineLog(uri)
        self._interval = REMOTE_INTERVAL if storage.is_remote(uri) else 0.0
        self._queue: queue.SimpleQueue[Event | _Flush | None] = queue.SimpleQueue()
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._work, name="journal", daemon=True)

    def __enter__(self) -> "Journal":
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *others: object) -> None:
        self._queue.put(None)
        self._thread.join()
        if kind is None:
            self._raise_failure()
        elif self._failure is not None:
            say(f"the journal ends early, and what it lacks is generated again: {self._failure}")

    def append(self, event: Event) -> None:
        """Add an event. Does not wait."""
        self._raise_failure()
        self._queue.put(event)

    def flush(self) -> None:
        """Wait until every event so far is on the storage."""
        request: _Flush = Future()
        self._queue.put(request)
        request.result()

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _work(self) -> None:
        """The thread: each write takes all that has gathered."""
        ended = False
        while not ended:
            gathered = [self._queue.get()]
            while not self._queue.empty():
                gathered.append(self._queue.get())
            ended = None in gathered
            requests = [each for each in gathered if isinstance(each, Future)]
            self._write([each for each in gathered if each is not None and not isinstance(each, Future)])
            for request in requests:
                if self._failure is None:
                    request.set_result(None)
                else:
                    request.set_exception(self._failure)
            if not ended:
                time.sleep(self._interval)

    def _write(self, events: list[Event]) -> None:
        if self._failure is not None:
            return
        try:
            for event in events:
                self._log.append(to_line(event))
            self._log.sync()
        except Exception as error:  # Handed to whoever appends or flushes: a run must not go on unrecorded.
            self._failure = error

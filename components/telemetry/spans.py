"""Named stretches of time and counters, always on. `trace.py` makes a picture of them.

    with span("decode", rows=32):
        ...
    count("tokens", 128, fate="trained")

Each thread writes to a ring of its own, so that no thread waits for another: a span costs about a microsecond, and
old spans make room for new ones. A span may hold an `await`, so those of one thread need not nest.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any

RING_CAPACITY = 65_536
"""Spans that are kept for each thread (a full ring takes about 20 MB)."""

now = time.perf_counter
"""The clock of all spans, in seconds. `record` takes its readings."""

_Entry = tuple[str, float, float, Mapping[str, Any]]
_CounterKey = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Span:
    """One finished stretch: `start` and `end` in seconds of `now`, `thread` the name of the thread that wrote it."""

    name: str
    start: float
    end: float
    thread: str
    attributes: Mapping[str, Any]

    @property
    def seconds(self) -> float:
        """How long it took."""
        return self.end - self.start


class _ThreadRecord:
    """What one thread has recorded. Only its own thread writes; others read whole copies."""

    def __init__(self, thread: threading.Thread) -> None:
        self.thread = thread
        self.entries: deque[_Entry] = deque(maxlen=RING_CAPACITY)
        self.counters: dict[_CounterKey, int | float] = {}


class _Registry(threading.local):
    """Finds the calling thread's record; a thread's first look makes it."""

    def __init__(self) -> None:
        record = _ThreadRecord(threading.current_thread())
        with _lock:
            _retire_ended_threads()
            _records.append(record)
        self.record = record
        self.append = record.entries.append


_lock = threading.Lock()  # taken when a thread records for the first time, and when a person reads
_records: list[_ThreadRecord] = []
_tails: list["Tail"] = []
_retired_spans: deque[Span] = deque(maxlen=RING_CAPACITY)
_retired_counters: dict[_CounterKey, int | float] = {}
_started_unix = time.time() - now()


class _Open:
    """A span that has been asked for. `span` fills it in: a class with an `__init__` costs a third more to make."""

    __slots__ = ("attributes", "name", "start")
    name: str
    attributes: Mapping[str, Any]
    start: float

    def __enter__(self) -> None:
        self.start = now()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _local.append((self.name, self.start, now(), self.attributes))


class _Annotated(_Open):
    """One that a profiler is told of, too."""

    __slots__ = ("_annotation",)

    def __init__(self, annotation: AbstractContextManager[Any]) -> None:
        self._annotation = annotation

    def __enter__(self) -> None:
        self._annotation.__enter__()
        super().__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, trace)
        self._annotation.__exit__(None, None, None)


_annotation: Callable[..., AbstractContextManager[Any]] | None = None


def span(name: str, **attributes: Any) -> _Open:
    """`with span("prefill", tokens=512):` records how long the block took, also when it raises."""
    annotation = _annotation  # another thread may end it
    made = _Open() if annotation is None else _Annotated(annotation(name, **attributes))
    made.name = name
    made.attributes = attributes
    return made


@contextmanager
def annotate_with(annotation: Callable[..., AbstractContextManager[Any]]) -> Iterator[None]:
    """Every `span` that begins in the block is also an `annotation(name, **attributes)` of a profiler."""
    global _annotation
    _annotation = annotation
    try:
        yield
    finally:
        _annotation = None


def record(name: str, start: float, end: float, **attributes: Any) -> None:
    """Record a stretch that was measured elsewhere; `start` and `end` are readings of `now` in seconds."""
    _local.append((name, start, end, attributes))


def count(name: str, amount: int | float = 1, **labels: str) -> None:
    """Add to a counter. Counters of one name are told apart by their labels."""
    counters = _local.record.counters
    key = (name, *labels.items())
    counters[key] = counters.get(key, 0) + amount


def spans() -> list[Span]:
    """Every span that the rings still hold, by start."""
    with _lock:
        found = list(_retired_spans)
        for thread_record in _records:
            found.extend(_spans_of(thread_record))
    return sorted(found, key=lambda each: each.start)


def counters() -> dict[str, int | float]:
    """Sums over all threads, named `tokens` or, with labels in order of their names, `tokens{fate=trained}`."""
    with _lock:
        parts = [dict(_retired_counters), *(dict(each.counters) for each in _records)]
    total: dict[str, int | float] = {}
    for part in parts:
        for key, amount in part.items():
            name = _counter_name(key)
            total[name] = total.get(name, 0) + amount
    return total


class Tail:
    """What was recorded since the last look, by every thread. One thread looks; nobody who records waits for it."""

    def __init__(self) -> None:
        self._seen: dict[_ThreadRecord, _Entry] = {}
        self._ended: list[Span] = []
        with _lock:
            for thread_record in _records:
                self._new_of(thread_record)
            _tails.append(self)

    def read(self) -> list[Span]:
        """The new spans, by start; those that a ring has lost in the meantime are not among them."""
        with _lock:
            found, self._ended = self._ended, []
            for thread_record in _records:
                found.extend(self._new_of(thread_record))
        return sorted(found, key=lambda each: each.start)

    def close(self) -> None:
        """Look no more."""
        with _lock:
            _tails.remove(self)

    def _retire(self, thread_record: _ThreadRecord) -> None:
        self._ended.extend(self._new_of(thread_record))
        self._seen.pop(thread_record, None)

    def _new_of(self, thread_record: _ThreadRecord) -> list[Span]:
        last, new = self._seen.get(thread_record), []
        for entry in reversed(thread_record.entries.copy()):
            if entry is last:
                break
            new.append(entry)
        if new:
            self._seen[thread_record] = new[0]
        name = thread_record.thread.name
        return [Span(*entry[:3], name, entry[3]) for entry in reversed(new)]


def clear() -> None:
    """Forget all spans and counters."""
    with _lock:
        _retired_spans.clear()
        _retired_counters.clear()
        for thread_record in _records:
            thread_record.entries.clear()
            thread_record.counters.clear()


def unix_time(moment: float) -> float:
    """A reading of `now` as seconds since 1970."""
    return moment + _started_unix


def _spans_of(thread_record: _ThreadRecord) -> list[Span]:
    name = thread_record.thread.name
    # A copy in one call into C, as the thread itself may be writing.
    return [Span(*entry[:3], name, entry[3]) for entry in thread_record.entries.copy()]


def _retire_ended_threads() -> None:
    """Fold the records of threads that have ended into shared ones, so that short-lived threads cost no memory."""
    for thread_record in [each for each in _records if not each.thread.is_alive()]:
        _records.remove(thread_record)
        for tail in _tails:
            tail._retire(thread_record)
        _retired_spans.extend(_spans_of(thread_record))
        for key, amount in thread_record.counters.items():
            _retired_counters[key] = _retired_counters.get(key, 0) + amount


def _counter_name(key: _CounterKey) -> str:
    name, *labels = key
    return f"{name}{{{','.join(f'{label}={value}' for label, value in sorted(labels))}}}" if labels else name


_local = _Registry()

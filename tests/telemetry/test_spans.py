import asyncio
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from components.telemetry import spans
from components.telemetry.spans import annotate_with, count, record, span


@pytest.fixture(autouse=True)
def empty_rings():
    spans.clear()
    yield
    spans.clear()


def test_a_span_is_recorded_with_its_attributes_and_thread():
    with span("decode", rows=32):
        pass
    (only,) = spans.spans()
    assert (only.name, only.attributes, only.thread) == ("decode", {"rows": 32}, threading.current_thread().name)
    assert only.seconds >= 0


def test_a_span_is_recorded_when_its_block_raises():
    with pytest.raises(KeyError), span("fails"):
        raise KeyError("x")
    assert [each.name for each in spans.spans()] == ["fails"]


def test_a_full_ring_drops_the_oldest_span(monkeypatch):
    monkeypatch.setattr(spans, "RING_CAPACITY", 5)

    def work() -> None:
        for number in range(8):
            record("tick", float(number), float(number) + 0.5)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert [each.start for each in spans.spans()] == [3.0, 4.0, 5.0, 6.0, 7.0]


def test_counters_of_all_threads_add_up_and_survive_their_threads():
    def work() -> None:
        for _ in range(1000):
            count("tokens", 2, fate="trained")

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    late = threading.Thread(target=count, args=("swaps",))
    late.start()
    late.join()
    assert spans.counters() == {"tokens{fate=trained}": 8000, "swaps": 1}


def test_labels_are_named_in_one_order():
    count("errors", kind="timeout", tool="search")
    count("errors", tool="search", kind="timeout")
    assert spans.counters() == {"errors{kind=timeout,tool=search}": 2}


def test_reading_while_other_threads_write_loses_nothing():
    def work() -> None:
        for _ in range(300):
            with span("busy"):
                count("turns")

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    seen = [0]
    while any(thread.is_alive() for thread in threads):
        seen.append(len(spans.spans()))
        spans.counters()
    assert seen == sorted(seen)
    assert len(spans.spans()) == spans.counters()["turns"] == 900


def test_a_span_may_hold_an_await():
    async def episode(name: str, first: asyncio.Event, second: asyncio.Event) -> None:
        with span(name):
            first.set()
            await second.wait()

    async def both() -> None:
        left, right = asyncio.Event(), asyncio.Event()
        await asyncio.gather(episode("a", left, right), episode("b", right, left))

    asyncio.run(both())
    assert sorted(each.name for each in spans.spans()) == ["a", "b"]


def test_a_profiler_is_told_of_the_spans_that_begin_while_it_runs():
    told: list[str] = []

    @contextmanager
    def annotation(name: str, **attributes: object) -> Iterator[None]:
        told.append(f"{name} {attributes}")
        yield
        told.append(f"end of {name}")

    with ExitStack() as open_spans, span("before"), annotate_with(annotation):
        open_spans.enter_context(span("apply", step=3))
    assert told == ["apply {'step': 3}", "end of apply"], "also of the end of one that outlasts the profiler"
    assert [each.name for each in spans.spans()] == ["before", "apply"]

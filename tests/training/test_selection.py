import dataclasses
import json
import tracemalloc

from components.training.selection import SelectionMonitor
from components.types import Outcome, Trajectory
from tests.training import tiny


def episode(turns: int, tokens: int, seconds: float) -> Trajectory:
    played = [tiny.turn(b"p", b"x" * tokens) for _ in range(turns)]
    return dataclasses.replace(tiny.trajectory(*played), seconds=seconds)


def test_trained_episodes_are_compared_with_all_that_ended():
    monitor = SelectionMonitor()
    quick, slow = episode(1, 10, 1.0), episode(3, 20, 8.0)
    failed = dataclasses.replace(episode(2, 5, 3.0), outcome=Outcome.FAILED, reward=None)
    for each in (quick, slow, failed):
        monitor.dispatched(each)
    monitor.trained(quick)
    assert monitor.numbers() == {
        "selection": {
            "episodes": {"trained": 1.0, "dispatched": 3.0, "ratio": 1 / 3},
            "tokens": {"trained": 10.0, "dispatched": 80 / 3, "ratio": 0.375},
            "turns": {"trained": 1.0, "dispatched": 2.0, "ratio": 0.5},
            "seconds": {"trained": 1.0, "dispatched": 4.0, "ratio": 0.25},
        }
    }


def test_when_everything_is_trained_every_ratio_is_one():
    monitor = SelectionMonitor()
    for each in (episode(1, 7, 0.5), episode(4, 2, 2.0)):
        monitor.dispatched(each)
        monitor.trained(each)
    assert all(pair["ratio"] == 1.0 for pair in monitor.numbers()["selection"].values())


def test_what_is_not_known_is_left_out_and_never_a_division_by_zero():
    monitor = SelectionMonitor()
    empty = monitor.numbers()["selection"]
    assert empty == {"episodes": {"trained": 0.0, "dispatched": 0.0}, "tokens": {}, "turns": {}, "seconds": {}}
    nothing = episode(0, 0, 0.0)
    monitor.dispatched(nothing)
    assert monitor.numbers()["selection"]["tokens"] == {"dispatched": 0.0}
    monitor.trained(nothing)
    found = monitor.numbers()
    assert found["selection"]["tokens"] == {"trained": 0.0, "dispatched": 0.0}
    json.dumps(found, allow_nan=False)


def test_memory_does_not_grow_with_the_number_of_episodes():
    monitor, each = SelectionMonitor(), episode(2, 3, 1.0)
    monitor.dispatched(each)
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for _ in range(5_000):
            monitor.dispatched(each)
            monitor.trained(each)
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < 4_096

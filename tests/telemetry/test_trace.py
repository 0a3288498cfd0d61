import json

import pytest

from components.telemetry import spans
from components.telemetry.spans import record
from components.telemetry.trace import trace, write_trace


@pytest.fixture(autouse=True)
def _forgotten():
    spans.clear()


def drawn(phase: str) -> list[dict]:
    return [event for event in trace()["traceEvents"] if event["ph"] == phase]


def tracks() -> dict[int, str]:
    return {event["tid"]: event["args"]["name"] for event in drawn("M") if event["name"] == "thread_name"}


def test_the_trace_is_what_chrome_reads(tmp_path):
    record("outer", 1.0, 2.0)
    record("inner", 1.25, 1.5, tokens=3)
    write_trace(str(tmp_path / "trace.json"))
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    complete = {event["name"]: event for event in events if event["ph"] == "X"}
    assert complete["outer"]["ts"] == pytest.approx(1e6)
    assert complete["outer"]["dur"] == pytest.approx(1e6)
    assert complete["inner"]["dur"] == pytest.approx(0.25e6)
    assert complete["inner"]["args"] == {"tokens": 3}


def test_spans_that_overlap_without_nesting_become_asynchronous_pairs():
    record("one", 1.0, 3.0)
    record("two", 2.0, 4.0)
    events = [event for event in trace()["traceEvents"] if event["ph"] != "M"]
    assert [(event["ph"], event["name"]) for event in events] == [("X", "one"), ("b", "two"), ("e", "two")]
    begin, end = events[1:]
    assert begin["id"] == end["id"]
    assert end["ts"] - begin["ts"] == pytest.approx(2e6)


def test_episodes_lie_on_as_few_lanes_as_go_on_at_once():
    for name, start, end in (("a", 0.0, 2.0), ("b", 1.0, 3.0), ("c", 2.5, 4.0)):
        record("chat", start, end - 0.5, episode=name)
        record("rollout", start, end, episode=name)
    record("microbatch", 3.0, 4.0)
    lanes = {event["args"]["episode"]: tracks()[event["tid"]] for event in drawn("X") if event["name"] == "rollout"}
    assert lanes == {"a": "episodes, lane 1", "b": "episodes, lane 2", "c": "episodes, lane 1"}
    assert not drawn("b")


def test_arrows_lead_from_an_episode_to_its_step_and_to_the_version_that_came_of_it():
    record("rollout", 0.0, 2.0, episode="a")
    record("training queue", 2.0, 3.0, episode="a", step=1)
    record("apply", 4.0, 5.0, step=0)
    record("weight_sync", 5.0, 6.0, version=1)
    record("rollout", 0.0, 9.0, episode="never trained")
    starts, ends = drawn("s"), drawn("f")
    slices = {event["name"]: event for event in drawn("X") if event["args"].get("episode") != "never trained"}
    for start, end, source, target in zip(starts, ends, ("rollout", "apply"), ("apply", "weight_sync"), strict=True):
        assert start["id"] == end["id"]
        for event, where in ((start, slices[source]), (end, slices[target])):
            assert event["tid"] == where["tid"]
            assert where["ts"] <= event["ts"] <= where["ts"] + where["dur"]
    assert starts[0]["id"] != starts[1]["id"]

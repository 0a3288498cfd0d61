import pytest

from components.telemetry import timeline as module
from components.telemetry.spans import clear, spans
from components.telemetry.timeline import POLICY, REWARD, STEP, Activity, Timeline, waited_for


@pytest.fixture
def at(monkeypatch):
    """Set the moment that timelines see."""
    hands = [0.0]
    monkeypatch.setattr(module, "now", lambda: hands[0])

    def move(moment: float) -> None:
        hands[0] = moment

    return move


def played(at, *phases: tuple[str, float], start: float = 0.0, retry: bool = False) -> Timeline:
    """An episode of phases, each with its last moment."""
    at(start)
    timeline = Timeline("task/0/0/0", retry=retry)
    for number, (phase, end) in enumerate(phases):
        timeline.enter(phase, turn=number)
        at(end)
    timeline.end()
    return timeline


def test_seconds_are_those_between_two_moments(at):
    timeline = played(at, (POLICY, 2.0), (STEP, 5.0), (POLICY, 6.0), (REWARD, 10.0))
    assert timeline.seconds(1.0, 8.0) == {POLICY: 2.0, STEP: 3.0, REWARD: 2.0}
    assert timeline.seconds(20.0, 30.0) == {}


def test_an_episode_becomes_spans_of_one_name(at):
    clear()
    played(at, (POLICY, 2.0), (STEP, 5.0))
    found = [(each.name, each.start, each.end, each.attributes["episode"]) for each in spans()]
    assert sorted(found) == [
        ("chat", 0.0, 2.0, "task/0/0/0"),
        ("rollout", 0.0, 5.0, "task/0/0/0"),
        ("step", 2.0, 5.0, "task/0/0/0"),
    ]


def test_the_last_member_says_what_a_group_waited_for(at):
    quick = played(at, (POLICY, 4.0))
    slow = played(at, (POLICY, 3.0), (STEP, 9.0), (REWARD, 10.0))
    assert waited_for([slow, quick], 2.0, 10.0) == {"generation": 1.0, "tools": 6.0, "graders": 1.0}


def test_sampling_alone_while_all_others_have_ended_is_group_completion(at):
    quick, slow = played(at, (POLICY, 4.0)), played(at, (POLICY, 10.0))
    assert waited_for([quick, slow], 1.0, 10.0) == {"generation": 3.0, "group completion": 6.0}


def test_what_had_not_begun_waited_for_admission_or_for_an_attempt_that_broke(at):
    late = played(at, (POLICY, 10.0), start=6.0)
    assert waited_for([late], 2.0, 10.0) == {"admission": 4.0, "generation": 4.0}
    again = played(at, (POLICY, 10.0), start=6.0, retry=True)
    assert waited_for([again], 2.0, 10.0) == {"failed attempts": 4.0, "generation": 4.0}


@pytest.mark.parametrize("start", [0.0, 3.5, 11.0])
def test_causes_add_up_to_the_wait(at, start):
    members = [played(at, (POLICY, 4.0)), played(at, (POLICY, 3.0), (STEP, 9.0), start=1.0)]
    assert sum(waited_for(members, start, 12.0).values()) == pytest.approx(12.0 - start)


def test_a_group_of_which_nothing_is_known_waited_for_generation():
    assert waited_for([], 1.0, 3.0) == {"generation": 2.0}


def test_activity_tells_when_another_phase_holds_most_episodes():
    told = []
    activity = Activity(told.append)
    activity.move(None, POLICY)
    activity.move(POLICY, STEP)
    activity.move(None, REWARD)
    activity.move(None, REWARD)
    activity.move(STEP, None)
    activity.move(REWARD, POLICY)
    activity.move(REWARD, None)
    assert told == ["tools", "graders", None]


def test_what_runs_on_after_the_end_changes_nothing(at):
    activity = Activity()
    at(0.0)
    timeline = Timeline("task/0/0/0", activity)
    timeline.enter(STEP)
    timeline.end()
    timeline.enter(REWARD)
    assert activity.cause() is None
    assert timeline.phases == [(STEP, 0.0, 0.0)]


def test_activity_tells_once_how_long_each_phase_was_and_how_episodes_ended(at):
    activity = Activity()
    for failure in (None, "grader"):
        at(0.0)
        timeline = Timeline("task/0/0/0", activity)
        timeline.enter(STEP)
        at(2.0)
        timeline.enter(REWARD)
        at(5.0)
        timeline.end(failure=failure)
    assert activity.taken() == ({STEP: [2.0, 2.0], REWARD: [3.0, 3.0]}, {None: 1, "grader": 1})
    assert activity.taken() == ({}, {})

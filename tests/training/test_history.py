"""What a run knows is a fold of its events: the account always balances, and a kill takes back the open step."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from components.errors import CheckpointError
from components.training.history import (
    Closed,
    Consumed,
    Ended,
    History,
    Rejected,
    Resumed,
    Sampled,
    Stepped,
    steps_of,
)
from components.training.ledger import Fate
from tests.training.stories import sequence, trajectory


def played(task: str, position: int, members: int = 2, version: int = 0) -> list:
    """A group that was sampled and came to its end."""
    events = []
    for member in range(members):
        events += [
            Sampled(sequence(task, member), ((version, 2),)),
            Sampled(sequence(task, member, turn=1), ((version, 1),)),
            Ended(position, trajectory(task, member, versions=(version,) * 3)),
        ]
    return events


def consumed(position: int, fate: Fate = Fate.TRAINED, members: int = 2, **more) -> Consumed:
    return Consumed(position, tuple((member, 0) for member in range(members)), fate, **more)


def told(*events) -> History:
    history = History()
    for event in events:
        history.apply(event)
        history.ledger.check()
    return history


def test_a_step_counts_when_it_is_written_down_and_settles_what_it_consumed():
    before = [*played("a", 0), *played("b", 1), consumed(1), consumed(0, Fate.FILTERED)]
    assert told(*before).ledger.tokens()["in_flight"] == 12
    history = told(*before, Stepped(1, "f1"))
    assert (history.version, history.position, history.done) == (1, 2, set())
    tokens = history.ledger.tokens()
    assert (tokens["trained"], tokens["filtered"], tokens["in_flight"]) == (6, 6, 0)


def test_steps_come_back_with_their_groups_in_the_order_of_consumption():
    events = [*played("a", 0), *played("b", 1), consumed(1), consumed(0), Stepped(1, "f1")]
    (step,) = steps_of(events, History())
    assert (step.version, step.fingerprint) == (1, "f1")
    assert [group.task.id for group in step.groups] == ["b", "a"]
    assert [member.member for member in step.groups[0].trajectories] == [0, 1]


def test_a_kill_takes_back_the_open_step_and_keeps_what_has_ended():
    history = told(
        *played("a", 0), consumed(0), Stepped(1, "f1"), *played("b", 1), consumed(1), Sampled(sequence("c"), ((1, 4),))
    )
    history.apply(Resumed(1))
    tokens = history.ledger.tokens()
    assert (tokens["trained"], tokens["in_flight"], tokens["surplus"]) == (6, 6, 4)
    assert [each.member for each in history.unsettled[1]] == [0, 1]
    history.apply(consumed(1))
    history.apply(Stepped(2, "f2"))
    assert history.ledger.tokens()["trained"] == 12
    history.ledger.check()


def test_a_position_that_overtook_another_is_done_before_it():
    history = told(*played("a", 0), *played("b", 1), consumed(1), Stepped(1, "f1"))
    assert (history.position, history.done) == (0, {1})
    assert list(history.unsettled) == [0]


def test_members_that_were_too_old_are_stale_and_the_others_keep_their_fate():
    history = told(*played("a", 0, members=3), consumed(0, stale=((2, 0),)), Stepped(1, "f1"))
    tokens = history.ledger.tokens()
    assert (tokens["trained"], tokens["stale"]) == (6, 3)


def test_a_rejected_group_is_settled_at_once():
    failed = trajectory("a", 1, failed=True)
    history = told(
        *played("a", 0, members=1),
        Sampled(sequence("a", 1), ((0, 2), (1, 1))),
        Ended(0, failed),
        Rejected(0),
    )
    tokens = history.ledger.tokens()
    assert (tokens["filtered"], tokens["failed"], tokens["in_flight"]) == (3, 3, 0)
    assert history.position == 1


def test_a_closed_group_leaves_its_slowest_members_as_surplus():
    history = told(*played("a", 0), Sampled(sequence("a", 2), ((0, 5),)), Closed(0, "a", 0))
    assert (history.ledger.tokens()["surplus"], history.ledger.tokens()["in_flight"]) == (5, 6)


def test_a_checkpoint_of_another_story_is_refused():
    history = told(*played("a", 0))
    facts = history.facts()
    told(*played("a", 0)).check(facts, "here")
    with pytest.raises(CheckpointError, match="not of one run"):
        told(*played("a", 0, version=1), Sampled(sequence("b"), ((0, 1),))).check(facts, "here")


@given(st.lists(st.sampled_from(["play", "consume", "step", "kill"]), max_size=30))
def test_whatever_happens_no_trajectory_is_trained_twice_and_none_is_lost(acts):
    history, ready, open_step, trained, position, version = History(), [], [], [], 0, 0
    for act in acts:
        if act == "play":
            for event in played("a", position):
                # Each position plays the same task in an epoch of its own.
                history.apply(_in_epoch(event, position))
            ready.append(position)
            position += 1
        elif act == "consume" and ready:
            open_step.append(ready.pop())
            history.apply(consumed(open_step[-1]))
        elif act == "step":
            version += 1
            step = history.apply(Stepped(version, ""))
            assert [group.position for group in step.groups] == open_step
            trained += open_step
            open_step = []
        elif act == "kill":
            history.apply(Resumed(version))
            ready += open_step
            open_step = []
        history.ledger.check()
    assert len(trained) == len(set(trained))
    assert set(history.unsettled) == set(range(position)) - set(trained)
    assert history.ledger.tokens()["trained"] == 6 * len(trained)


def _in_epoch(event, epoch: int):
    if isinstance(event, Sampled):
        return replace(event, sequence=replace(event.sequence, epoch=epoch))
    return replace(event, trajectory=replace(event.trajectory, epoch=epoch))

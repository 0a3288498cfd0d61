"""No generated token is lost, and none is counted twice."""

import pytest

from components.errors import HeadraceError
from components.training.ledger import Fate, Ledger, episode_of
from components.types import Completion, FinishReason, Outcome, SequenceId, Task, Trajectory, Turn


def trajectory(member: int, *lengths: int, attempt: int = 0) -> Trajectory:
    turns = tuple(
        Turn((0,), Completion((1,) * length, (0.0,) * length, (0,) * length, FinishReason.STOP)) for length in lengths
    )
    return Trajectory(Task("a", ""), turns, (), Outcome.FINISHED, reward=0.0, member=member, attempt=attempt)


def sequence(member: int, attempt: int = 0) -> SequenceId:
    return SequenceId("a", member=member, attempt=attempt)


def test_every_token_has_one_fate_and_the_two_sides_agree():
    ledger = Ledger()
    ledger.sampled(sequence(0), [0] * 3)
    ledger.sampled(sequence(0), [0] * 4)
    ledger.sampled(sequence(1), [0] * 5)
    ledger.sampled(sequence(2), [0] * 6)
    ledger.settle(trajectory(0, 3, 4), Fate.TRAINED)
    ledger.settle(trajectory(2, 6), Fate.FAILED)
    assert ledger.tokens() == {
        "generated": 18,
        "trained": 7,
        "stale": 0,
        "filtered": 0,
        "failed": 6,
        "surplus": 0,
        "in_flight": 5,
    }
    ledger.check()


def test_attempts_of_one_member_are_told_apart():
    ledger = Ledger()
    ledger.sampled(sequence(0, attempt=0), [0] * 2)
    ledger.sampled(sequence(0, attempt=1), [0] * 3)
    ledger.settle(trajectory(0, 2), Fate.FAILED)
    ledger.settle(trajectory(0, 3, attempt=1), Fate.TRAINED)
    assert ledger.tokens()["failed"] == 2
    assert ledger.tokens()["trained"] == 3


def test_settling_twice_is_an_error():
    ledger = Ledger()
    ledger.sampled(sequence(0), [0] * 2)
    ledger.settle(trajectory(0, 2), Fate.TRAINED)
    with pytest.raises(HeadraceError, match="settled twice"):
        ledger.settle(trajectory(0, 2), Fate.TRAINED)


def test_tokens_sampled_unseen_are_an_error():
    ledger = Ledger()
    ledger.sampled(sequence(0), [0] * 2)
    with pytest.raises(HeadraceError, match="holds 3 tokens and 2 are in flight"):
        ledger.settle(trajectory(0, 3), Fate.TRAINED)


def test_what_was_in_flight_when_a_run_died_is_surplus_but_for_what_had_ended():
    ledger = Ledger()
    ledger.sampled(sequence(0), [0] * 2)
    ledger.sampled(sequence(1), [0] * 5)
    ledger.abandon(kept={episode_of(trajectory(0, 2))})
    assert (ledger.tokens()["surplus"], ledger.tokens()["in_flight"]) == (5, 2)
    ledger.settle(trajectory(0, 2), Fate.TRAINED)
    ledger.check()


def test_a_closed_group_leaves_those_of_other_groups_in_flight():
    ledger = Ledger()
    ledger.sampled(sequence(0), [0] * 2)
    ledger.sampled(SequenceId("b", member=1), [0] * 3)
    ledger.abandon(task=("a", 0))
    assert (ledger.tokens()["surplus"], ledger.tokens()["in_flight"]) == (2, 3)


def test_every_version_has_an_account_of_its_own():
    ledger = Ledger()
    ledger.sampled(sequence(0), [3, 3, 4])
    ledger.sampled(sequence(1), [4])
    ledger.settle(trajectory(0, 3), Fate.TRAINED)
    table = ledger.by_version()
    assert (table[3]["generated"], table[3]["trained"], table[3]["in_flight"]) == (2, 2, 0)
    assert (table[4]["generated"], table[4]["trained"], table[4]["in_flight"]) == (2, 1, 1)
    ledger.check()


def test_a_run_that_ends_leaves_nothing_in_flight():
    ledger = Ledger()
    ledger.sampled(sequence(0), [0] * 2)
    ledger.abandon()
    assert ledger.tokens()["surplus"] == 2
    assert ledger.tokens()["in_flight"] == 0

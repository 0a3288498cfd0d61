import threading

import pytest

from components.telemetry.clock import RoleClock, difference, idle_share


class Hands:
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.at = 0.0

    def __call__(self) -> float:
        return self.at


def test_seconds_are_kept_by_state_and_hold_the_current_one():
    hands = Hands()
    clock = RoleClock("trainer", clock=hands)
    hands.at = 2.0
    assert clock.switch("busy") == "starting"
    hands.at = 5.0
    clock.switch("waiting for generation")
    hands.at = 6.0
    clock.switch("busy")
    hands.at = 8.5
    assert clock.totals() == {"starting": 2.0, "busy": 5.5, "waiting for generation": 1.0}
    assert clock.state == "busy"


def test_idle_share_is_waiting_over_all_but_the_start():
    hands = Hands()
    clock = RoleClock("engine", clock=hands)
    hands.at = 10.0
    clock.switch("decode")
    hands.at = 13.0
    clock.switch("waiting for tools")
    hands.at = 14.0
    assert clock.idle_share() == pytest.approx(0.25)


def test_idle_share_of_no_time_is_zero():
    assert idle_share({"starting": 3.0}) == 0.0


def test_during_goes_back_also_after_an_error():
    clock = RoleClock("trainer", state="busy", clock=Hands())
    seen = []

    def lose_weights() -> None:
        with clock.during("weight sync"):
            seen.append(clock.state)
            raise OSError("lost")

    with pytest.raises(OSError, match="lost"):
        lose_weights()
    assert seen == ["weight sync"]
    assert clock.state == "busy"


def test_difference_of_two_readings_is_the_time_between():
    assert difference({"busy": 5.0, "decode": 1.0}, {"busy": 2.0}) == {"busy": 3.0, "decode": 1.0}


def test_states_are_exclusive_whoever_reads():
    clock = RoleClock("engine", state="a")
    stop = threading.Event()
    seen: list[float] = []

    def read() -> None:
        last = 0.0
        while not stop.is_set():
            whole = sum(clock.totals().values())
            seen.append(whole - last)
            last = whole

    reader = threading.Thread(target=read)
    reader.start()
    for number in range(500):
        clock.switch("ab"[number % 2])
    stop.set()
    reader.join()
    assert min(seen) >= 0  # a torn reading would count a stretch twice and fall back afterwards


def test_time_moves_between_states_and_none_is_lost():
    hands = Hands()
    clock = RoleClock("trainer", state="busy", clock=hands)
    hands.at = 4.0
    clock.carve("compiling", 1.5)
    clock.switch("waiting for rollouts")
    hands.at = 10.0
    clock.switch("busy")
    clock.reassign("waiting for rollouts", {"waiting for tools": 4.0, "waiting for graders": 2.0})
    assert clock.totals() == {
        "busy": 2.5,
        "compiling": 1.5,
        "waiting for tools": 4.0,
        "waiting for graders": 2.0,
    }


def test_a_state_is_renamed_only_while_it_lasts():
    hands = Hands()
    clock = RoleClock("engine", state="waiting for requests", clock=hands)
    hands.at = 1.0
    clock.rename("waiting for requests", "waiting for tools")
    hands.at = 3.0
    clock.rename("waiting for requests", "waiting for graders")
    assert clock.totals() == {"waiting for requests": 1.0, "waiting for tools": 2.0}

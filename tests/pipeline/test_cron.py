"""Cron expressions: read as the server reads them, and moved from one time zone to another."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from components.errors import ConfigError
from pipeline.cron import Cron, next_time, parse_cron, shifted
from tests.pipeline.kfp_contract import check_cron

START = datetime(2026, 3, 1, tzinfo=UTC)


def matches(text: str, moment: datetime) -> bool:
    """Whether robfig/cron 1.2 runs `text` (plain lists and stars) at a moment; written after its spec.go."""
    second, minute, hour, day, month, weekday = (
        None if field == "*" else {int(value) for value in field.split(",")} for field in text.split()
    )
    clock = [(second, moment.second), (minute, moment.minute), (hour, moment.hour), (month, moment.month)]
    in_month = day is None or moment.day in day
    in_week = weekday is None or (moment.weekday() + 1) % 7 in weekday
    days = in_month and in_week if day is None or weekday is None else in_month or in_week
    return days and all(allowed is None or value in allowed for allowed, value in clock)


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ("0 3 * * *", "0 0 3 * * *"),
        ("30 0 3 * * *", "30 0 3 * * *"),
        ("*/15 9-17 * * mon-fri", "0 0,15,30,45 9,10,11,12,13,14,15,16,17 * * 1,2,3,4,5"),
        ("0 0 9 ? * 2-6", "0 0 9 * * 2,3,4,5,6"),
        ("0 12 1,15 jan,jul *", "0 0 12 1,15 1,7 *"),
        ("0 3 * * 7", "0 0 3 * * 0"),
        ("50/3 3 * * *", "0 50,53,56,59 3 * * *"),
    ],
)
def test_five_fields_get_their_seconds_and_the_server_takes_what_comes_out(text: str, fields: str) -> None:
    assert parse_cron(text).text == fields
    check_cron(fields)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0 3 * *", "takes five fields"),
        ("@daily", "takes five fields"),
        ("0 24 * * *", "'24' is no hour: write numbers from 0 to 23"),
        ("0 3 0 * *", "'0' is no day of the month"),
        ("0 3 * * 8", "'8' is no weekday"),
        ("0 3 * * 5-1", "'5-1' is no weekday"),
        ("0 3 * foo *", "'foo' is no month"),
        ("*/0 3 * * *", "'\\*/0' is no minute"),
        ("0 3 */2 * 1", "means both on this server"),
    ],
)
def test_what_is_wrong_is_named(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_cron(text)


def test_weekdays_move_with_times_that_move_over_midnight() -> None:
    assert shifted(parse_cron("0 3 * * 1"), timedelta(hours=-8)).text == "0 0 19 * * 0"
    assert shifted(parse_cron("0 22 * * fri,sat"), timedelta(hours=5)).text == "0 0 3 * * 0,6"
    assert shifted(parse_cron("15 3 * * *"), timedelta(hours=-5, minutes=-30)).text == "0 45 21 * * *"
    assert shifted(parse_cron("0 * * * *"), timedelta(hours=-8)).text == "0 0 * * * *"


@pytest.mark.parametrize(
    ("text", "hours"),
    [("0 3,20 * * 1", -8), ("0 3 1 * *", -8), ("0 3 * 1 *", -8), ("0,30 3 * * *", 5.75), ("0 * * * 1", 1)],
)
def test_what_no_single_expression_can_say_is_refused(text: str, hours: float) -> None:
    with pytest.raises(ConfigError, match="cannot be said in the scheduler's time zone"):
        shifted(parse_cron(text), timedelta(hours=hours))


values = st.none() | st.lists(st.integers(0, 23), min_size=1, max_size=3).map(lambda found: tuple(sorted(set(found))))
some_crons = st.builds(
    Cron,
    second=st.just((0,)),
    minute=st.sampled_from([None, (0,), (30,), (0, 30), (15, 45)]),
    hour=values,
    day=st.sampled_from([None, None, (1,), (31,)]),
    month=st.sampled_from([None, None, (3,)]),
    weekday=st.sampled_from([None, (0,), (1, 2, 3, 4, 5)]),
)


@settings(max_examples=30)
@given(cron=some_crons, quarters=st.integers(-48, 56))
def test_a_moved_expression_runs_at_the_very_moments_of_the_first(cron: Cron, quarters: int) -> None:
    by = timedelta(minutes=15 * quarters)
    try:
        moved = shifted(cron, by)
    except ConfigError:
        return
    for number in range(33 * 96):
        moment = START + timedelta(minutes=15 * number)
        assert matches(cron.text, moment) == matches(moved.text, moment + by)


@pytest.mark.parametrize("text", ["0 3 * * 1", "0 30 2 * * *", "0 0 12 1,15 * 3", "0 59 23 8 3 *"])
def test_the_next_time_is_the_first_that_matches(text: str) -> None:
    fields = parse_cron(text)
    found = next_time(fields, START, UTC)
    assert found is not None
    moment = START + timedelta(minutes=1)
    while not matches(fields.text, moment):
        moment += timedelta(minutes=1)
    assert found == moment


def test_a_time_that_the_clocks_leave_out_does_not_come_that_day_and_29_february_is_waited_for() -> None:
    berlin = ZoneInfo("Europe/Berlin")
    after = datetime(2026, 3, 28, 12, tzinfo=UTC)
    assert next_time(parse_cron("30 2 * * *"), after, berlin) == datetime(2026, 3, 30, 2, 30, tzinfo=berlin)
    assert next_time(parse_cron("0 0 29 2 *"), after, UTC) == datetime(2028, 2, 29, tzinfo=UTC)
    assert next_time(parse_cron("0 0 30 2 *"), after, UTC) is None

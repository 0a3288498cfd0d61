"""A cron expression in one time zone -> the same moments in another, as far as one expression can say them.

Kubeflow Pipelines reads six fields, seconds first (robfig/cron 1.2), in the one time zone of its scheduler. Five fields
are read there as six without the weekday, so that `0 3 * * *` would run every hour: here they get their seconds.

    shifted(parse_cron("0 3 * * 1"), timedelta(hours=-8)).text == "0 0 19 * * 0"
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, tzinfo
from itertools import product

from components.errors import ConfigError, Problem

_MONTHS = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]
_WEEKDAYS = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"]
_LOWEST = (0, 0, 0, 1, 1, 0)
_HIGHEST = (59, 59, 23, 31, 12, 6)
_FIELDS = ("second", "minute", "hour", "day of the month", "month", "weekday")
_RANGE = re.compile(r"(?P<low>[*?]|\w+)(?:-(?P<high>\w+))?(?:/(?P<step>\d+))?")
_LOOK_AHEAD_DAYS = 366 * 8 + 1
"""The longest that a day may be away: 29 February, over a year that is none."""


@dataclass(frozen=True, slots=True)
class Cron:
    """The values of each field, ascending; None is any value (`*` or `?`). Weekdays count from Sunday, 0."""

    second: tuple[int, ...] | None
    minute: tuple[int, ...] | None
    hour: tuple[int, ...] | None
    day: tuple[int, ...] | None
    month: tuple[int, ...] | None
    weekday: tuple[int, ...] | None

    @property
    def text(self) -> str:
        """Six fields, as the server takes them."""
        fields = (self.second, self.minute, self.hour, self.day, self.month, self.weekday)
        return " ".join("*" if field is None else ",".join(map(str, field)) for field in fields)

    def on_day(self, moment: date) -> bool:
        """Whether it runs on that day. Of a day of the month and a weekday, where both are given, one is enough."""
        if self.month is not None and moment.month not in self.month:
            return False
        in_month = self.day is None or moment.day in self.day
        in_week = self.weekday is None or moment.isoweekday() % 7 in self.weekday
        return in_month or in_week if self.day is not None and self.weekday is not None else in_month and in_week


def parse_cron(text: str) -> Cron:
    """Five or six fields; five have no seconds. Raises ConfigError naming the field that is wrong."""
    fields = text.split()
    if len(fields) not in (5, 6):
        message = 'takes five fields, such as "0 3 * * *" for 3:00 of every day, or six with the seconds first'
        raise ConfigError(Problem("--cron", text, message))
    if len(fields) == 5:
        fields = ["0", *fields]
    cron = Cron(*(_field(number, field, text) for number, field in enumerate(fields)))
    if cron.day is not None and cron.weekday is not None and (fields[3][0] in "*?" or fields[5][0] in "*?"):
        message = "a step such as */2 beside days of the other kind means both on this server: write the days out"
        raise ConfigError(Problem("--cron", text, message))
    return cron


def shifted(cron: Cron, by: timedelta) -> Cron:
    """The expression that runs so much later than `cron` does. Raises ConfigError where no single expression can.

    That is where some of its times move to another day and others do not, or where they all do and days of the month
    or months are given: their lengths differ.
    """
    minutes = round(by.total_seconds() / 60)
    if minutes == 0:
        return cron
    any_day = cron.day is None and cron.month is None and cron.weekday is None
    moved: dict[int, set[tuple[int, int]]] = {}
    for hour, minute in product(_values(cron.hour, 24), _values(cron.minute, 60)):
        passed, rest = divmod(60 * hour + minute + minutes, 24 * 60)
        moved.setdefault(rest % 60, set()).add((0 if any_day else passed, rest // 60))
    times = next(iter(moved.values()))
    days = {day for day, _ in times}
    if len(days) > 1 or any(each != times for each in moved.values()):
        raise _impossible(cron, minutes, "not all of its times move to the same day, or by the same minutes")
    (shift,) = days
    if shift and (cron.day is not None or cron.month is not None):
        raise _impossible(cron, minutes, "its days would move over the end of a month")
    found_hours = tuple(sorted({hour for _, hour in times}))
    return Cron(
        second=cron.second,
        minute=None if cron.minute is None else tuple(sorted(moved)),
        hour=None if len(found_hours) == 24 else found_hours,
        day=cron.day,
        month=cron.month,
        weekday=None if cron.weekday is None else tuple(sorted((each + shift) % 7 for each in cron.weekday)),
    )


def next_time(cron: Cron, after: datetime, zone: tzinfo) -> datetime | None:
    """The first moment later than `after` at which a clock of `zone` shows a time of `cron`; None where there is none.

    A time that the clocks of the zone leave out on a day does not come on that day.
    """
    today = after.astimezone(zone).date()
    fields = (_values(cron.hour, 24), _values(cron.minute, 60), _values(cron.second, 60))
    for number in range(_LOOK_AHEAD_DAYS):
        day = today + timedelta(days=number)
        if cron.on_day(day):
            for hour, minute, second in product(*fields):
                moment = datetime(day.year, day.month, day.day, hour, minute, second, tzinfo=zone)
                utc = moment.astimezone(UTC)
                if utc > after and utc.astimezone(zone).hour == hour:
                    return moment
    return None


def _values(field: tuple[int, ...] | None, count: int) -> Iterable[int]:
    return range(count) if field is None else field


def _field(number: int, field: str, text: str) -> tuple[int, ...] | None:
    if field in ("*", "?"):
        return None
    found = {value for part in field.split(",") for value in _range(number, part, text)}
    # Sunday is 0 here and on the server, and 7 as well in a crontab.
    return tuple(sorted({value % 7 for value in found} if _FIELDS[number] == "weekday" else found))


def _range(number: int, part: str, text: str) -> range:
    """The values of `5`, `1-5`, `*/15` or `10/15` (from 10 on). Names are those of months and weekdays."""
    low, high = _LOWEST[number], _HIGHEST[number]
    match = _RANGE.fullmatch(part)
    if match is None:
        raise _wrong(number, part, text)
    step = int(match["step"] or 1)
    if match["low"] in ("*", "?"):
        first, last = low, high
        usable = match["high"] is None
    else:
        first = _number(number, match["low"], text)
        last = _number(number, match["high"], text) if match["high"] else high if match["step"] else first
        usable = first <= last
    most = 7 if _FIELDS[number] == "weekday" else high
    if not (usable and step > 0 and low <= first and last <= most):
        raise _wrong(number, part, text)
    return range(first, last + 1, step)


def _number(number: int, word: str, text: str) -> int:
    names = {"month": _MONTHS, "weekday": _WEEKDAYS}.get(_FIELDS[number], [])
    if word.lower() in names:
        return names.index(word.lower()) + _LOWEST[number]
    if not word.isdecimal():
        raise _wrong(number, word, text)
    return int(word)


def _wrong(number: int, part: str, text: str) -> ConfigError:
    reach = f"{_LOWEST[number]} to {_HIGHEST[number]}"
    message = f"{part!r} is no {_FIELDS[number]}: write numbers from {reach}, as 5 or 1-5 or 1,3 or */2"
    return ConfigError(Problem("--cron", text, message))


def _impossible(cron: Cron, minutes: int, why: str) -> ConfigError:
    message = (
        f"cannot be said in the scheduler's time zone, which is {minutes / 60:+g} hours away: {why}; "
        "choose other times, or make one schedule for each"
    )
    return ConfigError(Problem("--cron", cron.text, message))

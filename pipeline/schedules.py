"""A recipe and a cron expression -> a recurring run of the server; its list, pause, and end.

A schedule has a name, and the newest of that name is the only one: to change one, give it again. Its runs do not
overlap (`max_concurrency` 1), and times that were missed while it was paused are not made up for (`no_catchup`).

The server knows one time zone for all of its schedules. A schedule in another zone is moved by the hours that lie
between them; where that number changes with the seasons it is said, and the list shows which schedules have drifted.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import kfp_server_api

from components.errors import ConfigError, Problem
from components.telemetry.progress import say
from pipeline.cluster import ENDED, Order, named, place
from pipeline.connection import Client, Connection, server_errors, zone_of
from pipeline.cron import next_time, parse_cron, shifted

LATEST_PROMOTED = "latest-promoted"
"""The adapter that a schedule's runs start from, if it is not told another."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._-]{0,127}")
# Written into a schedule's description, so that a person reads it in the user interface, and read back for the list.
_WRITTEN = "{cron} in {zone}, {hours} from the scheduler's {server}; made by headrace"
_READ = re.compile(
    r"(?P<cron>.+) in (?P<zone>\S+), (?P<hours>[+-][\d.]+ h) from the scheduler's (?P<server>\S+); made.*"
)
_PAGE = 100
_RECENT_RUNS = 100


@dataclass(frozen=True, slots=True)
class Timing:
    """When a schedule runs: as the person wrote it, and as the server gets it."""

    cron: str
    zone: str
    server_cron: str
    server_zone: str
    ahead: timedelta
    """How much later the server's clock is than that of the zone, at present."""
    change: datetime | None
    """When that will change within a year; None where it will not."""

    @property
    def description(self) -> str:
        """What the user interface shows of it."""
        return _WRITTEN.format(cron=self.cron, zone=self.zone, hours=_hours(self.ahead), server=self.server_zone)


@dataclass(frozen=True, slots=True)
class Schedule:
    """A schedule as the list shows it. `drift` is what its times have moved by since it was made, as a text."""

    id: str
    name: str
    state: str
    cron: str
    zone: str
    next_run: datetime | None
    drift: str
    parameters: Mapping[str, Any]


def timing(cron: str, zone: str, connection: Connection, *, now: datetime | None = None) -> Timing:
    """A cron expression of a time zone as one of the server's. Raises ConfigError where there is none."""
    moment = now or datetime.now(UTC)
    own, server = zone_of(zone, "--timezone"), zone_of(connection.server_timezone, "server_timezone")
    ahead = _ahead(own, server, moment)
    return Timing(
        cron=cron,
        zone=zone,
        server_cron=shifted(parse_cron(cron), ahead).text,
        server_zone=connection.server_timezone,
        ahead=ahead,
        change=_next_change(own, server, moment),
    )


def season_text(times: Timing) -> str | None:
    """What a person has to know where the zone's clocks change; None where they agree with the server's for a year."""
    if times.change is None:
        return None
    own = zone_of(times.zone, "--timezone")
    after = _ahead(own, zone_of(times.server_zone, "server_timezone"), times.change)
    hours = (times.ahead - after).total_seconds() / 3600
    return (
        f"the clocks of {times.zone} change on {times.change.astimezone(own):%Y-%m-%d} against those of the scheduler "
        f"({times.server_zone}): from then on the runs start {abs(hours):g} h {'later' if hours > 0 else 'earlier'} by "
        "the clocks there. Give the same command again after that day"
    )


def schedule(client: Client, connection: Connection, name: str, order: Order, times: Timing) -> Schedule:
    """Make a schedule, and end all others of this name: made without effect, then they go, then it begins.

    So there are never two that run, whenever this is cut short. One that replaces a paused one is paused. What runs of
    the old ones still go on are left alone, and told. Raises ConfigError, ServerError.
    """
    if not _NAME.fullmatch(name):
        raise ConfigError(Problem("NAME", name, "take up to 128 letters, digits, spaces, dots, dashes and underlines"))
    if order.parameters.get("run_root"):
        message = "is one folder, and every run of a schedule needs its own; leave it empty"
        raise ConfigError(Problem("run_root", order.parameters["run_root"], message))
    placed = place(client, connection, order)
    old = _with_name(client, connection, name)
    with server_errors(connection, f"the schedule {name}"):
        made = client.create_recurring_run(
            experiment_id=placed.experiment_id,
            job_name=name,
            description=times.description,
            cron_expression=times.server_cron,
            max_concurrency=1,
            no_catchup=True,
            params=dict(placed.parameters),
            pipeline_id=placed.pipeline_id,
            version_id=placed.version_id,
            enabled=False,
            pipeline_root=connection.pipeline_root or None,
            service_account=connection.service_account or None,
        )
        for each in old:
            _end(client, each)
        paused = bool(old) and all(each.status == "DISABLED" for each in old)
        if not paused:
            client.enable_recurring_run(made.recurring_run_id)
        found = client.get_recurring_run(made.recurring_run_id)
    if old:
        say(f"replaced the schedule {name}" + ("; it stays paused, as the old one was" if paused else ""))
        _tell_running(client, connection, {each.recurring_run_id for each in old})
    return _read(found, connection)


def schedules(client: Client, connection: Connection) -> list[Schedule]:
    """All schedules of the namespace, by name. Raises ServerError."""
    return sorted((_read(each, connection) for each in _all(client, connection)), key=lambda each: each.name)


def pause(client: Client, connection: Connection, name: str) -> None:
    """Start no more runs until `resume`. Raises ConfigError where there is no such schedule."""
    for each in _known(client, connection, name):
        with server_errors(connection, f"the schedule {name}"):
            client.disable_recurring_run(each.recurring_run_id)


def resume(client: Client, connection: Connection, name: str) -> None:
    """Start runs again; those that were missed are not made up for. Raises ConfigError as `pause` does."""
    for each in _known(client, connection, name):
        with server_errors(connection, f"the schedule {name}"):
            client.enable_recurring_run(each.recurring_run_id)


def delete(client: Client, connection: Connection, name: str) -> None:
    """End a schedule; a run of it that goes on is left alone, and told. Raises ConfigError as `pause` does."""
    known = _known(client, connection, name)
    for each in known:
        with server_errors(connection, f"the schedule {name}"):
            _end(client, each)
    _tell_running(client, connection, {each.recurring_run_id for each in known})


def _end(client: Client, old: kfp_server_api.V2beta1RecurringRun) -> None:
    """Delete without what it owns: by default Kubernetes would delete the workflows of its runs, too."""
    client.recurring_runs.recurring_run_service_delete_recurring_run(
        old.recurring_run_id, propagation_policy=kfp_server_api.V2beta1DeletePropagationPolicy.ORPHAN
    )


def _tell_running(client: Client, connection: Connection, ids: set[str]) -> None:
    """Runs of schedules that are gone hold nobody back: the next run may begin beside them."""
    with server_errors(connection, "the runs"):
        recent = client.list_runs(
            page_size=_RECENT_RUNS, sort_by="created_at desc", namespace=connection.namespace or None
        )
    for run in recent.runs or []:
        if run.recurring_run_id in ids and run.state not in ENDED:
            say(f"note: its run {run.run_id} still goes on; end it with: headrace cancel {run.run_id}")


def _all(client: Client, connection: Connection, wanted: str | None = None) -> list[kfp_server_api.V2beta1RecurringRun]:
    found: list[kfp_server_api.V2beta1RecurringRun] = []
    token = ""
    with server_errors(connection, "the schedules"):
        while True:
            page = client.list_recurring_runs(
                page_token=token, page_size=_PAGE, namespace=connection.namespace or None, filter=wanted
            )
            found += page.recurring_runs or []
            token = page.next_page_token
            if not token:
                return found


def _with_name(client: Client, connection: Connection, name: str) -> list[kfp_server_api.V2beta1RecurringRun]:
    return _all(client, connection, named(name))


def _known(client: Client, connection: Connection, name: str) -> list[kfp_server_api.V2beta1RecurringRun]:
    if found := _with_name(client, connection, name):
        return found
    others = ", ".join(each.name for each in schedules(client, connection)) or "none"
    raise ConfigError(Problem("NAME", name, f"there is no schedule of this name; there are: {others}"))


def _read(found: kfp_server_api.V2beta1RecurringRun, connection: Connection) -> Schedule:
    trigger = found.trigger.cron_schedule if found.trigger else None
    server_cron = trigger.cron if trigger else ""
    written = _READ.fullmatch(found.description or "")
    server = zone_of(connection.server_timezone, "server_timezone")
    enabled = found.status == "ENABLED"
    zone = written["zone"] if written else connection.server_timezone
    due = _due(server_cron, server) if enabled else None
    return Schedule(
        id=found.recurring_run_id,
        name=found.display_name,
        state="enabled" if enabled else "paused",
        cron=written["cron"] if written else server_cron,
        zone=zone,
        next_run=due and due.astimezone(zone_of(zone, "--timezone")),
        drift=_drift(written, server) if written else "",
        parameters=dict(found.runtime_config.parameters or {}) if found.runtime_config else {},
    )


def _due(server_cron: str, server: ZoneInfo) -> datetime | None:
    """When it runs next; None for a schedule that others made, by an interval or by words that are not read here."""
    try:
        return next_time(parse_cron(server_cron), datetime.now(UTC), server)
    except ConfigError:
        return None


def _drift(written: re.Match[str], server: ZoneInfo) -> str:
    """By how much the clocks have moved since the schedule was made, and what to do; empty where they have not."""
    ahead = _ahead(zone_of(written["zone"], "--timezone"), server, datetime.now(UTC))
    if _hours(ahead) == written["hours"]:
        return ""
    return f"made with {written['hours']}, now it would be {_hours(ahead)}: give the command again to move it"


def _ahead(own: ZoneInfo, server: ZoneInfo, moment: datetime) -> timedelta:
    """How much later the server's clock is than the zone's own, at a moment."""
    here, there = (moment.astimezone(zone).utcoffset() or timedelta() for zone in (own, server))
    return there - here


def _next_change(own: ZoneInfo, server: ZoneInfo, moment: datetime) -> datetime | None:
    """The first hour within a year at which the two clocks differ by another number."""
    ahead = _ahead(own, server, moment)
    hours = (moment + timedelta(hours=number) for number in range(366 * 24))
    return next((hour for hour in hours if _ahead(own, server, hour) != ahead), None)


def _hours(ahead: timedelta) -> str:
    return f"{ahead.total_seconds() / 3600:+g} h"

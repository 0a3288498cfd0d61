"""Schedules: the server's six fields and one time zone, one schedule of a name, and runs that do not overlap."""

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from components.errors import ConfigError
from pipeline.cli import main
from pipeline.cluster import Order, make_order
from pipeline.connection import Client, Connection, ServerError, connect
from pipeline.schedules import Schedule, delete, pause, resume, schedule, schedules, season_text, timing
from tests.pipeline.kfp_server import KfpServer

SUMMER = datetime(2026, 7, 1, tzinfo=UTC)
WINTER = datetime(2026, 12, 1, tzinfo=UTC)


@pytest.fixture
def server() -> Iterator[KfpServer]:
    with KfpServer().serve() as running:
        yield running


@pytest.fixture
def link(server: KfpServer) -> Connection:
    return Connection(host=server.url, image="registry/headrace@sha256:00")


@pytest.fixture
def client(link: Connection) -> Client:
    return connect(link)


@pytest.fixture(scope="module")
def ordered() -> Order:
    link = Connection(host="http://nowhere", image="registry/headrace@sha256:00")
    return make_order("smoke", connection=link, usual={"parent": "latest-promoted"}, unchecked=True)


def make(client: Client, link: Connection, ordered: Order, name: str = "nightly", cron: str = "0 3 * * *") -> Schedule:
    return schedule(client, link, name, ordered, timing(cron, "UTC", link))


def test_a_schedule_is_sent_as_the_server_wants_it(
    server: KfpServer, client: Client, link: Connection, ordered: Order
) -> None:
    made = make(client, link, ordered)
    (kept,) = server.schedules.values()
    assert kept["trigger"] == {"cron_schedule": {"cron": "0 0 3 * * *"}}
    assert kept["max_concurrency"] == "1"
    assert kept["no_catchup"] is True
    assert kept["status"] == "ENABLED"
    assert kept["runtime_config"]["parameters"].keys() == ordered.pipeline.parameters.keys()
    assert (made.name, made.state, made.cron, made.zone, made.drift) == ("nightly", "enabled", "0 3 * * *", "UTC", "")
    assert made.next_run is not None
    assert (made.next_run.hour, made.next_run.minute) == (3, 0)
    assert timedelta() < made.next_run - datetime.now(UTC) <= timedelta(days=1)


def test_runs_of_a_schedule_start_from_the_promoted_adapter_unless_told_otherwise(link: Connection) -> None:
    usual = {"parent": "latest-promoted", "nothing the pipeline knows": "x"}

    def parameters(**given: Any) -> dict[str, Any]:
        return dict(make_order("smoke", connection=link, usual=usual, unchecked=True, **given).parameters)

    assert parameters()["parent"] == "latest-promoted"
    assert parameters(parameters={"parent": "gs://a/b"})["parent"] == "gs://a/b"
    assert parameters(overrides={"parent": "gs://a/b"})["parent"] == ""


def test_a_run_holds_back_the_next_one_until_it_has_ended(
    server: KfpServer, client: Client, link: Connection, ordered: Order
) -> None:
    make(client, link, ordered)
    first = server.fire("nightly")
    assert first is not None
    assert server.fire("nightly") is None
    while client.get_run(first).state != "SUCCEEDED":
        pass
    assert server.fire("nightly") is not None


def test_the_newest_of_a_name_is_the_only_one_and_a_run_of_the_old_one_goes_on(
    server: KfpServer, client: Client, link: Connection, ordered: Order, capsys: pytest.CaptureFixture[str]
) -> None:
    make(client, link, ordered)
    make(client, link, ordered, name="weekly")
    run = server.fire("nightly")
    assert run is not None
    make(client, link, ordered, cron="0 5 * * *")
    crons = {each["display_name"]: each["trigger"]["cron_schedule"]["cron"] for each in server.schedules.values()}
    assert crons == {"nightly": "0 0 5 * * *", "weekly": "0 0 3 * * *"}
    assert client.get_run(run).state == "PENDING", "Kubernetes was told not to delete what the old one owns"
    assert f"its run {run} still goes on; end it with: headrace cancel {run}" in capsys.readouterr().err


def test_there_are_never_two_schedules_of_a_name_that_run(
    server: KfpServer, client: Client, link: Connection, ordered: Order
) -> None:
    make(client, link, ordered)
    enabled: list[int] = []
    answer = server.answer

    def counted(call: Any, headers: Any) -> Any:
        found = answer(call, headers)
        enabled.append(sum(each["status"] == "ENABLED" for each in server.schedules.values()))
        return found

    server.answer = counted  # type: ignore[method-assign]
    make(client, link, ordered, cron="0 5 * * *")
    assert max(enabled) == 1
    assert enabled[-1] == 1


def test_a_schedule_that_cannot_be_made_leaves_the_old_one(
    server: KfpServer, client: Client, link: Connection, ordered: Order
) -> None:
    make(client, link, ordered)
    server.denied = "/recurringruns"
    with pytest.raises(ServerError):
        make(client, link, ordered, cron="0 5 * * *")
    (kept,) = server.schedules.values()
    assert kept["trigger"]["cron_schedule"]["cron"] == "0 0 3 * * *"
    assert kept["status"] == "ENABLED"


def test_a_paused_schedule_starts_nothing_and_is_paused_when_it_is_replaced(
    server: KfpServer, client: Client, link: Connection, ordered: Order
) -> None:
    make(client, link, ordered)
    pause(client, link, "nightly")
    assert server.fire("nightly") is None
    made = make(client, link, ordered, cron="0 5 * * *")
    assert (made.state, made.next_run) == ("paused", None)
    resume(client, link, "nightly")
    assert server.fire("nightly") is not None


def test_a_schedule_is_deleted_by_name_and_an_unknown_name_lists_the_others(
    server: KfpServer, client: Client, link: Connection, ordered: Order
) -> None:
    make(client, link, ordered)
    make(client, link, ordered, name="weekly")
    run = server.fire("nightly")
    delete(client, link, "nightly")
    assert [each["display_name"] for each in server.schedules.values()] == ["weekly"]
    assert client.get_run(str(run)).state != "FAILED"
    with pytest.raises(ConfigError, match="there is no schedule of this name; there are: weekly"):
        pause(client, link, "nightly")


def test_all_pages_of_the_list_are_read(server: KfpServer, client: Client, link: Connection, ordered: Order) -> None:
    make(client, link, ordered)
    (kept,) = server.schedules.values()
    for number in range(240):
        server.schedules[str(number)] = {**kept, "recurring_run_id": str(number), "display_name": f"s{number:03d}"}
    names = [each.name for each in schedules(client, link)]
    assert names == ["nightly", *(f"s{number:03d}" for number in range(240))]
    assert len(server.made("GET", "/recurringruns")) >= 3


def test_schedules_that_others_made_are_listed_as_far_as_they_are_understood(
    server: KfpServer, client: Client, link: Connection, ordered: Order
) -> None:
    make(client, link, ordered)
    (kept,) = server.schedules.values()
    for name, trigger in (("words", {"cron_schedule": {"cron": "@daily"}}), ("hours", {"periodic_schedule": {}})):
        server.schedules[name] = {**kept, "recurring_run_id": name, "display_name": name, "trigger": trigger}
        server.schedules[name].pop("description")
    listed = {each.name: (each.cron, each.next_run) for each in schedules(client, link) if each.name != "nightly"}
    assert listed == {"words": ("@daily", None), "hours": ("", None)}


def test_a_zone_that_keeps_its_hours_is_moved_for_good(link: Connection) -> None:
    times = timing("0 3 * * 1", "Asia/Tokyo", link, now=SUMMER)
    assert times.server_cron == "0 0 18 * * 0"
    assert season_text(times) is None


def test_a_zone_whose_clocks_change_is_moved_by_the_hours_of_today_and_it_is_said(link: Connection) -> None:
    summer = timing("0 3 * * *", "Europe/Berlin", link, now=SUMMER)
    assert summer.server_cron == "0 0 1 * * *"
    said = season_text(summer)
    assert said is not None
    assert "the clocks of Europe/Berlin change on 2026-10-25" in said
    assert "from then on the runs start 1 h earlier" in said
    winter = timing("0 3 * * *", "Europe/Berlin", link, now=WINTER)
    assert winter.server_cron == "0 0 2 * * *"
    assert "change on 2027-03-28" in str(season_text(winter))
    assert "start 1 h later" in str(season_text(winter))


def test_a_server_in_the_same_zone_needs_no_moving_and_two_zones_that_change_together_neither(
    server: KfpServer,
) -> None:
    link = Connection(host=server.url, server_timezone="Europe/Berlin")
    same = timing("0 3 1 * *", "Europe/Berlin", link, now=SUMMER)
    paris = timing("0 3 * * *", "Europe/Paris", link, now=SUMMER)
    assert same.server_cron == "0 0 3 1 * *"
    assert paris.server_cron == "0 0 3 * * *"
    assert season_text(same) is None
    assert season_text(paris) is None


def test_the_list_shows_a_schedule_whose_clocks_have_changed_since(
    server: KfpServer, client: Client, link: Connection, ordered: Order
) -> None:
    times = {now: timing("0 3 * * *", "Europe/Berlin", link, now=now) for now in (SUMMER, WINTER)}
    for name, now in (("summer", SUMMER), ("winter", WINTER)):
        schedule(client, link, name, ordered, times[now])
    drifts = {each.name: each.drift for each in schedules(client, link)}
    now = timing("0 3 * * *", "Europe/Berlin", link)
    fresh, old = ("summer", "winter") if now.ahead == times[SUMMER].ahead else ("winter", "summer")
    assert drifts[fresh] == ""
    assert "give the command again to move it" in drifts[old]
    assert [each.cron for each in schedules(client, link)] == ["0 3 * * *"] * 2


def test_a_folder_for_one_run_is_no_folder_for_all(client: Client, link: Connection) -> None:
    ordered = make_order("smoke", connection=link, parameters={"run_root": "gs://a/b"}, unchecked=True)
    with pytest.raises(ConfigError, match="every run of a schedule needs its own"):
        make(client, link, ordered)


def test_the_command_makes_lists_pauses_resumes_and_deletes(
    server: KfpServer, capsys: pytest.CaptureFixture[str]
) -> None:
    host = ["--host", server.url]
    times = ["--cron", "0 3 * * *", "--timezone", "Europe/Berlin"]
    assert main(["schedule", "nightly", "smoke", *times, "--unchecked", *host]) == 0
    printed = capsys.readouterr()
    assert re.match(r"nightly: enabled, 0 3 \* \* \* Europe/Berlin, next 20..-..-..T03:00\+0[12]:00,", printed.out)
    assert "note: the clocks of Europe/Berlin change on" in printed.err
    assert main(["schedule", *host, "--json"]) == 0
    (listed,) = json.loads(capsys.readouterr().out)["schedules"]
    assert (listed["name"], listed["state"], listed["parameters"]["recipe"]) == ("nightly", "enabled", "smoke")
    for action, state in (("--pause", "paused"), ("--resume", "enabled")):
        assert main(["schedule", "nightly", action, *host]) == 0
        assert main(["schedule", *host]) == 0
        assert f"nightly: {state}," in capsys.readouterr().out
    assert main(["schedule", "nightly", "--delete", *host]) == 0
    assert main(["schedule", *host]) == 0
    assert capsys.readouterr().out == "no schedules\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nightly", "smoke"], "a schedule needs one"),
        (["nightly", "smoke", "--cron", "0 3 * * *", "--timezone", "Mars"], "is no time zone"),
        (["nightly", "smoke", "--cron", "0 99 * * *"], "'99' is no hour"),
        (["a/b", "smoke", "--cron", "0 3 * * *"], "take up to 128 letters"),
        (["nightly"], "name a schedule and a recipe"),
        (["--pause"], "name a schedule and a recipe"),
    ],
)
def test_what_cannot_be_meant_changes_nothing(
    server: KfpServer, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert main(["schedule", *arguments, "--unchecked", "--host", server.url]) == 2
    assert message in capsys.readouterr().err
    assert server.schedules == {}
    assert all(call.method == "GET" for call in server.calls)

"""`headrace submit`, `schedule`, `watch` and `cancel`: runs on a Kubeflow Pipelines server."""

import argparse
import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from components.errors import ConfigError, Problem
from components.storage import is_remote
from components.telemetry.progress import say
from pipeline.commands.command import FAILED, OK, Command, add_json, add_recipe
from pipeline.recipe import parse_assignments
from pipeline.run_ids import is_run_id

if TYPE_CHECKING:
    from pipeline.cluster import Order
    from pipeline.connection import Client, Connection

_EVERY_SECONDS, _EVERY_SECONDS_HERE = 10.0, 2.0
_FLAGS = ("host", "namespace", "pipeline_root", "experiment", "image", "service_account")


def submit(options: argparse.Namespace) -> int:
    """Start a run on the cluster."""
    from pipeline.cluster import submit as submit_order  # kfp takes seconds to import

    connection = connection_of(options)
    order = _order(options, connection, {})
    client = _connect(connection)
    submission = submit_order(client, connection, order, name=options.name)
    say(f"{submission.name}: {submission.url}")
    if options.json:
        print(json.dumps(dataclasses.asdict(submission)))
    else:
        print(submission.run_id)
    return _watch(client, connection, submission.run_id, options.every) if options.watch else OK


def watch(options: argparse.Namespace) -> int:
    """Follow a run to its end: a folder, local or gs://, or the id of a run on the cluster."""
    if not is_run_id(options.run):
        return _watch_folder(options.run, options.every)
    connection = connection_of(options)
    return _watch(_connect(connection), connection, options.run, options.every)


def cancel(options: argparse.Namespace) -> int:
    """Stop a run on the cluster, and the JobSet that it started."""
    from pipeline.cancelling import cancel as cancel_run

    connection = connection_of(options)
    done = cancel_run(_connect(connection), connection, options.run)
    for owner in done.jobs:
        say(f"deleted the JobSet of {owner}")
    if done.note:
        say(f"note: {done.note}")
    print(json.dumps(dataclasses.asdict(done)) if options.json else done.state.lower())
    return OK


def schedule(options: argparse.Namespace) -> int:
    """Run a recipe again and again; without a recipe: pause, resume or delete a schedule, or list them all."""
    connection = connection_of(options)
    if options.recipe is None:
        return _manage(options, connection)
    from pipeline import schedules

    if options.cron is None or options.action is not None:
        raise ConfigError(Problem("--cron", options.cron or "", "a schedule needs one, and nothing else to be done"))
    times = schedules.timing(options.cron, options.timezone, connection)
    order = _order(options, connection, {"parent": schedules.LATEST_PROMOTED})
    made = schedules.schedule(_connect(connection), connection, options.name, order, times)
    if season := schedules.season_text(times):
        say(f"note: {season}")
    print(json.dumps(_schedule_record(made)) if options.json else _schedule_text(made))
    return OK


def connection_of(options: argparse.Namespace) -> "Connection":
    """The connection that a command's arguments describe."""
    from pipeline.connection import parse_auth, read_connection

    flags: dict[str, Any] = {name: vars(options).get(name) for name in _FLAGS}
    flags["auth"] = None if options.auth is None else parse_auth(options.auth)
    return read_connection(Path(options.connection) if options.connection else None, flags)


def add_connection(parser: argparse.ArgumentParser) -> None:
    """Where the server is and how to be let in."""
    group = parser.add_argument_group("the server")
    group.add_argument("--connection", metavar="FILE", help="default: cluster.yaml, here or in ~/.config/headrace")
    group.add_argument("--host", metavar="URL", help="e.g. http://localhost:8080 behind a port-forward")
    group.add_argument("--namespace", help="yours, where the server has several users")
    auth = "none, token_command=COMMAND, token_file=FILE, iap_client_id=ID or cookies_file=FILE"
    group.add_argument("--auth", metavar="KIND=VALUE", help=auth)
    group.add_argument("--pipeline-root", metavar="gs://...", help="where runs put their outputs")


def _manage(options: argparse.Namespace, connection: "Connection") -> int:
    from pipeline import schedules

    if options.action is not None and options.name is not None:
        {"pause": schedules.pause, "resume": schedules.resume, "delete": schedules.delete}[options.action](
            _connect(connection), connection, options.name
        )
        say(f"{options.name}: {options.action}d")
        return OK
    if options.name is not None or options.action is not None or options.cron is not None:
        message = "name a schedule and a recipe, or a schedule and one of --pause, --resume, --delete"
        raise ConfigError(Problem("schedule", options.name or "", message))
    found = schedules.schedules(_connect(connection), connection)
    if options.json:
        print(json.dumps({"schedules": [_schedule_record(each) for each in found]}))
    else:
        print("\n".join(_schedule_text(each) for each in found) or "no schedules")
    return OK


def _order(options: argparse.Namespace, connection: "Connection", usual: dict[str, str]) -> "Order":
    """What to run; `usual` are parameters that are sent unless something else is said."""
    from pipeline.cluster import make_order
    from pipeline.compiled import parse_parameters

    return make_order(
        options.recipe,
        connection=connection,
        overrides=parse_assignments(options.set),
        parameters=parse_parameters(options.param),
        usual=usual,
        pipeline=options.pipeline,
        unchecked=options.unchecked,
    )


def _connect(connection: "Connection") -> "Client":
    from pipeline.connection import connect

    return connect(connection)


def _watch_folder(folder: str, every: float | None) -> int:
    from rich.console import Console

    from pipeline.following import Lines, State, follow, state_text
    from pipeline.following_view import on_screen

    every = every or (_EVERY_SECONDS if is_remote(folder) else _EVERY_SECONDS_HERE)
    console = Console(stderr=True)
    try:
        if console.is_terminal:
            with on_screen(console) as picture:
                seen = follow(folder, show=picture.show, every=every)
        else:
            seen = follow(folder, show=Lines(say).show, every=every)
    except KeyboardInterrupt:
        return OK
    if console.is_terminal and seen.state in (State.DEAD, State.FAILED):
        say(state_text(seen))
    return OK if seen.state is State.FINISHED else FAILED


def _watch(client: "Client", connection: "Connection", run_id: str, every: float | None) -> int:
    from pipeline.watching import end_text
    from pipeline.watching import watch as watch_run

    try:
        run = watch_run(client, connection, run_id, show=say, every=every or _EVERY_SECONDS)
    except KeyboardInterrupt:
        say(f"the run goes on; follow it again with: headrace watch {run_id}")
        return OK
    say(end_text(run))
    return OK if run.state in ("SUCCEEDED", "SKIPPED") else FAILED


def _schedule_record(found: Any) -> dict[str, Any]:
    record = dataclasses.asdict(found)
    return record | {"next_run": found.next_run.isoformat() if found.next_run else None}


def _schedule_text(found: Any) -> str:
    text = f"{found.name}: {found.state}, {found.cron} {found.zone}"
    if found.next_run is not None:
        text += f", next {found.next_run.isoformat(timespec='minutes')}"
    recipe = found.parameters.get("recipe")
    return text + (f", recipe {recipe}" if recipe else "") + (f"; {found.drift}" if found.drift else "")


def _add_order(parser: argparse.ArgumentParser) -> None:
    help_text = "a parameter of the pipeline, e.g. steps=100; may be given again"
    parser.add_argument("--param", action="append", default=[], metavar="NAME=VALUE", help=help_text)
    which = "a shipped one, sweep, or a compiled file (default: the one that has the recipe's steps)"
    parser.add_argument("--pipeline", help=which)
    parser.add_argument("--image", help="what the steps run in, best by digest")
    parser.add_argument("--experiment", help="where the server keeps the runs (default: headrace)")
    parser.add_argument("--service-account", help="Kubernetes service account of the steps")
    help_text = "leave out what depends on this machine: packages, files, memory"
    parser.add_argument("--unchecked", action="store_true", help=help_text)


def _add_submit(parser: argparse.ArgumentParser) -> None:
    add_recipe(parser)
    _add_order(parser)
    parser.add_argument("--name", help="of the run (default: the recipe's, with the time)")
    parser.add_argument("--watch", action="store_true", help="follow it to its end")
    _add_every(parser)
    add_json(parser)
    add_connection(parser)


def _add_every(parser: argparse.ArgumentParser) -> None:
    help_text = f"between two looks (default: {_EVERY_SECONDS:g}, of a local folder {_EVERY_SECONDS_HERE:g})"
    parser.add_argument("--every", type=float, metavar="SECONDS", help=help_text)


def _add_watch(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", help="a run's folder, local or gs://, or a run's id")
    _add_every(parser)
    add_connection(parser)


def _add_cancel(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", help="the run's id")
    add_json(parser)
    add_connection(parser)


def _add_schedule(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", help="one schedule has it at a time; the newest replaces the others")
    add_recipe(parser, optional=True)
    help_text = 'five fields such as "0 3 * * *", or six with the seconds first'
    parser.add_argument("--cron", metavar="FIELDS", help=help_text)
    parser.add_argument("--timezone", default="UTC", help="whose clocks the fields are of (default: UTC)")
    for action in ("pause", "resume", "delete"):
        parser.add_argument(f"--{action}", dest="action", action="store_const", const=action, help=f"{action} NAME")
    _add_order(parser)
    add_json(parser)
    add_connection(parser)


SUBMIT = Command("submit", submit, _add_submit)
SCHEDULE = Command("schedule", schedule, _add_schedule)
WATCH = Command("watch", watch, _add_watch)
CANCEL = Command("cancel", cancel, _add_cancel)

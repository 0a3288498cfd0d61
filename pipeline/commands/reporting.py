"""`headrace report RUN` and `headrace replay RUN`: what a run's folder still tells."""

import argparse
import json
from pathlib import Path

from components import storage
from components.errors import ConfigError, Problem
from components.telemetry.metrics import read_metrics
from components.telemetry.progress import say
from components.telemetry.run_files import METRICS, read_run
from components.telemetry.why import explained
from pipeline.commands.command import OK, Command, add_json, existing_run
from pipeline.following import failure_text

JOURNAL = "journal.jsonl"
"""Without it nothing can be made again; its module brings jax."""


def report(options: argparse.Namespace) -> int:
    """Write the page of a run anew, also of one that still goes on; or say where its time went."""
    folder = existing_run(options.run_folder)
    if failure := failure_text(read_run(folder, trajectories=False).summary):
        say(f"this run has failed: {failure}")
    if options.why:
        print(explained(read_run(folder)))
        return OK
    from components.telemetry.report import write_report  # with it comes matplotlib

    print(write_report(folder))
    return OK


def replay(options: argparse.Namespace) -> int:
    """Make a run's optimizer steps again from its journal, and compare each with the run's."""
    run = existing_run(options.run_folder, holding=JOURNAL)
    from components.training.replay import replay as replay_run  # with it comes jax

    folder = Path(options.adapter) if options.adapter else None
    made = replay_run(run, adapter=folder, on_step=lambda step: say(f"step {step.version}: {step.fingerprint}, same"))
    figures = {"run_dir": run, "steps": made.steps, "fingerprint": made.fingerprint, "same_bits": True}
    text = f"{made.steps} steps, the same adapter bit for bit: {made.fingerprint}"
    print(json.dumps(figures) if options.json else text)
    return OK


def profile(options: argparse.Namespace) -> int:
    """Make some of a run's optimizer steps again, and take a device timeline of them."""
    run = existing_run(options.run_folder, holding=JOURNAL)
    from components.training.profiling import FOLDER, StepRange  # with it comes jax
    from components.training.replay import replay as replay_run

    steps = StepRange.parse(options.steps, "--steps")
    made = max((line["step"] for line in read_metrics(storage.join(run, METRICS))), default=0)
    if made < steps.last:
        raise ConfigError(Problem("--steps", options.steps, f"the run has made {made} steps"))
    replay_run(run, profile=steps, on_step=lambda step: say(f"step {step.version}, same"))
    print(storage.join(run, FOLDER))
    return OK


def add_run_folder(parser: argparse.ArgumentParser) -> None:
    """A run's folder, as `run_folder`."""
    parser.add_argument("run_folder", help="a run's folder")


def add_report_arguments(parser: argparse.ArgumentParser) -> None:
    """A run's folder, and what of it is wanted."""
    add_run_folder(parser)
    parser.add_argument("--why", action="store_true", help="say where the time went and what to do, in the terminal")


def add_replay_arguments(parser: argparse.ArgumentParser) -> None:
    """A run's folder, and where the last adapter goes."""
    add_run_folder(parser)
    parser.add_argument("--adapter", metavar="FOLDER", help="write the last adapter there")
    add_json(parser)


def add_profile_arguments(parser: argparse.ArgumentParser) -> None:
    """A run's folder, and which of its steps."""
    add_run_folder(parser)
    parser.add_argument("--steps", required=True, metavar="FIRST:LAST", help="optimizer steps, for example 10:12")


PROFILE = Command("profile", profile, add_profile_arguments)
REPORT = Command("report", report, add_report_arguments)
REPLAY = Command("replay", replay, add_replay_arguments)

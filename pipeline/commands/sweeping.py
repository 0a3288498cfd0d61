"""`headrace sweep RECIPE --trial ...`: one recipe several times, and one page that compares what came out."""

import argparse
import json
from typing import Any

from components.errors import ConfigError, Problem
from components.telemetry.run_files import read_run
from pipeline.commands.command import OK, Command, add_json, add_recipe, local_folder
from pipeline.recipe import load_recipe, parse_assignments, parse_overrides

PAGE = "comparison.html"


def sweep(options: argparse.Namespace) -> int:
    """Run a recipe on this machine once for every trial, and compare the trials on one page."""
    overrides = parse_assignments(options.set)
    trials = [_trial(text) for text in options.trial]
    if len(trials) < 2:
        raise ConfigError(Problem("--trial", options.trial, "give two or more, such as --trial seed=1 --trial seed=2"))
    if twice := next((trial for number, trial in enumerate(trials) if trial in trials[:number]), None):
        raise ConfigError(Problem("--trial", twice, "stands twice; two runs of it would be one and the same"))
    # Read here too, so that a fault of the last trial is told before the first one trains.
    recipes = [load_recipe(options.recipe, overrides | trial) for trial in trials]
    pipelines = {recipe.sweep_pipeline for recipe in recipes}
    if len(pipelines) > 1:
        message = "some would tune or train and others not, which is no comparison of values; sweep them apart"
        raise ConfigError(Problem("--trial", options.trial, message))
    from pipeline.compiling import pipeline_yaml
    from pipeline.local import run_pipeline

    arguments = {"recipe": options.recipe, "overrides": json.dumps(overrides), "trials": trials}
    name = f"{recipes[0].name}-sweep"
    pipeline, runs = pipeline_yaml(pipelines.pop()), local_folder(options.runs, "--runs")
    folder, cost = run_pipeline(pipeline, arguments, name=name, runs=runs)
    found = read_run(str(folder)).summary
    accuracies = [found[f"trial_{number}_accuracy_after"] for number in range(len(trials))]
    figures = {
        **cost,
        "trials": [{"set": trial, "accuracy_after": each} for trial, each in zip(trials, accuracies, strict=True)],
        "best_trial": found["best_trial"],
        "report_html": str(folder / PAGE),
    }
    print(json.dumps(figures) if options.json else _text(figures, found["outcome"]))
    return OK


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """A recipe, and what each trial replaces."""
    add_recipe(parser)
    help_text = "what one trial replaces: KEY=VALUE, several with commas between, or a JSON object; give it again"
    parser.add_argument("--trial", action="append", default=[], metavar="KEY=VALUE[,...]", help=help_text)
    parser.add_argument("--runs", default="runs", help="where the sweep's folder is made (default: runs)")
    add_json(parser)


def _trial(text: str) -> dict[str, Any]:
    if text.lstrip().startswith("{"):
        return parse_overrides(text, "--trial")
    return dict(parse_assignments(text.split(","), "--trial"))


def _text(figures: dict[str, Any], outcome: str) -> str:
    lines = [f"{each['accuracy_after']:7.1%}  {json.dumps(each['set'])}" for each in figures["trials"]]
    return "\n".join(["accuracy at the end", *lines, outcome, f"page: {figures['report_html']}"])


COMMAND = Command("sweep", sweep, add_arguments)

"""`headrace run RECIPE`: the whole pipeline on this machine."""

import argparse
import json

from components.errors import ConfigError
from components.telemetry.summary import format_table
from pipeline.commands.command import OK, Command, add_json, add_recipe, local_folder
from pipeline.doctor import memory_refusals
from pipeline.recipe import load_recipe, parse_assignments


def run(options: argparse.Namespace) -> int:
    """Run a recipe on this machine."""
    overrides = parse_assignments(options.set)
    runs = local_folder(options.runs, "--runs")
    resume = None if options.resume is None else local_folder(options.resume, "--resume")
    from pipeline.local import run_locally  # kfp takes seconds to import, and most commands do not need it

    # Read here too, so that a fault is told before a folder is made.
    recipe = load_recipe(options.recipe, overrides)
    if problems := memory_refusals(recipe):
        raise ConfigError(problems)
    finished = run_locally(
        options.recipe,
        name=recipe.name,
        runs=runs,
        overrides=overrides,
        seed=options.seed,
        resume=resume,
    )
    print(json.dumps(finished.figures) if options.json else format_table(finished.summary))
    return OK


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """A recipe, and where and how it runs."""
    add_recipe(parser)
    add_json(parser)
    parser.add_argument("--seed", type=int, help="in place of the recipe's own")
    parser.add_argument("--runs", default="runs", help="where the run's folder is made (default: runs)")
    parser.add_argument("--resume", metavar="FOLDER", help="go on with a run that was stopped, with the same settings")


COMMAND = Command("run", run, add_arguments)

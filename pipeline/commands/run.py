"""`headrace run RECIPE`: the whole pipeline on this machine."""

import argparse
import json
from pathlib import Path

from components.telemetry.summary import format_table
from pipeline.commands.command import OK, Command, add_json, add_recipe
from pipeline.recipe import load_recipe, parse_assignments


def run(options: argparse.Namespace) -> int:
    """Run a recipe on this machine."""
    overrides = parse_assignments(options.set)
    from pipeline.local import run_locally  # kfp takes seconds to import, and most commands do not need it

    # Read here too, so that a fault is told before a folder is made.
    recipe = load_recipe(options.recipe, overrides)
    finished = run_locally(
        options.recipe,
        name=recipe.name,
        runs=Path(options.runs),
        overrides=overrides,
        seed=options.seed,
        resume=Path(options.resume) if options.resume else None,
    )
    print(json.dumps(finished.figures) if options.json else format_table(finished.summary))
    return OK


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """A recipe, and where and how it runs."""
    add_recipe(parser)
    add_json(parser)
    parser.add_argument("--seed", type=int, default=-1, help="in place of the recipe's own")
    parser.add_argument("--runs", default="runs", help="where the run's folder is made (default: runs)")
    parser.add_argument("--resume", metavar="FOLDER", help="go on with a run that was stopped, with the same settings")


COMMAND = Command("run", run, add_arguments)

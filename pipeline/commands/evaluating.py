"""`headrace eval RECIPE ADAPTER`: an adapter against its base, without training."""

import argparse
import json

from components import storage
from components.errors import ConfigError, Problem
from components.export.promotion import LATEST
from components.telemetry.run_files import REPORT
from components.telemetry.summary import format_table
from pipeline.commands.command import OK, Command, add_json, add_recipe, local_folder
from pipeline.recipe import load_recipe, parse_assignments
from pipeline.start import find


def evaluate(options: argparse.Namespace) -> int:
    """Score an adapter against its base on the recipe's unseen tasks, on this machine."""
    overrides = parse_assignments(options.set)
    runs = local_folder(options.runs, "--runs")
    tasks = {} if options.tasks is None else {"evaluate.tasks": options.tasks}
    recipe = load_recipe(options.recipe, overrides | tasks | {"parent": options.adapter})
    if options.adapter != LATEST and not storage.exists(options.adapter):
        raise ConfigError(Problem("ADAPTER", options.adapter, f"does not exist; name a PEFT directory, or {LATEST}"))
    # As the first step will, so that a fault is told before a folder is made.
    start = find(
        name=recipe.name,
        parent=options.adapter,
        data="",
        promotion_root=recipe.promote.root,
        run_folder=str(runs.resolve() / "new"),
    )
    if start.parent is None:
        message = f"nothing is promoted at {start.promotion_root}; name the folder of an adapter"
        raise ConfigError(Problem("ADAPTER", options.adapter, message))
    from components.telemetry.run_files import update_summary
    from pipeline.closing import close_run
    from pipeline.compiling import pipeline_yaml
    from pipeline.local import run_pipeline

    arguments = {
        "recipe": options.recipe,
        "adapter": options.adapter,
        "tasks": -1 if options.tasks is None else options.tasks,
        "overrides": json.dumps(overrides),
    }
    name = f"{recipe.name}-eval"
    folder, cost = run_pipeline(pipeline_yaml("evaluation"), arguments, name=name, runs=runs)
    summary = update_summary(str(folder), {**cost, "report_html": str(folder / REPORT)})
    close_run(str(folder))
    keys = ("run_dir", "accuracy_before", "accuracy_after", "accuracy_after_interval", "accuracy_improvement")
    figures = {key: summary[key] for key in (*keys, "improvement_p_value", "evaluation_tasks", "report_html")}
    print(json.dumps(figures) if options.json else format_table(summary))
    return OK


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """A recipe, and the adapter."""
    add_recipe(parser)
    parser.add_argument("adapter", help="a PEFT directory, local or gs://, or latest-promoted")
    parser.add_argument("--tasks", type=int, help="how many test tasks (default: the recipe's)")
    parser.add_argument("--runs", default="runs", help="where the folder is made (default: runs)")
    add_json(parser)


COMMAND = Command("eval", evaluate, add_arguments)

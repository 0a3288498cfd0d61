"""`headrace`: run, doctor, compile, report, replay. Results on standard output, everything else on standard error.

Exit codes: 0 it worked, 1 a run failed, 2 what was asked for cannot work.
"""

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from components import storage
from components.errors import ConfigError, HeadraceError, Problem
from components.telemetry.progress import say
from components.telemetry.run_files import METRICS, SUMMARY
from components.telemetry.summary import format_table
from pipeline.doctor import GIB, ISOLATION, diagnose, problem_record
from pipeline.recipe import load_recipe, parse_assignments, shipped_recipes

OK, FAILED, BAD_INPUT = 0, 1, 2

COMPILED = Path(__file__).with_name("post_training.yaml")

Command = Callable[[argparse.Namespace], int]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; gives the exit code."""
    # A user's own environment lies in the folder that the command is called in.
    sys.path.insert(0, str(Path.cwd()))
    options = _parser().parse_args(arguments)
    try:
        return int(options.command(options))
    except ConfigError as error:
        say(f"headrace: {error}" if len(error.problems) == 1 else f"headrace: {len(error.problems)} problems\n{error}")
        return BAD_INPUT
    except HeadraceError as error:
        say(f"headrace: {error}")
        return FAILED
    except OSError as error:
        say(f"headrace: {error.filename or 'a file'}: {error.strerror or error}")
        return BAD_INPUT
    except KeyboardInterrupt:
        say("headrace: stopped")
        return FAILED


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
    if options.json:
        print(json.dumps(finished.figures))
    else:
        print(format_table(finished.summary))
    return OK


def doctor(options: argparse.Namespace) -> int:
    """Say what is wrong with a recipe, and what it would do."""
    try:
        diagnosis = diagnose(load_recipe(options.recipe, parse_assignments(options.set)))
    except ConfigError as error:
        problems = [problem_record(problem) for problem in error.problems]
        diagnosis = {"valid": False, "problems": problems, "objective": "", "memory_plan": {}, "isolation": ISOLATION}
    print(json.dumps(diagnosis) if options.json else _diagnosis_text(diagnosis))
    return OK if diagnosis["valid"] else BAD_INPUT


def compile_pipeline(options: argparse.Namespace) -> int:
    """Write the pipeline's YAML."""
    from pipeline.compiling import pipeline_yaml

    target = Path(options.output)
    target.write_text(pipeline_yaml(), encoding="utf-8")
    print(target)
    return OK


def report(options: argparse.Namespace) -> int:
    """Write the page of a run anew, also of one that still goes on."""
    from components.telemetry.report import write_report  # with it comes matplotlib

    folder = options.run_folder
    if not any(storage.exists(storage.join(folder, name)) for name in (METRICS, SUMMARY)):
        message = f"is no run's folder: it holds neither {METRICS} nor {SUMMARY}"
        raise ConfigError(Problem("report", folder, message))
    print(write_report(folder))
    return OK


def replay(options: argparse.Namespace) -> int:
    """Make a run's optimizer steps again from its journal, and compare each with the run's."""
    from components.training.replay import replay as replay_run  # with it comes jax

    folder = Path(options.adapter) if options.adapter else None
    made = replay_run(
        options.run_folder, adapter=folder, on_step=lambda step: say(f"step {step.version}: {step.fingerprint}, same")
    )
    figures = {"run_dir": options.run_folder, "steps": made.steps, "fingerprint": made.fingerprint, "same_bits": True}
    text = f"{made.steps} steps, the same adapter bit for bit: {made.fingerprint}"
    print(json.dumps(figures) if options.json else text)
    return OK


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="headrace", description="Post-training of agents, as Kubeflow pipelines.")
    parser.add_argument("--version", action="version", version=f"headrace {version('headrace')}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, function: Command, *, takes_recipe: bool) -> argparse.ArgumentParser:
        added = commands.add_parser(name, help=function.__doc__, description=function.__doc__)
        added.set_defaults(command=function)
        if takes_recipe:
            added.add_argument("recipe", help=f"a path, or one of {', '.join(shipped_recipes())}")
            help_text = "replace one value of the recipe, e.g. train.steps=3; may be given again"
            added.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help=help_text)
            added.add_argument("--json", action="store_true", help="print one JSON object as the last line")
        return added

    running = command("run", run, takes_recipe=True)
    running.add_argument("--seed", type=int, default=-1, help="in place of the recipe's own")
    running.add_argument("--runs", default="runs", help="where the run's folder is made (default: runs)")
    running.add_argument("--resume", metavar="FOLDER", help="go on with a run that was stopped, with the same settings")
    command("doctor", doctor, takes_recipe=True)
    compiling = command("compile", compile_pipeline, takes_recipe=False)
    compiling.add_argument("-o", "--output", default=str(COMPILED), help="default: the file in the package")
    reporting = command("report", report, takes_recipe=False)
    reporting.add_argument("run_folder", help="a run's folder")
    replaying = command("replay", replay, takes_recipe=False)
    replaying.add_argument("run_folder", help="a run's folder")
    replaying.add_argument("--adapter", metavar="FOLDER", help="write the last adapter there")
    replaying.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    return parser


def _diagnosis_text(diagnosis: Mapping[str, Any]) -> str:
    problems = [f"  {each['where']}: {each['message']} (got {each['value']!r})" for each in diagnosis["problems"]]
    plan = {key: value for key, value in diagnosis["memory_plan"].items() if key.endswith("_bytes") or "bytes" in key}
    lines = [
        "valid" if diagnosis["valid"] else "1 problem" if len(problems) == 1 else f"{len(problems)} problems",
        *problems,
    ]
    if diagnosis["objective"]:
        lines += ["", "Objective", *(f"  {line}" for line in diagnosis["objective"].splitlines())]
    if plan:
        width = max(map(len, plan))
        lines += [
            "",
            "Memory while training",
            *(f"  {key:<{width}}  {value / GIB:8.3f} GiB" for key, value in plan.items()),
        ]
        lines.append(f"  {'total, estimated':<{width}}  {diagnosis['memory_plan']['total_gib_estimate']:8.3f} GiB")
    return "\n".join([*lines, "", f"Tools and graders are isolated by: {diagnosis['isolation']}"])


if __name__ == "__main__":
    sys.exit(main())

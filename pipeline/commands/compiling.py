"""`headrace compile`: the pipelines' YAML, to upload to Kubeflow Pipelines."""

import argparse
from pathlib import Path

from components.errors import ConfigError, Problem
from components.steps.image import RUNTIME_IMAGE
from pipeline.commands.command import OK, Command

PACKAGE = Path(__file__).parents[1]
NAMES = ("post_training", "tuned_post_training", "tuning", "sweep", "tuned_sweep", "tuning_sweep", "evaluation")
COMPILED = PACKAGE / "post_training.yaml"


def compile_pipeline(options: argparse.Namespace) -> int:
    """Write the YAML of a pipeline, or of all."""
    from pipeline.compiling import pipeline_yaml

    if options.output and not options.pipeline:
        raise ConfigError(Problem("-o", options.output, f"takes one pipeline; name it: {', '.join(NAMES)}"))
    for name in [options.pipeline] if options.pipeline else NAMES:
        target = Path(options.output or PACKAGE / f"{name}.yaml")
        target.write_text(pipeline_yaml(name, image=options.image), encoding="utf-8")
        print(target)
    return OK


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Which pipeline, where it is written, and the image of its steps."""
    parser.add_argument("pipeline", nargs="?", choices=NAMES, help="default: all")
    parser.add_argument("-o", "--output", metavar="FILE", help="default: the file in the package")
    parser.add_argument("--image", default=RUNTIME_IMAGE, help="of every step, best by digest: NAME@sha256:...")


COMMAND = Command("compile", compile_pipeline, add_arguments)

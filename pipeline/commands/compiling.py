"""`headrace compile`: the pipeline's YAML, to upload to Kubeflow Pipelines."""

import argparse
from pathlib import Path

from pipeline.commands.command import OK, Command

COMPILED = Path(__file__).parents[1] / "post_training.yaml"


def compile_pipeline(options: argparse.Namespace) -> int:
    """Write the pipeline's YAML."""
    from pipeline.compiling import pipeline_yaml

    target = Path(options.output)
    target.write_text(pipeline_yaml(), encoding="utf-8")
    print(target)
    return OK


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Where it is written."""
    parser.add_argument("-o", "--output", default=str(COMPILED), help="default: the file in the package")


COMMAND = Command("compile", compile_pipeline, add_arguments)

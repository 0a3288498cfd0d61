"""What a command is, and the arguments that several of them take."""

import argparse
from collections.abc import Callable
from dataclasses import dataclass

from pipeline.recipe import shipped_recipes

OK, FAILED, BAD_INPUT = 0, 1, 2
"""Exit codes: it worked, a run failed, what was asked for cannot work."""


@dataclass(frozen=True, slots=True)
class Command:
    """`run` gives the exit code; its docstring is the help. `add_arguments` tells the parser what the command takes."""

    name: str
    run: Callable[[argparse.Namespace], int]
    add_arguments: Callable[[argparse.ArgumentParser], None]


def add_recipe(parser: argparse.ArgumentParser, *, optional: bool = False) -> None:
    """A recipe and `--set`, as `recipe` (None where it is left out) and `set`."""
    help_text = f"a path, a gs:// URI, or one of {', '.join(shipped_recipes())}"
    parser.add_argument("recipe", nargs="?" if optional else None, help=help_text)
    help_text = "replace one value of the recipe, e.g. train.steps=3; may be given again"
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help=help_text)


def add_json(parser: argparse.ArgumentParser) -> None:
    """`--json`, as `json`."""
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")

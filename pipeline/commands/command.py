"""What a command is, and the arguments that several of them take."""

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from components import storage
from components.errors import ConfigError, Problem
from components.telemetry.run_files import METRICS, SUMMARY
from pipeline.manifest import MANIFEST
from pipeline.recipe import shipped_recipes

OK, FAILED, BAD_INPUT = 0, 1, 2
"""Exit codes: it worked, a run failed, what was asked for cannot work."""
UNREAD = 141
"""The exit code where the results go into a pipe that is closed: as shells have it, 128 + SIGPIPE."""

_ANY_OF_A_RUN = (METRICS, SUMMARY, MANIFEST)


@dataclass(frozen=True, slots=True)
class Command:
    """`run` gives the exit code; its docstring is the help. `add_arguments` tells the parser what the command takes."""

    name: str
    run: Callable[[argparse.Namespace], int]
    add_arguments: Callable[[argparse.ArgumentParser], None]


def local_folder(text: str, option: str) -> Path:
    """The folder of this machine that an option names. Raises ConfigError for an empty name or a URI."""
    if not text:
        raise ConfigError(Problem(option, text, "is empty; name a folder, or leave the option out"))
    if "://" in text:
        message = "is no folder of this machine, where `headrace run` keeps its runs; on a cluster, `headrace submit`"
        raise ConfigError(Problem(option, text, message))
    return Path(text)


def add_recipe(parser: argparse.ArgumentParser, *, optional: bool = False) -> None:
    """A recipe and `--set`, as `recipe` (None where it is left out) and `set`."""
    help_text = f"a path, a gs:// URI, or one of {', '.join(shipped_recipes())}"
    parser.add_argument("recipe", nargs="?" if optional else None, help=help_text)
    help_text = "replace one value of the recipe, e.g. train.steps=3; may be given again"
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help=help_text)


def existing_run(folder: str, *, holding: str | None = None) -> str:
    """The folder of a run, without a stroke at its end. Raises ConfigError where it is none, or lacks the file."""
    folder = folder.rstrip("/")
    if not any(storage.exists(storage.join(folder, name)) for name in _ANY_OF_A_RUN):
        message = f"is no run's folder: it holds neither {', '.join(_ANY_OF_A_RUN[:-1])} nor {_ANY_OF_A_RUN[-1]}"
        raise ConfigError(Problem("RUN", folder, message))
    if holding is not None and not storage.exists(storage.join(folder, holding)):
        raise ConfigError(Problem("RUN", folder, f"holds no {holding}: the run has not come so far"))
    return folder


def add_json(parser: argparse.ArgumentParser) -> None:
    """`--json`, as `json`."""
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")

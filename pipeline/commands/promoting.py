"""`headrace promote RUN`: by hand, what a run does itself when it passes its gate."""

import argparse
import json
from dataclasses import asdict
from pathlib import Path

from components import storage
from components.errors import ConfigError, Problem
from components.export.promotion import move_pointer
from components.telemetry.run_files import update_summary
from pipeline import manifest as manifests
from pipeline.commands.command import OK, Command, add_json, existing_run


def promote(options: argparse.Namespace) -> int:
    """Let a run's exported adapter be the promoted one, whatever its gate said and whoever was promoted meanwhile."""
    folder = Path(existing_run(options.run_folder))
    adapter = folder / "adapter"
    if not adapter.is_dir():
        raise ConfigError(Problem("promote", str(folder), "holds no folder adapter: the run has exported nothing"))
    if options.root and not storage.is_remote(options.root) and not Path(options.root).absolute().parent.is_dir():
        message = "lies in no folder that there is; make the folder above it first, or correct the path"
        raise ConfigError(Problem("--root", options.root, message))
    root = options.root or manifests.read(str(folder))["start"]["promotion_root"]
    entry = move_pointer(root, adapter.resolve(), str(folder.resolve()), expected=None)
    update_summary(str(folder), {"promotion": f"promoted: {entry.adapter}"})
    print(json.dumps(asdict(entry)) if options.json else f"{root}: {entry.adapter}")
    return OK


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The run, and where the pointer lies."""
    parser.add_argument("run_folder", help="the folder of a run on this machine")
    parser.add_argument("--root", help="where the pointer lies (default: the run's own)")
    add_json(parser)


COMMAND = Command("promote", promote, add_arguments)

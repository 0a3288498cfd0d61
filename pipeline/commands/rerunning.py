"""`headrace rerun RUN`: the same run again, from its manifest."""

import argparse
import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from components import storage
from components.errors import ConfigError, Problem
from components.export.promotion import fingerprint_of
from components.telemetry.progress import say
from components.telemetry.summary import format_table
from pipeline import manifest as manifests
from pipeline.commands.command import OK, Command, add_json, existing_run, local_folder
from pipeline.recipe import load_recipe


def rerun(options: argparse.Namespace) -> int:
    """Start a run again: the same recipe, seed and parent; refused by name where code, packages or data differ."""
    from pipeline.local import run_locally

    run = existing_run(options.run_folder, holding=manifests.MANIFEST)
    manifest = manifests.read(run)
    recipe = storage.join(run, manifests.EXACT_RECIPE)
    changed = manifests.differences(manifest, as_of_now(manifest, recipe))
    if changed and not options.anyway:
        raise ConfigError(
            [*changed, Problem("rerun", run, "this would be another run; --anyway starts it all the same")]
        )
    for problem in changed:
        say(f"warning: {problem}")
    finished = run_locally(recipe, name=manifest["recipe"]["name"], runs=local_folder(options.runs, "--runs"))
    print(json.dumps(finished.figures) if options.json else format_table(finished.summary))
    return OK


def as_of_now(manifest: Mapping[str, Any], recipe: str) -> dict[str, Any]:
    """What a manifest would say of code, packages, data, base and parent, if the run were started now."""
    from components.model.base_artifact import write_base  # with it comes jax
    from components.steps.work import prepare_data

    now = {**manifests.made_by(manifest["recipe"]), "exact": manifest["exact"]}
    sections = load_recipe(recipe)
    with tempfile.TemporaryDirectory() as folder:
        if "data" in manifest:
            texts = {name: json.dumps(manifest["exact"][name]) for name in ("prepare_data", "environment")}
            now["data"] = prepare_data(
                section=texts["prepare_data"],
                environment=texts["environment"],
                seed=sections.seed,
                run_folder=folder,
                folder=f"{folder}/tasks",
            )
        source = sections.init_model.source
        if "base" in manifest and source is not None:
            artifact = write_base(Path(folder, "base"), source, dtype=sections.init_model.dtype)
            now["base"] = {"fingerprint": artifact.fingerprint}
    parent = manifest["start"]["parent"]
    now["start"] = {"parent": {"fingerprint": fingerprint_of(parent["uri"])} if parent else None}
    return now


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The run, and where the new one goes."""
    parser.add_argument("run_folder", help="the folder of the run, local or gs://")
    parser.add_argument("--anyway", action="store_true", help="start it though something differs, and say what")
    parser.add_argument("--runs", default="runs", help="where the new run's folder is made (default: runs)")
    add_json(parser)


COMMAND = Command("rerun", rerun, add_arguments)

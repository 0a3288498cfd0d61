"""A recipe's name and overrides -> one checked JSON text per section, and a manifest of what the run is made of.

Knows nothing of kfp: inside a step that package is only a part of itself, without what a pipeline is written in.
"""

import json
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any, NamedTuple

from components import storage
from components.algorithms.objective import Objective
from components.config import dump
from components.errors import ConfigError, Problem
from components.telemetry.run_files import update_summary
from pipeline.doctor import examine
from pipeline.recipe import Recipe, check_parameter_sizes, load_recipe, parse_overrides, section_texts

RECORDED_PACKAGES = ("headrace", "jax", "kfp", "numpy", "optax", "orbax-checkpoint")


class Resolved(NamedTuple):
    """What the later steps take: the run's name, seed and folder, and each section as JSON text."""

    name: str
    seed: int
    run_folder: str
    environment: str
    prepare_data: str
    init_model: str
    train: str
    evaluate: str
    export: str


def resolve(recipe: str, overrides: str, seed: int, run_root: str, manifest: str, manifest_uri: str) -> Resolved:
    """Load and examine the recipe, write the manifest, give the sections.

    A seed of -1 is the recipe's own. Raises ConfigError with every problem at once.
    """
    check_parameter_sizes({"recipe": recipe, "overrides": overrides, "run_root": run_root})
    settings = parse_overrides(overrides)
    if seed < -1:
        raise ConfigError(Problem("seed", seed, "must be 0 or more, or -1 for the recipe's own"))
    if seed >= 0:
        settings["seed"] = seed
    loaded = load_recipe(recipe, settings)
    problems = examine(loaded)
    if problems:
        raise ConfigError(problems)
    packages = {package: version(package) for package in RECORDED_PACKAGES}
    record = {
        "recipe": dump(loaded),
        "source": recipe,
        "overrides": settings,
        "packages": packages,
    }
    text = json.dumps(record, indent=2)
    run_folder = run_root or storage.join(manifest_uri.rpartition("/")[0], "run")
    storage.write_text(manifest, text)
    storage.write_text(storage.join(run_folder, "recipe.json"), text)
    update_summary(run_folder, _description(loaded, packages))
    return Resolved(name=loaded.name, seed=loaded.seed, run_folder=run_folder, **section_texts(loaded))


def _description(recipe: Recipe, packages: Mapping[str, str]) -> dict[str, Any]:
    """What the run's page says of it."""
    tiny = recipe.init_model.tiny
    return {
        "recipe": recipe.name,
        "model": recipe.init_model.source if tiny is None else f"made in the run: {tiny.n_layers} x {tiny.d_model}",
        "environment": recipe.environment.use,
        "objective": Objective.from_config(recipe.train.objective).describe(),
        "versions": dict(packages),
        "facts": {"seed": recipe.seed, "renderer": recipe.environment.renderer},
    }

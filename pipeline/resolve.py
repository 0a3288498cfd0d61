"""Door: a recipe's name and overrides -> one checked JSON text per section, within seconds."""

from typing import NamedTuple

from kfp import dsl

from components.steps.image import RUNTIME_IMAGE


@dsl.component(base_image=RUNTIME_IMAGE, install_kfp_package=False)
def resolve_recipe(
    recipe: str, overrides: str, seed: int, run_root: str, manifest: dsl.Output[dsl.Artifact]
) -> NamedTuple(  # type: ignore[valid-type]  # the one form of several outputs that kfp reads
    "Resolved",
    [
        ("name", str),
        ("seed", int),
        ("run_folder", str),
        ("environment", str),
        ("prepare_data", str),
        ("init_model", str),
        ("train", str),
        ("evaluate", str),
        ("export", str),
    ],
):
    """Check the whole recipe before anything costs time, and record what the run is made of."""
    from pipeline.resolution import resolve

    return resolve(recipe, overrides, seed, run_root, manifest.path, manifest.uri)

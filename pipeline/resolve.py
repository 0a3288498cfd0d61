"""Door: a recipe's name and what replaces its values -> one checked JSON text per section, within seconds."""

from typing import NamedTuple

from kfp import dsl

from components.steps.image import RUNTIME_IMAGE


@dsl.component(base_image=RUNTIME_IMAGE, install_kfp_package=False)
def resolve_recipe(
    recipe: str,
    overrides: str,
    run_root: str,
    run_id: str,
    image: str,
    manifest: dsl.Output[dsl.Artifact],
    model: str = "",
    data: str = "",
    objective: str = "",
    steps: int = -1,
    learning_rate: float = -1.0,
    seed: int = -1,
    accelerator: str = "",
    topology: str = "",
    parent: str = "",
    tasks: int = -1,
    parent_is_needed: bool = False,
    stages: str = "",
    trial: dict = {},  # noqa: B006 (the form of a default that kfp reads)
) -> NamedTuple(  # type: ignore[valid-type]  # the one form of several outputs that kfp reads
    "Resolved",
    [
        ("name", str),
        ("seed", int),
        ("run_folder", str),
        ("proceed", str),
        ("job_owner", str),
        ("environment", str),
        ("prepare_data", str),
        ("init_model", str),
        ("tune", str),
        ("train", str),
        ("evaluate", str),
        ("gate", str),
        ("export", str),
        ("promote", str),
        ("platform", str),
        ("cpu", str),
        ("memory", str),
        ("accelerator", str),
        ("accelerator_count", str),
        ("node_selector", dict),
        ("tolerations", list),
    ],
):
    """Check the whole recipe before anything costs time, and record what the run is made of."""
    from pipeline.resolution import resolve

    return resolve(
        recipe=recipe,
        overrides=overrides,
        parameters={
            "model": model,
            "data": data,
            "objective": objective,
            "steps": steps,
            "learning_rate": learning_rate,
            "seed": seed,
            "accelerator": accelerator,
            "topology": topology,
            "parent": parent,
            "tasks": tasks,
        },
        parent_is_needed=parent_is_needed,
        stages=stages,
        trial=trial,
        run_root=run_root,
        run_id=run_id,
        image=image,
        manifest=manifest.path,
        manifest_uri=manifest.uri,
    )

"""A recipe's name and what replaces its values -> one checked JSON text per section, and a manifest of the run.

Knows nothing of kfp: inside a step that package is only a part of itself, without what a pipeline is written in.
"""

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from components import storage
from components.config import dump
from components.errors import ConfigError, Problem
from components.launcher.platform import TPU_RESOURCE, step_settings
from components.model.lora import LoraConfig
from components.telemetry.progress import say
from components.telemetry.run_files import update_summary
from pipeline import manifest as manifests
from pipeline import start as starts
from pipeline.doctor import examine, warnings
from pipeline.parameters import Value, merged, renamed
from pipeline.provenance import packages
from pipeline.recipe import Recipe, check_parameter_sizes, load_recipe, parse_overrides, section_texts
from pipeline.start import Start


class Resolved(NamedTuple):
    """What the later steps take: name, seed and folder of the run, each section as JSON text, what the pod asks for.

    `proceed` is "yes", or "no" where there is nothing new to train on; `job_owner` is who a JobSet belongs to.
    Quantities are as Kubernetes writes them; an accelerator of "" is none.
    """

    name: str
    seed: int
    run_folder: str
    proceed: str
    job_owner: str
    environment: str
    prepare_data: str
    init_model: str
    tune: str
    train: str
    evaluate: str
    gate: str
    export: str
    promote: str
    platform: str
    cpu: str
    memory: str
    accelerator: str
    accelerator_count: str
    node_selector: dict[str, Any]
    tolerations: list[Any]


def resolve(
    *,
    recipe: str,
    overrides: str,
    parameters: Mapping[str, Value],
    parent_is_needed: bool,
    stages: str = "",
    trial: Mapping[str, Any],
    run_root: str,
    run_id: str,
    image: str,
    manifest: str,
    manifest_uri: str,
) -> Resolved:
    """Load and examine the recipe, look up what it leaves open, write the manifest, give the sections.

    `stages` are those that the pipeline has, joined by commas; where it is empty the recipe's own do not matter.
    Raises ConfigError with every problem at once, before anything is written.
    """
    check_parameter_sizes({"recipe": recipe, "overrides": overrides, "run_root": run_root})
    settings = merged(parameters, parse_overrides(overrides), trial)
    loaded = _loaded(recipe, settings, parameters)
    _check_stages(loaded, stages, is_trial=bool(trial))
    run_folder = starts.folder_of(run_root, run_id, manifest_uri, trial_name(trial))
    start = manifests.start_of(run_folder) or _found(loaded, run_folder)
    if parent_is_needed and start.parent is None:
        message = f"nothing is promoted at {start.promotion_root}; name an adapter"
        raise ConfigError(Problem("adapter", loaded.parent, message))
    exact = applied(loaded, start)
    problems = examine(exact)
    if problems:
        raise ConfigError([renamed(problem, parameters) for problem in problems])
    for doubt in warnings(exact):
        say(f"warning: {renamed(doubt, parameters)}")
    sections: dict[str, Any] = dict(section_texts(exact))
    starts.claim(run_folder, run_id)
    record = manifests.compose(
        dump(loaded),
        dump(exact),
        start,
        image=image,
        source=recipe,
        parameters={name: value for name, value in parameters.items() if value not in ("", -1)},
        overrides=settings,
        trial=merged({}, {}, trial),
    )
    storage.write_text(manifest, manifests.write(run_folder, record))
    update_summary(run_folder, _description(loaded, start))
    if start.ended:
        say(start.ended)
    return Resolved(
        name=loaded.name,
        seed=loaded.seed,
        run_folder=run_folder,
        proceed="no" if start.ended else "yes",
        job_owner=starts.job_owner(run_id, trial_name(trial)),
        **sections,
        **_pod(exact),
    )


def applied(recipe: Recipe, start: Start) -> Recipe:
    """The recipe with every open name replaced: what the steps take, and what a run started again is made by."""
    model: dict[str, Any] = {}
    if start.parent is not None:
        # The parent has ranks of its own; those of the recipe are for a fresh adapter.
        model = {"adapter": start.parent.uri, "lora": LoraConfig()}
    environment = recipe.environment
    if start.data_content:
        environment = dataclasses.replace(environment, options={**environment.options, "data": start.data})
    return dataclasses.replace(
        recipe,
        parent=None,
        environment=environment,
        init_model=dataclasses.replace(recipe.init_model, **model),
        promote=dataclasses.replace(recipe.promote, root=start.promotion_root),
    )


def trial_name(trial: Mapping[str, Any]) -> str:
    """The name of a sweep's trial, from what it replaces; empty for what is no trial."""
    if not trial:
        return ""
    text = json.dumps(merged({}, {}, trial), sort_keys=True)
    return f"trial-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def _found(recipe: Recipe, run_folder: str) -> Start:
    return starts.find(
        name=recipe.name,
        parent=recipe.parent or recipe.init_model.adapter or "",
        data=str(recipe.environment.options.get("data", "")),
        promotion_root=recipe.promote.root,
        run_folder=run_folder,
    )


def _loaded(recipe: str, settings: Mapping[str, Any], parameters: Mapping[str, Value]) -> Recipe:
    try:
        loaded = load_recipe(recipe, settings)
    except ConfigError as error:
        raise ConfigError([renamed(problem, parameters) for problem in error.problems]) from None
    return loaded


def _check_stages(recipe: Recipe, stages: str, *, is_trial: bool = False) -> None:
    """Raises ConfigError where the pipeline would leave out what the recipe asks for, or do what it does not."""
    if stages and stages != ",".join(recipe.stages):
        message = f"asks for {' and '.join(recipe.stages)}, and this pipeline is for {stages.replace(',', ' and ')}"
        right = recipe.sweep_pipeline if is_trial else recipe.pipeline
        raise ConfigError(Problem("recipe", recipe.name, f"{message}; the pipeline for it is {right}"))


def _pod(recipe: Recipe) -> dict[str, Any]:
    """What the pod of a step that learns asks for; "0" asks for nothing."""
    settings = step_settings(recipe.platform)
    chips = settings.limits.get(TPU_RESOURCE, "")
    return {
        "cpu": settings.requests.get("cpu", "0"),
        "memory": settings.requests.get("memory", "0"),
        "accelerator": TPU_RESOURCE if chips else "",
        "accelerator_count": chips or "0",
        "node_selector": dict(settings.node_selector),
        "tolerations": [dataclasses.asdict(toleration) for toleration in settings.tolerations],
    }


def _description(recipe: Recipe, start: Start) -> dict[str, Any]:
    """What the run's page says of it, and what later steps look up."""
    tiny = recipe.init_model.tiny
    facts: dict[str, Any] = {"seed": recipe.seed, "renderer": recipe.environment.renderer}
    if start.parent is not None:
        facts["parent"] = start.parent.uri
    return {
        "recipe": recipe.name,
        "model": recipe.init_model.source if tiny is None else f"made in the run: {tiny.n_layers} x {tiny.d_model}",
        "environment": recipe.environment.use,
        "objective": recipe.objectives(),
        "stages": recipe.stages,
        "versions": packages(),
        "facts": facts,
        "start": {
            "parent": dataclasses.asdict(start.parent) if start.parent else None,
            "promoted_generation": start.promoted_generation,
            "data_source": start.data,
            "promotion_root": start.promotion_root,
        },
        **({"promotion": f"not promoted: {start.ended}"} if start.ended else {}),
    }

"""A recipe -> a run on a Kubeflow Pipelines server; and what is known of a run there.

    order = make_order("quickstart", overrides={"train.steps": 20}, parameters={"seed": "3"}, connection=connection)
    submission = submit(connect(connection), connection, order)

Everything is checked here first, by the same code as `headrace doctor` and by the server's own rules, and the server is
asked whether it lets us in; only then is anything sent. All parameters are sent, also those with their defaults: the
comparison of the user interface shows what was sent.

A recipe that is a file of this machine travels through the bucket, under a name made of its content. So it has no
limit in size, a run can be repeated from it for ever, and two equal files are one object.
"""

import dataclasses
import hashlib
import json
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import kfp_server_api

from components import storage
from components.errors import ConfigError, Problem
from components.steps.image import RUNTIME_IMAGE
from components.telemetry.progress import say
from pipeline.compiled import CompiledPipeline, read_compiled, shipped_pipeline
from pipeline.connection import Client, Connection, server_errors
from pipeline.doctor import examine
from pipeline.manifest import MANIFEST
from pipeline.newest import find_newest
from pipeline.parameters import KEYS, merged, renamed
from pipeline.recipe import Recipe, load_recipe, read_recipe_text, shipped_recipes
from pipeline.run_ids import is_run_id
from pipeline.start import NEWEST, folder_of

ENDED = frozenset({"SUCCEEDED", "FAILED", "CANCELED", "SKIPPED"})
"""States that a run does not leave."""

UNREADABLE = (OSError, ConfigError)
"""What reading a run's folder raises from a machine that has no access to it."""

_PAGE = 100


@dataclass(frozen=True, slots=True)
class Order:
    """What is to run, checked. `recipe_text` is that of a local file, which has to travel; None for any other."""

    name: str
    pipeline: CompiledPipeline
    parameters: Mapping[str, Any]
    recipe_text: str | None = None


@dataclass(frozen=True, slots=True)
class Placed:
    """An order on the server: all that a run or a schedule needs to be made of it."""

    pipeline_id: str
    version_id: str
    experiment_id: str
    parameters: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Submission:
    """A run that was started. `version` is the hash of the pipeline's content."""

    run_id: str
    name: str
    url: str
    version: str
    parameters: Mapping[str, Any]


def make_order(
    recipe: str,
    *,
    connection: Connection,
    overrides: Mapping[str, Any] | None = None,
    parameters: Mapping[str, Any] | None = None,
    usual: Mapping[str, Any] | None = None,
    pipeline: str | None = None,
    unchecked: bool = False,
) -> Order:
    """Check a recipe and the parameters against what the pipeline declares. Sends nothing.

    `overrides` replace values of the recipe; `usual` are parameters for a pipeline that has them, unless they or the
    recipe's key of that name are given. `pipeline` is a shipped one or the path of a compiled file, by default the one
    with the recipe's steps; "sweep" is the sweep with these steps. `unchecked` leaves out what depends on this machine
    (its packages, files and memory); the first step checks it on the cluster.
    Raises ConfigError with every problem.
    """
    compiled = read_compiled(shipped_pipeline(_pipeline_for(recipe, overrides, pipeline)), image=connection.image)
    given = dict(parameters or {})
    said = {*given, *(overrides or {})}
    given |= {key: value for key, value in (usual or {}).items() if key in compiled.parameters and key not in said}
    if taken := {"recipe", "overrides"} & given.keys():
        raise ConfigError(Problem(min(taken), given[min(taken)], "is given by RECIPE and --set"))
    text = read_recipe_text(recipe) if _is_local_file(recipe) else None
    given["recipe"] = recipe if text is None else _recipe_uri(connection.pipeline_root, Path(recipe), text)
    if overrides:
        given["overrides"] = json.dumps(dict(overrides), sort_keys=True)
    values = compiled.values(given)
    filled = {name: value for name, value in values.items() if name in KEYS}
    try:
        loaded = load_recipe(recipe, merged(filled, overrides or {}, {}))
    except ConfigError as error:
        raise ConfigError([renamed(problem, filled) for problem in error.problems]) from None
    if not unchecked and (problems := examine(_as_it_would_start(loaded))):
        say("note: what this machine alone lacks can be left to the first step of the run, with --unchecked")
        raise ConfigError([renamed(problem, filled) for problem in problems])
    _warn(loaded, connection)
    return Order(loaded.name, compiled, values, text)


def _pipeline_for(recipe: str, overrides: Mapping[str, Any] | None, wanted: str | None) -> str:
    """The pipeline with the recipe's steps, or its sweep; any other that is wanted is taken as it is.

    What is wrong with the recipe is told later, with its parameters.
    """
    if wanted not in (None, "sweep"):
        return wanted
    try:
        loaded = load_recipe(recipe, overrides)
    except ConfigError:
        return wanted or "post_training"
    return loaded.sweep_pipeline if wanted else loaded.pipeline


def submit(client: Client, connection: Connection, order: Order, *, name: str | None = None) -> Submission:
    """Start a run. Uploads the pipeline if the server does not have this very content, and the recipe if it is a file.

    Raises ServerError.
    """
    placed = place(client, connection, order)
    title = name or f"{order.name} {datetime.now(UTC):%Y-%m-%d %H:%M:%S}"
    with server_errors(connection, "the run"):
        run = client.run_pipeline(
            experiment_id=placed.experiment_id,
            job_name=title,
            pipeline_id=placed.pipeline_id,
            version_id=placed.version_id,
            params=dict(placed.parameters),
            pipeline_root=connection.pipeline_root or None,
            service_account=connection.service_account or None,
        )
    return Submission(run.run_id, title, run_url(connection, run.run_id), order.pipeline.version, placed.parameters)


def place(client: Client, connection: Connection, order: Order) -> Placed:
    """Put on the server, and into the bucket, whatever of an order is not there yet; in this order: the experiment,
    which shows whether we may write, the recipe, the pipeline, its version. Raises ServerError.
    """
    with server_errors(connection, f"the experiment {connection.experiment}"):
        experiment = client.create_experiment(connection.experiment, namespace=connection.namespace or None)
    if order.recipe_text is not None:
        try:
            storage.write_text(order.parameters["recipe"], order.recipe_text, if_generation_match=0)
        except storage.ConflictError:
            say(f"the bucket has this recipe: {order.parameters['recipe']}")
    pipeline_id = _pipeline_id(client, connection, order.pipeline.name)
    version_id = _version_id(client, connection, order.pipeline, pipeline_id)
    return Placed(pipeline_id, version_id, experiment.experiment_id, order.parameters)


def find_run(client: Client, connection: Connection, run_id: str) -> kfp_server_api.V2beta1Run:
    """What the server knows of a run. Raises ConfigError for what is no id, ServerError where there is no such run."""
    if not is_run_id(run_id):
        message = "is no run's id; it stands in the address of the run's page and in what `headrace submit` printed"
        raise ConfigError(Problem("RUN", run_id, message))
    with server_errors(connection, f"the run {run_id}"):
        return client.get_run(run_id)


def parameters_of(run: kfp_server_api.V2beta1Run) -> dict[str, Any]:
    """The parameters that were sent with a run."""
    return dict(run.runtime_config.parameters or {}) if run.runtime_config else {}


def run_folders(client: Client, connection: Connection, run: kfp_server_api.V2beta1Run) -> list[str]:
    """The run's own folder, with its metrics and its summary, and those of its trials.

    Empty where the first step has not written yet, and where only the server knows where outputs lie.
    """
    root = (run.runtime_config.pipeline_root if run.runtime_config else None) or connection.pipeline_root
    told, reference = parameters_of(run).get("run_root", ""), run.pipeline_version_reference
    if not told and (not root or reference is None):
        return []
    if not told:
        with server_errors(connection, f"the pipeline of the run {run.run_id}"):
            pipeline = client.get_pipeline(reference.pipeline_id)
        root = storage.join(root, pipeline.name or pipeline.display_name)
    folder = folder_of(told, run.run_id, storage.join(root or "", run.run_id, "resolve-recipe", "manifest"))
    found = [folder] if storage.exists(storage.join(folder, MANIFEST)) else []
    trials = [uri for uri in storage.list_files(storage.join(folder, "trials")) if uri.endswith(f"/{MANIFEST}")]
    return found + [uri.removesuffix(f"/{MANIFEST}") for uri in trials]


def run_url(connection: Connection, run_id: str) -> str:
    """Where the user interface shows a run, if it is served where the API is."""
    return f"{connection.host.rstrip('/')}/#/runs/details/{run_id}"


def _is_local_file(recipe: str) -> bool:
    return recipe not in shipped_recipes() and not storage.is_remote(recipe)


def _recipe_uri(root: str, path: Path, text: str) -> str:
    if not root:
        message = "is a file of this machine and travels through the bucket: name one with --pipeline-root gs://..."
        raise ConfigError(Problem("recipe", str(path), message))
    digest = hashlib.sha256(text.encode()).hexdigest()
    return storage.join(root, "recipes", f"{path.stem}-{digest[:16]}.yaml")


def _as_it_would_start(recipe: Recipe) -> Recipe:
    """The recipe as its first step would find it now, with the newest data; the parent may be another by then."""
    environment = recipe.environment
    data = str(environment.options.get("data", ""))
    if data.startswith(NEWEST):
        newest = find_newest(data.removeprefix(NEWEST)).folder
        environment = dataclasses.replace(environment, options={**environment.options, "data": newest})
    return dataclasses.replace(recipe, parent=None, environment=environment)


def _warn(recipe: Recipe, connection: Connection) -> None:
    """Tell what may surprise on the cluster, and cannot be known from here."""
    use = recipe.environment.use
    module, colon, _ = use.partition(":")
    if colon and (Path.cwd() / f"{module.split('.')[0]}.py").is_file():
        say(f"note: {use} is a module of this folder; the image that the steps run in must hold it, too")
    if "@sha256:" not in connection.image:
        image = connection.image or RUNTIME_IMAGE
        say(f"note: the image {image} is not named by its digest, so the run may be another when it is started again")


def _pipeline_id(client: Client, connection: Connection, name: str) -> str:
    """The server's id of the pipeline; it is made, without any version, where there is none."""
    namespace = connection.namespace or None
    with server_errors(connection, f"the pipeline {name}"):
        wanted = named(name)
        found = client.list_pipelines(page_size=_PAGE, filter=wanted, namespace=namespace).pipelines or []
        if found:
            return found[0].pipeline_id
        body = kfp_server_api.V2beta1Pipeline(display_name=name, name=name, namespace=namespace)
        return client.pipelines.pipeline_service_create_pipeline(pipeline=body).pipeline_id


def _version_id(client: Client, connection: Connection, pipeline: CompiledPipeline, pipeline_id: str) -> str:
    """The server's id of the version with this content; it is uploaded where there is none."""
    name = f"{pipeline.name}-{pipeline.version}"

    def find() -> str | None:
        found = client.list_pipeline_versions(pipeline_id, page_size=_PAGE, filter=named(name)).pipeline_versions
        return found[0].pipeline_version_id if found else None

    with server_errors(connection, f"the pipeline version {name}"):
        if known := find():
            return known
        try:
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder, "pipeline.yaml")
                path.write_text(pipeline.text, encoding="utf-8")
                uploaded = client.upload_pipeline_version(str(path), name, pipeline_id=pipeline_id)
        except kfp_server_api.ApiException as error:
            # Somebody else has uploaded the same content since we looked.
            if error.status == 409 and (known := find()):
                return known
            raise
    say(f"uploaded {name}")
    return uploaded.pipeline_version_id


def named(name: str) -> str:
    """A filter for the server's lists: those that a person gave this name."""
    return json.dumps({"predicates": [{"operation": "EQUALS", "key": "display_name", "stringValue": name}]})

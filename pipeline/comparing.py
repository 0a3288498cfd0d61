"""Names of runs -> runs as they are compared: folders of this machine, gs:// folders, and ids of a server's runs."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from components import storage
from components.errors import ConfigError, Problem
from components.telemetry.comparison import (
    ComparedRun,
    differing_parameters,
    flattened,
    intervals,
    made_of,
    scalar_metrics,
)
from components.telemetry.progress import say
from components.telemetry.run_files import METRICS, SUMMARY, RunRecord, read_run
from pipeline import manifest as manifests
from pipeline.parameters import KEYS
from pipeline.recipe import parse_overrides
from pipeline.run_ids import is_run_id

if TYPE_CHECKING:
    from pipeline.connection import Client, Connection

PAGE = "comparison.html"

_MADE_BY = ("source", "image", "code", "packages", "data", "hardware")
"""What a run was made by beside its recipe and its base, as the manifest has it."""


def compared_runs(names: Sequence[str], connect: Callable[[], tuple["Client", "Connection"]]) -> list[ComparedRun]:
    """One or more runs for each name; a run of several trials is all of them. `connect` is called for ids alone.

    Raises ConfigError for a name that is no run, and for fewer than two runs.
    """
    if doubled := {name for name in names if list(names).count(name) > 1}:
        raise ConfigError(Problem("RUN", ", ".join(sorted(doubled)), "is named twice"))
    runs: list[ComparedRun] = []
    server: tuple[Client, Connection] | None = None
    for name in names:
        if is_run_id(name):
            server = server or connect()
            runs += _of_server(name, *server)
        else:
            runs.append(_of_folder(name))
    if len(runs) < 2:
        raise ConfigError(Problem("RUN", ", ".join(names), "name at least two runs: there is nothing to compare"))
    return runs


def default_page(runs: Sequence[ComparedRun]) -> str:
    """Beside the runs, where all lie in one folder of this machine; in the current folder where they do not."""
    places = {Path(run.place).absolute().parent for run in runs if run.place and not storage.is_remote(run.place)}
    together = len(places) == 1 and all(run.place and not storage.is_remote(run.place) for run in runs)
    return str(places.pop() / PAGE) if together else PAGE


def comparison_record(runs: Sequence[ComparedRun], page: str) -> dict[str, Any]:
    """What `headrace compare --json` prints.

    `made_of` is as `telemetry.comparison.made_of` tells it. A metric that has an interval has it beside it, as
    `METRIC_interval`: {run: [low, high]}.
    """
    bounds = {f"{metric}_interval": values for metric, values in intervals(runs).items()}
    return {
        "runs": [
            {"run": run.name, "name": run.label, "state": run.state, "run_dir": run.place, "whole": run.whole}
            for run in runs
        ],
        "parameters_that_differ": differing_parameters(runs),
        "made_of": made_of(runs),
        "metrics": {**scalar_metrics(runs), **bounds},
        "report_html": page,
    }


def settings_of(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """All that a run was made of under dotted names: the recipe with everything looked up, and what it was made by."""
    made_by = {name: manifest[name] for name in _MADE_BY if name in manifest}
    if "base" in manifest:
        # Where a base lies says nothing of it, and differs from run to run where it is made in the run.
        made_by["base"] = {"fingerprint": manifest["base"]["fingerprint"]}
    return flattened(manifest["exact"]) | flattened(made_by)


def sent_settings(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters of a run on a server under the names of the recipe's keys; what they leave open is left out."""
    filled = {name: value for name, value in parameters.items() if value not in ("", -1)}
    overrides = parse_overrides(str(filled.pop("overrides", "")))
    return {KEYS.get(name, name): value for name, value in filled.items()} | overrides


def _of_folder(name: str, *, title: str = "", state: str = "") -> ComparedRun:
    folder = name.rstrip("/")
    if not any(storage.exists(storage.join(folder, file)) for file in (METRICS, SUMMARY)):
        message = f"is neither a run's folder (it holds neither {METRICS} nor {SUMMARY}) nor a run's id"
        raise ConfigError(Problem("RUN", name, message))
    whole = storage.exists(storage.join(folder, manifests.MANIFEST))
    return ComparedRun(
        name=name,
        record=read_run(folder, trajectories=False),
        parameters=settings_of(manifests.read(folder)) if whole else {},
        whole=whole,
        title=title,
        state=state,
        place=folder,
    )


def _of_server(run_id: str, client: "Client", connection: "Connection") -> list[ComparedRun]:
    from pipeline.cluster import UNREADABLE, find_run, parameters_of, run_folders  # with it comes kfp, for seconds

    run = find_run(client, connection, run_id)
    title, state = str(run.display_name), str(run.state or "PENDING")
    try:
        folders = run_folders(client, connection, run)
        runs = [_of_folder(folder, title=_title(title, folder), state=state) for folder in folders]
    except UNREADABLE as error:
        say(f"the folder of the run {run_id} cannot be read from here: {' '.join(str(error).split())}")
        runs = []
    if not runs:
        parameters = sent_settings(parameters_of(run))
        return [ComparedRun(run_id, RunRecord(), parameters, whole=False, title=title, state=state)]
    if len(runs) == 1:
        return [dataclasses.replace(runs[0], name=run_id)]
    return [dataclasses.replace(each, name=f"{run_id}/{each.place.rpartition('/')[2]}") for each in runs]


def _title(name: str, folder: str) -> str:
    _, trials, trial = folder.partition("/trials/")
    return f"{name} {trial}" if trials else name

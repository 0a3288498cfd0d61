"""What a run starts from, made exact: its folder, the parent adapter, the data, and where it may be promoted.

`latest-promoted` and `newest:PREFIX` mean something else every day. They are looked up once, by the first step, and
written down; a run that is gone on with, or started again, takes what was written.
"""

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from components import storage
from components.errors import ConfigError, Problem
from components.export.promotion import LATEST, fingerprint_of, read_promotions
from pipeline.newest import Newest, find_newest

TRIALS = "trials"
"""The folder below a sweep's in which each trial has one of its own."""
NEWEST = "newest:"
"""How a recipe names the newest folder below a prefix, by name: folders of days are named 2026-11-30."""
SEEN = "seen"
"""The file beside the promotions that says which newest data a run has trained on."""


@dataclass(frozen=True, slots=True)
class Parent:
    """The adapter that a run starts from: the exact place, and SHA-256 over its files."""

    uri: str
    fingerprint: str


@dataclass(frozen=True, slots=True)
class Start:
    """Exact answers; `ended` says why nothing is to run.

    `data` is empty where the environment has no such option, `data_content` a hash where it was looked up.
    """

    promotion_root: str
    promoted_generation: int
    parent: Parent | None = None
    data: str = ""
    data_content: str = ""
    ended: str = ""


def folder_of(run_root: str, run_id: str, artifact_uri: str, trial: str = "") -> str:
    """The folder for the live files of a run: `run_root`, or one named by the run's id, beside the pipeline's runs.

    Kubeflow puts an artifact below ROOT/PIPELINE/RUN_ID; the folder is then ROOT/PIPELINE/runs/RUN_ID.
    """
    if run_root:
        folder = run_root.rstrip("/")
    else:
        above, found, _ = artifact_uri.partition(f"/{run_id}/")
        folder = storage.join(above, "runs", run_id) if found else storage.join(artifact_uri.rsplit("/", 2)[0], "run")
    return storage.join(folder, TRIALS, trial) if trial else folder


def sweep_of(trial_folder: str) -> str:
    """The folder of the sweep that a trial's folder lies in."""
    return trial_folder.rpartition(f"/{TRIALS}/")[0]


def job_owner(run_id: str, trial: str) -> str:
    """Whose JobSet it is: the run's, or that of one of its trials."""
    return f"{run_id}/{trial}" if trial else run_id


def claim(folder: str, run_id: str) -> None:
    """Make the folder this run's. Raises ConfigError where another run of Kubeflow Pipelines has it."""
    owner = f"run {run_id}"
    try:
        storage.claim_folder(folder, owner)
    except storage.ConflictError:
        found = storage.read_text(storage.join(folder, storage.OWN_MARKER))
        # `headrace run` has claimed the folder of the run that it starts, and speaks of itself as a process.
        if found.startswith("run ") and found != owner:
            message = f"is the folder of {found}; leave run_root empty, so that every run has one of its own"
            raise ConfigError(Problem("run_root", folder, message)) from None


def find(*, name: str, parent: str, data: str, promotion_root: str, run_folder: str) -> Start:
    """Look up what a recipe of this name leaves open; an empty text asks for nothing.

    Raises DataError for a parent or data that is not there.
    """
    beside = storage.join(run_folder.rpartition("/")[0], "promoted", name)
    root = _absolute(promotion_root or beside)
    history, generation = read_promotions(root)
    if parent == LATEST:
        parent = history[0].adapter if history else ""
    newest = find_newest(_absolute(data.removeprefix(NEWEST))) if data.startswith(NEWEST) else None
    return Start(
        promotion_root=root,
        promoted_generation=generation,
        parent=Parent(_absolute(parent), fingerprint_of(_absolute(parent))) if parent else None,
        data=newest.folder if newest else data,
        data_content=newest.content if newest else "",
        ended=_nothing_new(root, newest) if newest else "",
    )


def mark_seen(start: Start, run_folder: str) -> None:
    """Note that a run has trained on the newest data, so that the next one without any newer ends early."""
    if start.data_content:
        record = {"data": start.data, "content": start.data_content, "run": run_folder}
        storage.write_text(storage.join(start.promotion_root, SEEN), json.dumps(record) + "\n")


def to_record(start: Start) -> dict[str, Any]:
    """As JSON holds it."""
    return dataclasses.asdict(start)


def from_record(record: dict[str, Any]) -> Start:
    """What `to_record` gave."""
    parent = record["parent"]
    return Start(**{**record, "parent": Parent(**parent) if parent else None})


def _nothing_new(root: str, newest: Newest) -> str:
    try:
        seen = json.loads(storage.read_text(storage.join(root, SEEN)))
    except FileNotFoundError:
        return ""
    if seen["content"] != newest.content:
        return ""
    return f"no new data: {seen['run']} has trained on what is in {newest.folder}"


def _absolute(place: str) -> str:
    """A local path made absolute; steps, and later runs, may work in other folders."""
    return place.rstrip("/") if storage.is_remote(place) else str(Path(place).absolute())

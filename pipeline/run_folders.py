"""Folders of runs on this machine: a new one that is this run's alone, or an old one that may be gone on with."""

import os
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from components import storage
from components.errors import ConfigError, DataError, Problem
from components.telemetry.failure import forget_failure
from components.telemetry.metrics import read_metrics
from components.telemetry.run_files import METRICS, TUNING, failure_of, read_run, update_summary
from components.training.resumable import FREE, refuse_changes
from components.training.tuning.settings import free_to_change
from pipeline import manifest as manifests

AFTER_TRAINING = ("evaluate", "gate", "export", "promote", "platform")
"""Sections that say what becomes of a trained adapter, and where: they may change when a run is gone on with."""

_OF_AN_END = ("wall_seconds", "promotion", "outcome")


def make_run_folder(runs: Path, name: str) -> Path:
    """Make `runs/<name>-<UTC time>-<n>`; of several runs that start in one second each gets its own."""
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    runs.mkdir(parents=True, exist_ok=True)
    for number in range(1, 1000):
        folder = runs.resolve() / f"{name}-{stamp}-{number}"
        try:
            folder.mkdir()
        except FileExistsError:
            continue
        storage.claim_folder(folder, f"process {os.getpid()}, started {stamp}")
        return folder
    raise ConfigError(Problem("runs", str(runs), f"already holds 999 runs of {name} that started at {stamp}"))


def old_run_folder(folder: Path, recipe: Mapping[str, Any]) -> Path:
    """The folder of a run that was made here by this recipe (`dump` of it).

    Raises ConfigError for any other folder, and for each key that must not change, before anything is written.
    """
    if not (folder / storage.OWN_MARKER).is_file():
        raise ConfigError(Problem("--resume", str(folder), "is no run's folder; name one that `headrace run` made"))
    if (folder / manifests.MANIFEST).is_file():
        _refuse_changes(manifests.read(str(folder))["recipe"], recipe)
    _refuse_fewer_steps(folder, recipe.get("train") or {})
    return folder.resolve()


def is_finished(folder: Path, recipe: Mapping[str, Any]) -> bool:
    """Whether the run in an old folder has come to its end, well, by this very recipe (`dump` of it)."""
    summary = read_run(str(folder), trajectories=False).summary
    if not (folder / manifests.MANIFEST).is_file() or failure_of(summary):
        return False
    return "wall_seconds" in summary and manifests.read(str(folder))["recipe"] == recipe


def how_to_go_on(folder: Path, recipe: Mapping[str, Any]) -> str:
    """What a person may do with a run that is finished and should have learnt longer."""
    section = "train" if recipe.get("train") else "tune"
    steps = recipe[section]["steps"]
    try:
        _refuse_changes(recipe, {**recipe, section: recipe[section] | {"steps": (steps or 0) + 1}})
    except ConfigError:
        return (
            f"Its learning rate depends on {section}.steps, so that no more can follow; to go on from its adapter, "
            f"start a new run with --set parent={folder / 'adapter'}"
        )
    now = f", which is {steps} now" if steps else ""
    return f"To go on with it, raise {section}.steps{now}: --set {section}.steps=N"


def reopen(folder: Path) -> None:
    """The run goes on: it has neither failed nor ended, as its summary may say from before."""
    forget_failure(str(folder))
    if "wall_seconds" in read_run(str(folder), trajectories=False).summary:
        update_summary(str(folder), {}, drop=_OF_AN_END)


def has_steps(folder: Path) -> bool:
    """Whether a run has made optimizer steps, which a resumed one need not make again."""
    try:
        return any(line["step"] > 0 for name in (METRICS, TUNING) for line in read_metrics(str(folder / name)))
    except DataError:
        return True  # a damaged log is one of steps, and what is told of the run must not be lost over it


def _refuse_changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    tuning = [each["tune"] for each in (before, now) if each.get("tune") is not None]
    refuse_changes(before, now, (*FREE, *free_to_change(*tuning), *AFTER_TRAINING))


def _refuse_fewer_steps(folder: Path, train: Mapping[str, Any]) -> None:
    """As the train step does, which comes after minutes."""
    made = max((line["step"] for line in read_metrics(str(folder / METRICS))), default=0)
    steps = train.get("steps", made)
    if steps < made:
        raise ConfigError(Problem("train.steps", steps, f"the run has already made {made} steps; give so many or more"))

"""Folders of runs on this machine: a new one that is this run's alone, or an old one that may be gone on with."""

import os
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from components import storage
from components.errors import ConfigError, DataError, Problem
from components.telemetry.metrics import read_metrics
from components.telemetry.run_files import METRICS, TUNING
from components.training.resumable import FREE, refuse_changes
from components.training.tuning.settings import free_to_change
from pipeline import manifest as manifests

AFTER_TRAINING = ("evaluate", "gate", "export", "promote", "platform")
"""Sections that say what becomes of a trained adapter, and where: they may change when a run is gone on with."""


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
        before = manifests.read(str(folder))["recipe"]
        tuning = [each["tune"] for each in (before, recipe) if each.get("tune") is not None]
        refuse_changes(before, recipe, (*FREE, *free_to_change(*tuning), *AFTER_TRAINING))
    _refuse_fewer_steps(folder, recipe.get("train") or {})
    return folder.resolve()


def has_steps(folder: Path) -> bool:
    """Whether a run has made optimizer steps, which a resumed one need not make again."""
    try:
        return any(line["step"] > 0 for name in (METRICS, TUNING) for line in read_metrics(str(folder / name)))
    except DataError:
        return True  # a damaged log is one of steps, and what is told of the run must not be lost over it


def _refuse_fewer_steps(folder: Path, train: Mapping[str, Any]) -> None:
    """As the train step does, which comes after minutes."""
    made = max((line["step"] for line in read_metrics(str(folder / METRICS))), default=0)
    steps = train.get("steps", made)
    if steps < made:
        raise ConfigError(Problem("train.steps", steps, f"the run has already made {made} steps; give so many or more"))

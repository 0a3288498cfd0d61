"""A run that has ended, well or not -> its last report, and its files where MLflow keeps those of runs."""

from collections.abc import Mapping
from typing import Any

from components import storage
from components.telemetry.failure import note_failure
from components.telemetry.outlets.mlflow import EXPERIMENT, keep_files
from components.telemetry.report import write_report
from components.telemetry.run_files import EVALUATION, REPORT, SUMMARY, failure_of, read_run
from pipeline import manifest as manifests

KEPT = (REPORT, manifests.MANIFEST, manifests.EXACT_RECIPE, EVALUATION, SUMMARY)


def close_run(folder: str, *, step: str = "", error: str = "") -> None:
    """Make the report anew and hand the run's files on. `error` is what it failed of, if it did, in `step`.

    What the step itself has noted is kept: it knows best.
    """
    summary = read_run(folder, trajectories=False).summary
    if error and not failure_of(summary):
        note_failure(folder, step, error)
    write_report(folder)
    files = {"": [uri for name in KEPT if storage.exists(uri := storage.join(folder, name))]}
    keep_files(folder, files, experiment=experiment_of(folder), failed=bool(error))


def experiment_of(folder: str) -> str:
    """The MLflow experiment that the run's recipe names."""
    if not storage.exists(storage.join(folder, manifests.MANIFEST)):
        return EXPERIMENT
    exact: Mapping[str, Any] = manifests.read(folder)["exact"]
    return str(((exact.get("train") or {}).get("telemetry") or {}).get("mlflow_experiment", EXPERIMENT))

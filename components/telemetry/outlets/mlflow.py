"""Numbers, parameters and files of a run -> an MLflow tracking server, where `MLFLOW_TRACKING_URI` names one.

The package (`mlflow` or `mlflow-skinny`) is an extra: `pip install 'headrace[mlflow]'`. The variable is MLflow's own
way of saying where its server is, and the one that its users set; without it nothing is sent. The server is first
spoken to with the first step's numbers, and is given up sooner than MLflow would by itself: after seconds, not minutes.
"""

import functools
import importlib.util
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from components import storage
from components.telemetry.outlets.outlet import attempted, scalars
from components.telemetry.progress import say

VARIABLE = "MLFLOW_TRACKING_URI"
EXPERIMENT = "headrace"
"""Where runs go whose recipe names no other experiment."""

_LONGEST = 500  # characters that MLflow takes in the value of a parameter
_BATCH = 100  # parameters in one request
_PATIENCE = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1", "MLFLOW_HTTP_REQUEST_TIMEOUT": "10"}


def wanted() -> bool:
    """Whether there is a server, and the package to speak to it. Says so where only the package is missing."""
    if not os.environ.get(VARIABLE):
        return False
    if importlib.util.find_spec("mlflow") is None:
        say(f"{VARIABLE} is set, and mlflow is not installed: pip install 'headrace[mlflow]'")
        return False
    return True


class MlFlow:
    """One run of an experiment. A run that is gone on with is found again by the name of its folder."""

    name = "MLflow"

    def __init__(self, run_folder: str, *, experiment: str, parameters: Mapping[str, Any]) -> None:
        self._folder, self._experiment, self._settings = run_folder, experiment, parameters
        self._client: Any = None
        self.run_id = ""

    def step(self, step: int, numbers: Mapping[str, Any]) -> None:
        """Every number of the step, in one request."""
        import time

        if not self.run_id:
            self._open()
        from mlflow.entities import Metric

        moment = int(1000 * time.time())
        metrics = [Metric(name, value, moment, step) for name, value in scalars(numbers) if name != "step"]
        self._client.log_batch(self.run_id, metrics=metrics)

    def close(self) -> None:
        """The run has ended, as far as this process goes."""
        if self.run_id:
            self._client.set_terminated(self.run_id)

    def _open(self) -> None:
        self._client = _client()
        run = _run_of(self._client, self._folder, self._experiment)
        if not run.data.params:
            self._parameters(run.info.run_id)
        self.run_id = run.info.run_id

    def _parameters(self, run_id: str) -> None:
        from mlflow.entities import Param

        params = [Param(name, str(value)[:_LONGEST]) for name, value in _leaves(self._settings)]
        for start in range(0, len(params), _BATCH):
            self._client.log_batch(run_id, params=params[start : start + _BATCH])


def keep_files(
    run_folder: str, files: Mapping[str, Sequence[str]], *, experiment: str, failed: bool | None = None
) -> None:
    """Put files of a run (paths or gs:// URIs) among its artifacts, by folder there; "" is the top.

    `failed` says how the run has ended, where it has. Without a server nothing happens; what fails is told of.
    """
    if wanted():
        attempted("MLflow", functools.partial(_keep, run_folder, files, experiment, failed))


def _keep(run_folder: str, files: Mapping[str, Sequence[str]], experiment: str, failed: bool | None) -> None:
    client = _client()
    run_id = _run_of(client, run_folder, experiment).info.run_id
    with tempfile.TemporaryDirectory() as scratch:
        for folder, uris in files.items():
            for uri in uris:
                copy = Path(scratch, uri.rpartition("/")[2])
                copy.write_bytes(storage.read_bytes(uri))
                client.log_artifact(run_id, str(copy), folder or None)
    if failed is not None:
        client.set_terminated(run_id, status="FAILED" if failed else "FINISHED")


def _client() -> Any:
    for name, value in _PATIENCE.items():
        os.environ.setdefault(name, value)
    from mlflow import MlflowClient  # an extra, and a slow import

    return MlflowClient()


def _run_of(client: Any, folder: str, experiment: str) -> Any:
    """The run of this folder, which is made where there is none."""
    found = client.get_experiment_by_name(experiment)
    number = found.experiment_id if found else client.create_experiment(experiment)
    known = client.search_runs([number], f"tags.run_folder = '{_quoted(folder)}'", max_results=1)
    name = folder.rstrip("/").rsplit("/", 1)[-1]
    return known[0] if known else client.create_run(number, run_name=name, tags={"run_folder": folder})


def _leaves(values: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for key, value in values.items():
        if isinstance(value, Mapping):
            found += _leaves(value, f"{prefix}{key}.")
        elif value is not None:
            found.append((f"{prefix}{key}", value))
    return found


def _quoted(text: str) -> str:
    return text.replace("'", "")

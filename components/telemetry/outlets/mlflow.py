"""Numbers, parameters and files of a run -> an MLflow tracking server, where `MLFLOW_TRACKING_URI` names one.

The package (`mlflow` or `mlflow-skinny`) is an extra: `pip install 'headrace[mlflow]'`. The variable is MLflow's own
way of saying where its server is, and the one that its users set; without it nothing is sent. The server is first
spoken to with the first step's numbers, and is given up sooner than MLflow would by itself: after seconds, not minutes.
"""

import importlib.util
import os
from collections.abc import Mapping
from typing import Any

from components.telemetry.outlets.outlet import scalars
from components.telemetry.progress import say

VARIABLE = "MLFLOW_TRACKING_URI"
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
        for name, value in _PATIENCE.items():
            os.environ.setdefault(name, value)
        from mlflow import MlflowClient  # an extra, and a slow import

        self._client, folder = MlflowClient(), self._folder
        found = self._client.get_experiment_by_name(self._experiment)
        number = found.experiment_id if found else self._client.create_experiment(self._experiment)
        known = self._client.search_runs([number], f"tags.run_folder = '{_quoted(folder)}'", max_results=1)
        name = folder.rstrip("/").rsplit("/", 1)[-1]
        run = known[0] if known else self._client.create_run(number, run_name=name, tags={"run_folder": folder})
        if not known:
            self._parameters(run.info.run_id)
        self.run_id = run.info.run_id

    def _parameters(self, run_id: str) -> None:
        from mlflow.entities import Param

        params = [Param(name, str(value)[:_LONGEST]) for name, value in _leaves(self._settings)]
        for start in range(0, len(params), _BATCH):
            self._client.log_batch(run_id, params=params[start : start + _BATCH])


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

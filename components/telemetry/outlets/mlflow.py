"""Numbers, parameters and files of a run -> an MLflow tracking server, where `MLFLOW_TRACKING_URI` names one.

The package (`mlflow` or `mlflow-skinny`) is an extra: `pip install 'headrace[mlflow]'`. The variable is MLflow's own
way of saying where its server is, and the one that its users set; without it nothing is sent.
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
        from mlflow import MlflowClient  # an extra, and a slow import

        self._client = MlflowClient()
        found = self._client.get_experiment_by_name(experiment)
        number = found.experiment_id if found else self._client.create_experiment(experiment)
        known = self._client.search_runs([number], f"tags.run_folder = '{_quoted(run_folder)}'", max_results=1)
        name = run_folder.rstrip("/").rsplit("/", 1)[-1]
        run = known[0] if known else self._client.create_run(number, run_name=name, tags={"run_folder": run_folder})
        self.run_id = run.info.run_id
        if not known:
            self._parameters(parameters)

    def step(self, step: int, numbers: Mapping[str, Any]) -> None:
        """Every number of the step, in one request."""
        import time

        from mlflow.entities import Metric

        moment = int(1000 * time.time())
        metrics = [Metric(name, value, moment, step) for name, value in scalars(numbers) if name != "step"]
        self._client.log_batch(self.run_id, metrics=metrics)

    def close(self) -> None:
        """The run has ended, as far as this process goes."""
        self._client.set_terminated(self.run_id)

    def _parameters(self, parameters: Mapping[str, Any]) -> None:
        from mlflow.entities import Param

        params = [Param(name, str(value)[:_LONGEST]) for name, value in _leaves(parameters)]
        for start in range(0, len(params), _BATCH):
            self._client.log_batch(self.run_id, params=params[start : start + _BATCH])


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

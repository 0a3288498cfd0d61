"""A recipe's telemetry section -> the outlets of a run."""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field

from components.config import config
from components.telemetry.alerts import AlertConfig
from components.telemetry.outlets import mlflow
from components.telemetry.outlets.otlp import OtlpWriter
from components.telemetry.outlets.outlet import Outlet, Outlets
from components.telemetry.outlets.prometheus import Prometheus
from components.telemetry.outlets.tensorboard import TensorBoard
from components.telemetry.outlets.traces import SpanFile, Traces, TraceWriter
from components.telemetry.progress import say


@config
class TelemetryConfig:
    """Who is told of a run beside its folder's own files.

    `prometheus_port` serves /metrics while the run goes on; `otlp_endpoint` is a collector's address, such as
    http://collector:4318. Of the spans of episodes one in `keep_every` is written and sent, and all of failed ones.
    `profile_steps` FIRST:LAST are the optimizer steps of which a device timeline is taken, into RUN/profile.
    MLflow is told where the variable MLFLOW_TRACKING_URI names a server, in the experiment `mlflow_experiment`.
    """

    tensorboard: bool = True
    spans: bool = True
    keep_every: Annotated[int, Field(ge=1)] = 10
    prometheus_port: Annotated[int, Field(ge=0, le=65535)] | None = None
    otlp_endpoint: Annotated[str, Field(pattern=r"^https?://")] | None = None
    mlflow_experiment: str = mlflow.EXPERIMENT
    profile_steps: Annotated[str, Field(pattern=r"^\d+:\d+$")] | None = None
    alerts: AlertConfig = AlertConfig()


def open_outlets(
    settings: TelemetryConfig, run_folder: str, *, model: str, environment: str, parameters: Mapping[str, Any]
) -> Outlets:
    """The outlets that are wanted. `parameters` are the run's settings, for trackers that keep them."""
    outlets: list[Outlet] = []
    writers: list[TraceWriter] = [SpanFile(run_folder)] if settings.spans else []
    if settings.otlp_endpoint:
        writers.append(OtlpWriter(settings.otlp_endpoint, run=run_folder, model=model, environment=environment))
    outlets += [Traces(writer, run=run_folder, keep_every=settings.keep_every) for writer in writers]
    if settings.tensorboard:
        outlets.append(TensorBoard(run_folder))
    if settings.prometheus_port is not None:
        try:
            outlets.append(Prometheus(settings.prometheus_port))
        except OSError as error:  # Another run of this machine has the port, as a rule.
            say(f"Prometheus gets nothing of this run: port {settings.prometheus_port}: {error}")
    if mlflow.wanted():
        outlets.append(mlflow.MlFlow(run_folder, experiment=settings.mlflow_experiment, parameters=parameters))
    return Outlets(outlets)

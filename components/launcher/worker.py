"""One document on the storage -> the step that it names, run in this process, with its output back on the storage.

    python -m components.launcher.worker --request=gs://... --result=gs://... --failure=gs://... --watched=gs://...

What each pod of a JobSet runs. Inputs are copied to this machine's disk, the function is the very one that a step of
Kubeflow calls, and metrics, journal and checkpoints go to the run's folder while it goes on, so that pods that are
started again go on from there. Ends with 0 when the result is written, 78 when another try would end in the same way,
and 75 when it was stopped. Over several hosts the processes find each other by `jax.distributed.initialize()`; the
first trains, and the others compute what it computes.
"""

import argparse
import hashlib
import json
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from components import storage
from components.errors import (
    CheckpointError,
    ConfigError,
    DataError,
    HeadraceError,
    Problem,
    ProofError,
    RunStoppedError,
    WeightsError,
)
from components.launcher.job import REFUSED, STOPPED
from components.launcher.pulse import PULSE_SECONDS, Orphaned
from components.telemetry.progress import say

UNWATCHED_SECONDS = 3600.0
"""A job that nobody has watched for so long ends: it may be what is left of a run that was cancelled."""

_HOPELESS = (ConfigError, DataError, WeightsError, CheckpointError, ProofError)
_TRANSFERS = 8


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what the document asks for; gives the exit code."""
    places = _parsed(arguments)
    orphaned = Orphaned(places.watched, _stop_this_process, patience=places.unwatched, look_every=places.look_every)
    # The first process of a container is not ended by a signal that it does not handle. The trainer has its own way.
    usual = signal.signal(signal.SIGTERM, _end)
    try:
        with orphaned:
            return _run(places)
    except HeadraceError as error:
        if orphaned.gave_up:
            say(f"nobody has watched this job for {places.unwatched:g} s: it ends, and can be gone on with. {error}")
            return 0
        hopeless = isinstance(error, _HOPELESS)
        say(f"{type(error).__name__}: {error}")
        storage.write_text(places.failure, f"{type(error).__name__}: {error}")
        return REFUSED if hopeless else STOPPED
    finally:
        signal.signal(signal.SIGTERM, usual)


def _run(places: argparse.Namespace) -> int:
    request = _read_request(places.request)
    is_first = _join_hosts(request["hosts"])
    # Imported only now: whoever imports the trainer has chosen its devices.
    from components.model.lockstep import follow, lead
    from components.training.run import train
    from components.training.tuning.run import tune

    functions: Mapping[str, Callable[..., Mapping[str, Any]]] = {"tune": tune, "train": train}
    learn = functions[request["task"]]
    # The same place on every host, as they read the same files when the first one does.
    work = Path(tempfile.gettempdir(), f"headrace-{hashlib.sha256(places.request.encode()).hexdigest()[:16]}")
    inputs = {name: str(work / name) for name in request["inputs"]}
    for name, uri in request["inputs"].items():
        copy_folder(uri, work / name)
    if not is_first:
        # Told to stop, the first host needs the others to save; they end with it.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        follow()
        return 0
    outputs = {name: str(work / name) for name in request["outputs"]}
    with lead() if request["hosts"] > 1 else nullcontext():
        given = {name: request[name] for name in ("section", "environment", "seed", "run_folder")}
        summary = learn(**given, **inputs, **outputs)
    for name, uri in request["outputs"].items():
        send_folder(work / name, uri)
    storage.write_text(places.result, json.dumps({"summary": summary}, default=str))
    shutil.rmtree(work, ignore_errors=True)
    return 0


def copy_folder(uri: str, target: Path) -> None:
    """Copy all files below a folder of the storage. Raises DataError where there is none."""
    files = storage.list_files(uri)
    if not files:
        raise DataError(
            Problem(uri, "no file", "an input of the job is not there, or not any more; run its step again")
        )
    base = f"{str(uri).rstrip('/')}/"
    with ThreadPoolExecutor(_TRANSFERS) as pool:
        list(pool.map(lambda file: storage.download(file, target / file.removeprefix(base)), files))


def send_folder(source: Path, uri: str) -> None:
    """Copy all files of a folder below a URI."""
    files = storage.list_files(source)
    with ThreadPoolExecutor(_TRANSFERS) as pool:
        list(pool.map(lambda file: storage.upload(Path(file), storage.join(uri, _below(file, source))), files))


def _below(file: str, folder: Path) -> str:
    return Path(file).relative_to(folder).as_posix()


def _read_request(uri: str) -> Mapping[str, Any]:
    try:
        return json.loads(storage.read_text(uri))
    except FileNotFoundError:
        raise DataError(Problem("--request", uri, "there is no such document; its launcher writes it")) from None


def _join_hosts(hosts: int) -> bool:
    """Whether this process is the first of its job; over several hosts only after all have found each other."""
    if hosts == 1:
        return True
    import jax

    jax.distributed.initialize()
    if jax.process_count() != hosts:
        message = f"{jax.process_count()} processes have found each other, and the platform has {hosts} hosts"
        raise ConfigError(Problem("platform", hosts, message))
    say(f"host {jax.process_index()} of {hosts}: {jax.local_device_count()} of {jax.device_count()} devices are here")
    return jax.process_index() == 0


def _end(*_: object) -> None:
    raise RunStoppedError("SIGTERM: stopped before the training began, or after it ended; nothing is lost")


def _stop_this_process() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def _parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m components.launcher.worker", description="The pod of a job.")
    for name in ("request", "result", "failure", "watched"):
        parser.add_argument(f"--{name}", required=True, metavar="URI")
    parser.add_argument("--unwatched", type=float, default=UNWATCHED_SECONDS, metavar="SECONDS")
    parser.add_argument("--look-every", type=float, default=PULSE_SECONDS, metavar="SECONDS")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())

"""The process in a pod: the step's own function, with inputs and outputs on a storage."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from components import storage
from components.errors import DataError
from components.launcher import worker
from components.launcher.job import REFUSED, STOPPED
from components.launcher.pulse import Orphaned, Watched
from components.launcher.step_job import JobFiles
from components.model.peft import WEIGHTS_FILE
from components.telemetry.metrics import read_metrics
from tests.conftest import REPOSITORY
from tests.tiny_run import ENVIRONMENT, TRAIN


def job(folder: Path, inputs: dict[str, str], **changes: object) -> JobFiles:
    """A request as a launcher writes it, with everything on this disk."""
    request = {
        "task": "train",
        "section": json.dumps(TRAIN | {"steps": 2}),
        "environment": json.dumps(ENVIRONMENT),
        "seed": 3,
        "run_folder": str(folder / "run"),
        "inputs": inputs,
        "outputs": {"trained": str(folder / "trained")},
        "hosts": 1,
    }
    files = JobFiles(str(folder / "run"), "train-x", request | changes)
    files.write_request()
    return files


def run(files: JobFiles, *more: str) -> int:
    return worker.main([*files.command[3:], *more])


def test_a_pod_trains_and_leaves_the_adapter_the_figures_and_the_result(tmp_path: Path, tiny_inputs) -> None:
    files = job(tmp_path, tiny_inputs)
    before = signal.getsignal(signal.SIGTERM)
    assert run(files) == 0
    assert signal.getsignal(signal.SIGTERM) is before
    result = files.read_result()
    assert result is not None
    assert result["steps"] == 2
    assert result["tokens"]["trained"] > 0
    assert {path.name for path in (tmp_path / "trained").iterdir()} >= {WEIGHTS_FILE, "adapter_config.json"}
    assert storage.checksum(tmp_path / "trained" / WEIGHTS_FILE) != storage.checksum(
        f"{tiny_inputs['adapter']}/{WEIGHTS_FILE}"
    )
    assert [line["step"] for line in read_metrics(str(tmp_path / "run" / "metrics.jsonl"))] == [1, 2]


@pytest.mark.long
def test_a_pod_tunes_where_the_request_says_so(tmp_path: Path, tiny_inputs) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps({"prompt": f"1{n}+12", "completion": f"{n + 22}"}) + "\n" for n in range(8)))
    section = {"method": "sft", "rows": {"files": [str(rows)]}, "packing": {"rows": 8, "row_length": 24}}
    outputs = {"tuned": str(tmp_path / "tuned")}
    files = job(tmp_path, tiny_inputs, task="tune", section=json.dumps(section), outputs=outputs)
    assert run(files) == 0
    result = files.read_result()
    assert result is not None
    assert (result["method"], result["steps"], result["rows"]) == ("sft", 1, 7)
    assert {path.name for path in (tmp_path / "tuned").iterdir()} >= {WEIGHTS_FILE, "adapter_config.json"}


@pytest.mark.parametrize(("task", "output"), [("tune", "tuned"), ("train", "trained")])
def test_a_request_that_cannot_work_is_refused_with_its_reason_on_the_storage(
    tmp_path: Path, tiny_inputs, task: str, output: str
) -> None:
    outputs = {output: str(tmp_path / output)}
    files = job(tmp_path, tiny_inputs, task=task, section=json.dumps(TRAIN | {"stepz": 2}), outputs=outputs)
    assert run(files) == REFUSED
    assert f"{task}.stepz" in storage.read_text(files.failure)
    assert files.read_result() is None


def test_inputs_that_are_gone_are_named(tmp_path: Path, tiny_inputs) -> None:
    files = job(tmp_path, tiny_inputs | {"base": str(tmp_path / "deleted")})
    assert run(files) == REFUSED
    assert f"{tmp_path}/deleted: an input of the job is not there, or not any more" in storage.read_text(files.failure)
    storage.delete(files.request)
    assert run(files) == REFUSED
    assert "there is no such document" in storage.read_text(files.failure)


def test_a_folder_is_copied_with_all_that_is_below_it(tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "deep" / "er").mkdir(parents=True)
    (source / "a.txt").write_text("a")
    (source / "deep" / "er" / "b.txt").write_text("b")
    worker.send_folder(source, str(tmp_path / "there"))
    worker.copy_folder(f"{tmp_path / 'there'}/", tmp_path / "back")
    assert (tmp_path / "back" / "deep" / "er" / "b.txt").read_text() == "b"
    assert sorted(path.name for path in (tmp_path / "back").rglob("*") if path.is_file()) == ["a.txt", "b.txt"]
    with pytest.raises(DataError):
        worker.copy_folder(str(tmp_path / "nowhere"), tmp_path / "back2")


def test_a_job_that_nobody_watches_ends_by_itself_and_can_be_gone_on_with(tmp_path: Path, tiny_inputs) -> None:
    files = job(tmp_path, tiny_inputs, section=json.dumps(TRAIN | {"steps": 10_000}))
    assert run(files, "--unwatched", "1.5", "--look-every", "0.1") == 0
    assert files.read_result() is None


def test_a_watched_job_is_not_given_up_and_an_unwatched_one_is(tmp_path: Path) -> None:
    file, given_up = str(tmp_path / "watched"), threading.Event()
    watched = Watched(file)
    with Orphaned(file, given_up.set, patience=0.3, look_every=0.02) as orphaned:
        for _ in range(10):
            watched.beat()
            time.sleep(0.06)
        assert not orphaned.gave_up
        assert given_up.wait(5)
        assert orphaned.gave_up


def test_a_pod_that_is_told_to_end_says_that_it_was_stopped(tmp_path: Path, tiny_inputs) -> None:
    files = job(tmp_path, tiny_inputs, section=json.dumps(TRAIN | {"steps": 10_000}))

    def end_after_a_step() -> None:
        while not read_metrics(str(tmp_path / "run" / "metrics.jsonl")):
            time.sleep(0.05)
        signal.raise_signal(signal.SIGTERM)

    threading.Thread(target=end_after_a_step, daemon=True).start()
    assert run(files) == STOPPED
    assert "SIGTERM: stopped after step" in storage.read_text(files.failure)


def free_slurm_job() -> int:
    """A job id whose coordinator port, by JAX's rule for Slurm, nobody uses."""
    for number in range(4096):
        with socket.socket() as taken, contextlib.suppress(OSError):
            taken.bind(("127.0.0.1", 61440 + number))
            return number
    raise AssertionError("no port is free")


@pytest.mark.long
def test_two_hosts_find_each_other_without_arguments_and_train_one_run(tmp_path: Path, tiny_inputs) -> None:
    section = json.dumps(TRAIN | {"steps": 1, "mesh": {"fsdp": 2}})
    files = job(tmp_path, tiny_inputs, section=section, hosts=2)
    # What jax.distributed.initialize() looks for where no TPU is: here it is told by Slurm's variables.
    slurm = {"SLURM_JOB_ID": str(free_slurm_job()), "SLURM_STEP_NODELIST": "localhost", "SLURM_NTASKS": "2"}
    devices = {"JAX_CPU_ENABLE_ASYNC_DISPATCH": "false"}
    hosts = [
        subprocess.Popen(
            [sys.executable, *files.command[1:]],
            cwd=REPOSITORY,
            env=os.environ | slurm | devices | {"SLURM_PROCID": str(number), "SLURM_LOCALID": "0"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for number in range(2)
    ]
    try:
        told = [host.communicate(timeout=240)[0] for host in hosts]
    finally:
        for host in hosts:
            host.kill()
    assert [host.returncode for host in hosts] == [0, 0], "\n".join(told)
    assert "host 0 of 2: 1 of 2 devices are here" in told[0]
    assert "host 1 of 2: 1 of 2 devices are here" in told[1]
    assert files.read_result()["steps"] == 1
    assert [line["step"] for line in read_metrics(str(tmp_path / "run" / "metrics.jsonl"))] == [1]
    assert (tmp_path / "trained" / WEIGHTS_FILE).is_file()

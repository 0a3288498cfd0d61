"""A step that learns by way of a JobSet: real pods' processes, a real bucket, and a kill in the middle."""

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from components import storage
from components.errors import ConfigError
from components.launcher.cluster import Cluster
from components.launcher.step_job import SIGNS, JobFiles, launch
from components.launcher.watching import JobGoneError
from components.model.peft import WEIGHTS_FILE
from components.telemetry.metrics import read_metrics
from components.telemetry.run_files import METRICS, read_run
from pipeline.finishing import TASKS
from tests.conftest import REPOSITORY
from tests.launcher.conftest import NAMESPACE
from tests.launcher.controller import Controllers, RunningPod
from tests.launcher.plans import IMAGE, QUICK
from tests.launcher.test_jobset import nothing_is_left, wait_for
from tests.tiny_run import ENVIRONMENT, TRAIN

PLATFORM = {"launcher": "jobset", "image": IMAGE, "max_restarts": 1}


def arguments(place: str) -> dict:
    """What the step gives, with inputs below `place` and outputs, too."""
    return {
        "task": "train",
        "platform": json.dumps(PLATFORM),
        "run": "run-1",
        "section": json.dumps(TRAIN | {"steps": 3, "grace_seconds": 10.0}),
        "environment": json.dumps(ENVIRONMENT),
        "seed": 3,
        "run_folder": storage.join(place, "run"),
        "inputs": {name: storage.join(place, name) for name in ("tasks", "base", "adapter")},
        "outputs": {"trained": storage.join(place, "trained")},
    }


class RealProcess:
    """A program of a pod that is the pod's own command; the first is killed when the run has made a step."""

    def __init__(self, run_folder: str) -> None:
        self.metrics = storage.join(run_folder, METRICS)

    def __call__(self, pod: RunningPod) -> int:
        container = pod.spec["containers"][0]
        environment = os.environ | {each["name"]: each["value"] for each in container["env"]}
        command = [sys.executable, *container["command"][1:]]
        with subprocess.Popen(
            command, cwd=REPOSITORY, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as process:
            if pod.attempt == 0:
                threading.Thread(target=self._kill_after_a_step, args=(process,), daemon=True).start()
            assert process.stdout is not None
            for line in process.stdout:
                pod.say(line.rstrip("\n"))
            return process.wait() % 256

    def _kill_after_a_step(self, process: "subprocess.Popen[str]") -> None:
        wait_for(lambda: read_metrics(self.metrics), 120)
        process.send_signal(signal.SIGKILL)


@pytest.mark.long
def test_a_step_trains_in_pods_on_a_bucket_over_a_kill_and_is_done_once(
    server, cluster, gcs, tiny_inputs, capsys
) -> None:
    given = arguments(f"{gcs}/job")
    for name, folder in tiny_inputs.items():
        for file in storage.list_files(folder):
            storage.upload(Path(file), storage.join(given["inputs"][name], str(Path(file).relative_to(folder))))
    with Controllers(server, RealProcess(given["run_folder"])) as controllers:
        result = launch(**given, cluster=cluster, pace=QUICK)
        wait_for(lambda: nothing_is_left(server))
    assert sorted(pod.attempt for pod in controllers.pods.values()) == [0, 1]
    assert result["steps"] == 3
    assert [line["step"] for line in read_metrics(storage.join(given["run_folder"], METRICS))] == [1, 2, 3]
    places = given["outputs"]["trained"], given["inputs"]["adapter"]
    trained, start = (storage.join(place, WEIGHTS_FILE) for place in places)
    assert storage.checksum(trained) != storage.checksum(start)
    record = read_run(given["run_folder"]).summary
    assert record["train_job"]["restarts"] == {"failures": 1, "taken_away": 0}
    assert record["tokens"] == result["tokens"]
    told = capsys.readouterr()
    assert "starts its pods again: 1 restarts after failures" in told.err
    # The same step, tried again: the result is there, and nothing is made.
    made = server.calls["create", "jobsets"]
    assert launch(**given, cluster=cluster, pace=QUICK) == result
    assert server.calls["create", "jobsets"] == made


def test_a_launcher_whose_job_another_has_cleaned_up_takes_the_result(server, cluster, gcs) -> None:
    given = arguments(f"{gcs}/two")

    def program(pod: RunningPod) -> int:
        # The end of the job, and the other launcher's clean-up, before this one sees either.
        (place,) = (each[9:] for each in pod.spec["containers"][0]["command"] if each.startswith("--result="))
        storage.write_text(place, json.dumps({"summary": {"steps": 3}}))
        for job_set in server.store.all_of("jobsets", NAMESPACE):
            server.store.delete("jobsets", NAMESPACE, job_set["metadata"]["name"])
        return 0

    with Controllers(server, program):
        assert launch(**given, cluster=cluster, pace=QUICK) == {"steps": 3}


def test_a_job_that_is_cancelled_has_no_result(server, cluster, gcs) -> None:
    given = arguments(f"{gcs}/cancelled")

    def program(pod: RunningPod) -> int:
        for job_set in server.store.all_of("jobsets", NAMESPACE):
            server.store.delete("jobsets", NAMESPACE, job_set["metadata"]["name"])
        return 0

    with Controllers(server, program), pytest.raises(JobGoneError):
        launch(**given, cluster=cluster, pace=QUICK)


def test_places_that_pods_do_not_see_are_refused_before_anything_is_asked(server, tmp_path: Path) -> None:
    cluster = Cluster(NAMESPACE, api=server.client(), patience=1.0)
    given = arguments(str(tmp_path))
    given["inputs"]["base"] = "gs://bucket/base"
    with pytest.raises(ConfigError) as caught:
        launch(**given, cluster=cluster, pace=QUICK)
    assert [problem.where for problem in caught.value.problems] == ["run_folder", "trained", "tasks", "adapter"]
    assert "is on this machine's disk, which the pods of a JobSet do not see; use gs://" in str(caught.value)
    assert not server.calls


def test_requests_that_differ_have_files_of_their_own_and_equal_ones_do_not() -> None:
    first, same, other = (JobFiles("gs://b/run", "name", {"seed": seed, "a": 1}) for seed in (1, 1, 2))
    assert (first.request, first.result) == (same.request, same.result)
    assert first.request != other.request
    assert first.result != other.result
    assert first.failure == other.failure
    assert set(SIGNS) == set(TASKS)

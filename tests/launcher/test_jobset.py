"""A job under watch, against an API over HTTP, through the official client: it ends as it should, whatever breaks."""

import re
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from components.errors import ClusterError
from components.launcher.cluster import Cluster
from components.launcher.job import REFUSED, JobPlan, job_set
from components.launcher.jobset import JobOutcome, Pace, delete_job, run_job
from components.launcher.reading import Restarts
from components.launcher.watching import JobFailedError, JobGoneError
from tests.launcher.conftest import NAMESPACE
from tests.launcher.controller import Controllers, RunningPod
from tests.launcher.kubernetes_server import KubernetesServer
from tests.launcher.plans import FOUR_HOSTS, QUICK, plan

Say = pytest.CaptureFixture[str]


def run(
    chosen: JobPlan, cluster: Cluster, lines: list[str] | None = None, *, pace: Pace = QUICK, watched: str = ""
) -> JobOutcome:
    shown = [] if lines is None else lines
    return run_job(chosen, cluster, show=shown.append, pace=pace, watched=watched)


def in_background(work: Callable[[], JobOutcome]) -> "Future[JobOutcome]":
    pool = ThreadPoolExecutor(1)
    future = pool.submit(work)
    pool.shutdown(wait=False)
    return future


def wait_for(condition: Callable[[], object], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)


class Story:
    """A program that says so many lines, each when it may, and then ends."""

    def __init__(self, lines: int) -> None:
        self.lines = [f"line {number}" for number in range(lines)]
        self.may = threading.Semaphore(0)
        self.runs = 0

    def __call__(self, pod: RunningPod) -> int:
        self.runs += 1
        for line in self.lines:
            while not self.may.acquire(timeout=0.02):
                if pod.told_to_end.is_set():
                    return 143
            pod.say(line)
        return 0


def nothing_is_left(server: KubernetesServer) -> bool:
    return not server.store.all_of("jobsets", NAMESPACE) and not server.store.all_of("pods", NAMESPACE)


def test_a_job_runs_on_all_hosts_to_its_end_and_is_deleted(server, cluster, capsys: Say) -> None:
    def program(pod: RunningPod) -> int:
        pod.say(f"host {pod.index} is here")
        return 0

    lines: list[str] = []
    with Controllers(server, program) as controllers:
        outcome = run(plan(platform=FOUR_HOSTS), cluster, lines)
        wait_for(lambda: nothing_is_left(server))
    assert lines == ["host 0 is here"]
    assert sorted(pod.index for pod in controllers.pods.values()) == [0, 1, 2, 3]
    assert (outcome.restarts, outcome.attached) == (Restarts(), False)
    assert "created in namespace kubeflow" in capsys.readouterr().err


def test_all_pods_start_again_when_one_fails_and_its_last_lines_are_shown(server, cluster, capsys: Say) -> None:
    def program(pod: RunningPod) -> int:
        if pod.attempt:
            return 0
        if pod.index == 2:
            wait_for(lambda: server.calls["watch", "pods"])
            pod.say("out of memory on host 2")
            return 1
        pod.told_to_end.wait(20)
        return 143

    with Controllers(server, program) as controllers:
        outcome = run(plan(platform=FOUR_HOSTS), cluster)
    assert outcome.restarts == Restarts(failures=1, taken_away=0)
    assert len(controllers.pods) == 8
    told = capsys.readouterr().err
    assert "has failed with exit code 1" in told
    assert "    out of memory on host 2" in told
    assert "starts its pods again: 1 restarts after failures" in told


def test_after_the_last_restart_the_error_has_the_last_lines_of_the_failed_pod(server, cluster) -> None:
    def program(pod: RunningPod) -> int:
        pod.say(f"attempt {pod.attempt} begins")
        pod.say("ValueError: no such axis")
        return 1

    with Controllers(server, program) as controllers:
        with pytest.raises(JobFailedError) as caught:
            run(plan(platform={"max_restarts": 2}), cluster)
        wait_for(lambda: nothing_is_left(server))
    assert len(controllers.pods) == 3
    text = str(caught.value)
    assert "has failed after 2 restarts after failures" in text
    assert "reaching max number of restarts" in text
    assert text.endswith("its last lines:\n    attempt 2 begins\n    ValueError: no such axis")


def test_the_error_quotes_the_first_pods_that_failed(server, cluster) -> None:
    def program(pod: RunningPod) -> int:
        if pod.index == 2:
            wait_for(lambda: server.calls["watch", "pods"])
            pod.say("the cause")
            return 137
        pod.told_to_end.wait(0.3)
        pod.say("the connection to host 2 is lost")
        return 1

    with Controllers(server, program), pytest.raises(JobFailedError) as caught:
        run(plan(platform={**FOUR_HOSTS, "max_restarts": 0}), cluster)
    assert "has failed with exit code 137; its last lines:\n    the cause" in str(caught.value)


def test_machines_that_are_taken_away_use_up_no_restart(server, cluster, capsys: Say) -> None:
    def program(pod: RunningPod) -> int:
        if pod.attempt < 4:
            controllers.preempt(pod.name)
            pod.told_to_end.wait(20)
            return 143
        return 0

    with Controllers(server, program) as controllers:
        outcome = run(plan(platform={"max_restarts": 0}), cluster)
    assert outcome.restarts == Restarts(failures=0, taken_away=4)
    told = capsys.readouterr().err
    assert "its machine was taken away (TerminationByKubelet)" in told
    assert "4 because a machine was taken away" in told


def test_a_pod_that_somebody_deletes_is_a_failure_that_the_job_survives(server, cluster) -> None:
    def program(pod: RunningPod) -> int:
        if pod.attempt == 0 and pod.index == 0:
            server.store.delete("pods", NAMESPACE, pod.name)
        if pod.attempt == 0:
            pod.told_to_end.wait(20)
        return 0

    with Controllers(server, program):
        outcome = run(plan(platform=FOUR_HOSTS), cluster)
    assert outcome.restarts == Restarts(failures=1, taken_away=0)


def test_a_program_that_cannot_do_as_it_is_told_ends_its_job_early(server, cluster, tmp_path: Path) -> None:
    failure = tmp_path / "failure.txt"

    def program(pod: RunningPod) -> int:
        failure.write_text("ConfigError: train.steps: must be 1 or more (got 0)")
        pod.say("ConfigError")
        return REFUSED

    with Controllers(server, program) as controllers:
        with pytest.raises(JobFailedError, match=r"train\.steps: must be 1 or more"):
            run(plan(failure=str(failure), platform={"max_restarts": 50}), cluster)
        wait_for(lambda: nothing_is_left(server))
    # The controller may be quicker to try again than the launcher is to end it.
    assert max(pod.attempt for pod in controllers.pods.values()) < 50


def test_pods_without_a_node_are_a_failure_in_the_scheduler_s_words(server, cluster) -> None:
    words = "0/7 nodes are available: 7 node(s) didn't match Pod's node affinity/selector"
    with Controllers(server, lambda pod: 0) as controllers:
        controllers.node_message = words
        with pytest.raises(JobFailedError, match="has not started for") as caught:
            run(plan(platform={**FOUR_HOSTS, "unschedulable_minutes": 0.01}), cluster)
        wait_for(lambda: nothing_is_left(server))
    assert words in str(caught.value)


def test_pods_that_get_their_node_in_time_run(server, cluster, capsys: Say) -> None:
    with Controllers(server, lambda pod: 0) as controllers:
        controllers.node_message = "waiting for a node of the pool"
        job = in_background(lambda: run(plan(), cluster))
        wait_for(lambda: "waits: waiting for a node of the pool" in capsys.readouterr().err)
        controllers.node_message = ""
        assert job.result(20).restarts == Restarts()


def test_an_image_that_can_never_be_pulled_ends_the_wait_at_once(server, cluster) -> None:
    with Controllers(server, lambda pod: 0) as controllers:
        controllers.waiting_reason = "InvalidImageName"
        with pytest.raises(JobFailedError, match="InvalidImageName: Back-off pulling image"):
            run(plan(), cluster)


def test_a_jobset_without_pods_is_a_failure_with_what_the_events_say(server, cluster) -> None:
    # No controller runs: this is a cluster in which the Job may not create its pods.
    chosen = plan(platform={"unschedulable_minutes": 0.01})
    event = {
        "metadata": {"name": "event-1"},
        "type": "Warning",
        "reason": "FailedCreate",
        "message": 'pods "x" is forbidden: exceeded quota',
        "involvedObject": {"kind": "Job", "name": f"{chosen.name}-slice-0"},
        "lastTimestamp": "2026-01-01T00:00:00Z",
    }
    server.store.create("events", NAMESPACE, event)
    with pytest.raises(JobFailedError, match=r"has had no pods for .*FailedCreate: .*exceeded quota"):
        run(chosen, cluster)


def test_streams_that_are_cut_lose_no_line_and_repeat_none(server, cluster) -> None:
    story, lines = Story(15), []
    with Controllers(server, story):
        job = in_background(lambda: run(plan(), cluster, lines))
        cuts = 0
        for number in range(len(story.lines)):
            story.may.release()
            wait_for(lambda number=number: len(lines) > number)
            if number % 3 == 0:
                cuts += server.cut_streams()
        assert job.result(20).restarts == Restarts()
    assert lines == story.lines
    # The log and both watches, time and again; how many are open when a cut comes is chance.
    assert cuts >= 5
    assert server.calls["watch", "pods"] > 1


def test_a_watch_whose_version_is_forgotten_lists_again(server, cluster) -> None:
    story, lines = Story(3), []
    with Controllers(server, story):
        job = in_background(lambda: run(plan(), cluster, lines))
        for number in range(3):
            wait_for(lambda: server.calls["watch", "pods"] and server.calls["watch", "jobsets"])
            lists = [server.calls["list", each] for each in ("pods", "jobsets")]
            server.store.compact()
            server.cut_streams()
            wait_for(lambda lists=lists: server.calls["list", "pods"] > lists[0])
            wait_for(lambda lists=lists: server.calls["list", "jobsets"] > lists[1])
            story.may.release()
            wait_for(lambda number=number: len(lines) > number)
        assert job.result(20).restarts == Restarts()
    assert lines == story.lines


def test_an_api_that_is_overloaded_restarting_or_unreachable_is_waited_for(server, cluster) -> None:
    for verb, resource in (
        ("create", "jobsets"),
        ("list", "jobsets"),
        ("list", "pods"),
        ("watch", "jobsets"),
        ("watch", "pods"),
        ("get", "pods/log"),
        ("delete", "jobsets"),
    ):
        for status in (429, 503, 0):
            server.fail_next(verb, resource, status)

    def program(pod: RunningPod) -> int:
        pod.say("done")
        wait_for(lambda: not any(left for (verb, _), left in server.faults.items() if verb != "delete"))
        return 0

    lines: list[str] = []
    with Controllers(server, program):
        assert run(plan(), cluster, lines).restarts == Restarts()
        wait_for(lambda: nothing_is_left(server))
    assert lines == ["done"]
    assert not any(server.faults.values())


def test_a_creation_whose_answer_is_lost_makes_one_jobset(server, cluster) -> None:
    server.fail_next("create", "jobsets", -1)
    story = Story(1)
    with Controllers(server, story) as controllers:
        job = in_background(lambda: run(plan(), cluster))
        wait_for(lambda: server.calls["watch", "pods"])
        story.may.release()
        assert job.result(20).attached
    assert len(controllers.pods) == 1


def test_two_launchers_at_once_share_one_job(server, cluster) -> None:
    story, lines = Story(3), ([], [])
    other = Cluster(NAMESPACE, api=server.client(), patience=10.0)
    with Controllers(server, story) as controllers:
        jobs = [
            in_background(lambda: run(plan(), cluster, lines[0])),
            in_background(lambda: run(plan(), other, lines[1])),
        ]
        for number in range(3):
            story.may.release()
            wait_for(lambda number=number: all(len(each) > number for each in lines))
        endings = [job.exception(20) for job in jobs]
    assert story.runs == len(controllers.pods) == 1
    assert lines == (story.lines, story.lines)
    # One of them may find that the other has cleaned up; that is for whoever knows where the result lies.
    assert sum(ending is None for ending in endings) >= 1
    assert all(ending is None or isinstance(ending, JobGoneError) for ending in endings)


def test_a_launcher_goes_on_with_the_job_that_it_finds(server, cluster, capsys: Say) -> None:
    server.store.create("jobsets", NAMESPACE, job_set(plan(), NAMESPACE))
    story, lines = Story(250), []
    with Controllers(server, story) as controllers:
        for _ in story.lines[:-1]:
            story.may.release()
        wait_for(lambda: story.runs and len(server.logs[controllers.names()[0]].lines) == 249)
        job = in_background(lambda: run(plan(), cluster, lines))
        wait_for(lambda: len(lines) == 200)
        story.may.release()
        assert job.result(20).attached
    assert len(controllers.pods) == 1
    # Of a long log the end, and then what comes.
    assert lines == story.lines[-201:]
    assert "is there already, with 0 restarts: watching it again" in capsys.readouterr().err


def test_a_jobset_of_another_plan_is_refused_and_left_alone(server, cluster) -> None:
    server.store.create("jobsets", NAMESPACE, job_set(plan(command=("other",)), NAMESPACE))
    with pytest.raises(ClusterError, match="of run run-1 was made from another plan") as caught:
        run(plan(), cluster)
    assert not isinstance(caught.value, JobFailedError)
    assert len(server.store.all_of("jobsets", NAMESPACE)) == 1


@pytest.mark.parametrize("ending", ["Failed", "Completed"])
def test_what_is_left_of_a_job_that_is_over_is_replaced(server, cluster, ending) -> None:
    old = server.store.create("jobsets", NAMESPACE, job_set(plan(), NAMESPACE))
    old["status"] = {"conditions": [{"type": ending, "status": "True"}]}
    server.store.update("jobsets", old)
    with Controllers(server, lambda pod: 0) as controllers:
        outcome = run(plan(), cluster)
    assert not outcome.attached
    assert len(controllers.pods) == 1


def test_a_jobset_that_is_being_deleted_is_waited_for(server, cluster) -> None:
    left, cleaned = threading.Event(), threading.Event()

    def program(pod: RunningPod) -> int:
        if not left.is_set():
            left.set()
            cleaned.wait(20)  # it takes its time to end
        return 0

    server.store.create("jobsets", NAMESPACE, job_set(plan(), NAMESPACE))
    with Controllers(server, program) as controllers:
        assert left.wait(20)
        assert delete_job("run-1", "train", cluster=cluster)
        job = in_background(lambda: run(plan(), cluster))
        wait_for(lambda: server.calls["create", "jobsets"] > 0)
        cleaned.set()
        assert not job.result(20).attached
    assert len(controllers.pods) == 2


def test_a_job_that_is_cancelled_ends_its_pods_and_tells_its_launcher(server, cluster) -> None:
    story = Story(1)
    with Controllers(server, story):
        job = in_background(lambda: run(plan(), cluster))
        wait_for(lambda: story.runs)
        assert delete_job("run-1", "train", cluster=cluster)
        with pytest.raises(JobGoneError, match="was deleted by somebody else"):
            job.result(20)
        wait_for(lambda: nothing_is_left(server))
    assert not delete_job("run-1", "train", cluster=cluster)


def test_only_the_very_object_that_was_meant_is_deleted(server, cluster) -> None:
    server.store.create("jobsets", NAMESPACE, job_set(plan(), NAMESPACE))
    assert not cluster.delete_job_set(plan().name, "the uid of an older one")
    assert len(server.store.all_of("jobsets", NAMESPACE)) == 1


def test_a_job_without_a_sign_of_life_is_ended(server, cluster, tmp_path: Path) -> None:
    metrics = tmp_path / "metrics.jsonl"
    metrics.write_text('{"step": 1}\n{"step": 2}\n')
    chosen = plan(platform={"stalled_minutes": 0.01}, signs=(str(metrics),))

    def program(pod: RunningPod) -> int:
        pod.told_to_end.wait(20)
        return 143

    with (
        Controllers(server, program),
        pytest.raises(JobFailedError, match=r"gave no sign of life for .*the last step on the storage is 2"),
    ):
        run(chosen, cluster)


def test_signs_of_life_keep_a_job_going_and_a_launcher_shows_that_it_watches(
    server, cluster, tmp_path: Path, capsys: Say
) -> None:
    metrics, watched = tmp_path / "metrics.jsonl", tmp_path / "watched"
    seen: set[str] = set()

    def program(pod: RunningPod) -> int:
        for step in range(1, 11):
            with metrics.open("a") as file:
                file.write(f'{{"step": {step}}}\n')
            seen.add(watched.read_text())
            time.sleep(0.15)
        return 0

    # Ten steps take longer than the job may be silent.
    chosen = plan(platform={"stalled_minutes": 0.015}, signs=(str(metrics), str(tmp_path / "journal.jsonl")))
    with Controllers(server, program):
        run(chosen, cluster, pace=Pace(look=0.02, pulse=0.05, repeat=0.2), watched=str(watched))
    assert len(seen) > 3
    assert re.search(r"1 of 1 pods run; step \d+, last sign of life", capsys.readouterr().err)


def test_a_job_that_waits_in_a_queue_may_wait_and_says_for_what(server, cluster, capsys: Say) -> None:
    chosen = plan(platform={"queue": "tpus", "unschedulable_minutes": 0.01})
    body = job_set(chosen, NAMESPACE)
    made = server.store.create("jobsets", NAMESPACE, body | {"spec": body["spec"] | {"suspend": True}})
    server.store.create("workloads", NAMESPACE, workload(made, "insufficient unused quota for google.com/tpu"))
    with Controllers(server, lambda pod: 0):
        job = in_background(lambda: run(chosen, cluster))
        wait_for(lambda: "waits in queue tpus: insufficient unused quota" in capsys.readouterr().err)
        time.sleep(0.8)  # longer than pods may be without a node
        held = server.store.get("jobsets", NAMESPACE, chosen.name)
        held["spec"]["suspend"] = False
        server.store.update("jobsets", held)
        assert job.result(20).restarts == Restarts()


def test_a_job_that_a_queue_can_never_run_is_a_failure(server, cluster) -> None:
    chosen = plan(platform={**FOUR_HOSTS, "queue": "tpus"})
    body = job_set(chosen, NAMESPACE)
    made = server.store.create("jobsets", NAMESPACE, body | {"spec": body["spec"] | {"suspend": True}})
    words = "insufficient quota for google.com/tpu in flavor v5e, request (16) > maximum capacity (8)"
    server.store.create("workloads", NAMESPACE, workload(made, words))
    with pytest.raises(JobFailedError, match=r"queue tpus can never run this job: .*maximum capacity \(8\)"):
        run(chosen, cluster)


def workload(job_set: dict, message: str) -> dict:
    condition = {"type": "QuotaReserved", "status": "False", "reason": "Pending", "message": message}
    labels = {"kueue.x-k8s.io/job-uid": job_set["metadata"]["uid"]}
    return {"metadata": {"name": "workload-1", "labels": labels}, "status": {"conditions": [condition]}}

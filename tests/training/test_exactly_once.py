"""A run that is killed, stopped or damaged goes on: nothing twice, nothing lost, and nothing generated again."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from components.errors import CheckpointError, ConfigError, RunStoppedError
from components.model.base_artifact import HERE, write_base
from components.model.peft import WEIGHTS_FILE
from components.telemetry.metrics import read_metrics
from components.telemetry.report import write_report
from components.telemetry.run_files import read_run
from components.training.replay import replay
from components.training.run import train
from tests.audit import audit, read_events
from tests.tiny_run import TRAIN
from tests.training.test_run import arguments

SOUND = {"trained_twice": 0, "regenerated_finished": 0, "dropped": 0, "missing_steps": 0}

KILLED_AT = {
    "half a line of the journal": """
from components.storage.disk import Disk
append, calls = Disk.append, iter(range(10**9))
def cut(self, uri, data, end):
    if "journal" in uri and next(calls) == 12:
        append(self, uri, data[: len(data) // 2], end)
        os.kill(os.getpid(), signal.SIGKILL)
    return append(self, uri, data, end)
Disk.append = cut
""",
    "a checkpoint without its manifest": """
from components.training import checkpoint
checkpoint.Checkpoints._manifest_path = lambda self, step: os.kill(os.getpid(), signal.SIGKILL)
checkpoint.Checkpoints._readable_manifest = lambda self, step: None
""",
    "the moment after a step": """
from components.training.records import RunRecords
RunRecords.step = lambda self, *arguments: os.kill(os.getpid(), signal.SIGKILL)
""",
    "the middle of a micro-batch": """
from components.training.learner import Learner
before, calls = Learner._train, iter(range(10**9))
def killed(self, *arguments):
    before(self, *arguments)
    if next(calls) == 6:
        os.kill(os.getpid(), signal.SIGKILL)
Learner._train = killed
""",
}


def bits(folder: Path) -> bytes:
    return (folder / "trained" / WEIGHTS_FILE).read_bytes()


@pytest.fixture(scope="module")
def whole(tiny_inputs, tmp_path_factory) -> Path:
    """A run of 4 steps that nothing has disturbed, with checkpoints of steps 3 and 4."""
    folder = tmp_path_factory.mktemp("whole")
    train(**arguments(tiny_inputs, folder))
    return folder


@pytest.fixture
def copied(whole, tmp_path) -> Path:
    shutil.copytree(whole / "run", tmp_path / "run")
    return tmp_path


@pytest.mark.long
def test_an_asynchronous_run_survives_kills_at_the_worst_moments_and_can_be_replayed(tiny_inputs, tmp_path):
    rollout = TRAIN["rollout"] | {"max_staleness": 2, "max_concurrency": 48}
    call = arguments(tiny_inputs, tmp_path, rollout=rollout, steps=8, checkpoint_every=2)
    before = 0
    for moment, injected in KILLED_AT.items():
        program = f"import os, signal\n{injected}\nfrom components.training.run import train; train(**{call!r})"
        killed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
        assert killed.returncode == -signal.SIGKILL, (moment, killed.stderr[-2000:])
        found = audit(tmp_path / "run")
        assert found.pop("steps") >= before, moment
        assert found == SOUND, moment
        before = audit(tmp_path / "run")["steps"]
    assert 1 <= before < 8
    train(**call)
    assert audit(tmp_path / "run") == {"steps": 8, **SOUND}
    tokens = read_run(str(tmp_path / "run")).summary["tokens"]
    assert tokens["generated"] == sum(amount for fate, amount in tokens.items() if fate != "generated")
    assert [line["step"] for line in read_metrics(str(tmp_path / "run" / "metrics.jsonl"))] == list(range(1, 9))
    replay(str(tmp_path / "run"), adapter=tmp_path / "again")
    assert (tmp_path / "again" / WEIGHTS_FILE).read_bytes() == bits(tmp_path)


def test_a_stop_saves_what_is_done_and_the_same_command_goes_on(tiny_inputs, whole, tmp_path):
    call = arguments(tiny_inputs, tmp_path, checkpoint_every=100)

    def stop_after_a_step() -> None:
        while not (tmp_path / "run" / "metrics.jsonl").exists():
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)

    watcher = threading.Thread(target=stop_after_a_step)
    watcher.start()
    with pytest.raises(RunStoppedError, match=r"SIGTERM: stopped after step \d of 4"):
        train(**call)
    watcher.join()
    steps = audit(tmp_path / "run")["steps"]
    assert 1 <= steps < 4
    assert (tmp_path / "run" / "checkpoints" / str(steps) / "checkpoint.json").is_file()
    train(**call)
    assert bits(tmp_path) == bits(whole)


@pytest.mark.parametrize("damaged", [["4"], ["3", "4"]], ids=["the newest", "all"])
def test_steps_without_a_checkpoint_are_computed_again_and_nothing_is_generated(
    tiny_inputs, whole, copied, damaged, capsys
):
    for step in damaged:
        (copied / "run" / "checkpoints" / step / "checkpoint.json").unlink()
    metrics = copied / "run" / "metrics.jsonl"
    metrics.write_bytes(b"".join(metrics.read_bytes().splitlines(keepends=True)[:-1]))
    train(**arguments(tiny_inputs, copied))
    assert bits(copied) == bits(whole)
    assert [line["step"] for line in read_metrics(str(metrics))] == [1, 2, 3, 4]
    assert Path(write_report(str(copied / "run"))).is_file()
    assert [event["event"] for event in read_events(copied / "run")[-1:]] == ["resumed"]
    assert "step 4 is computed again from the journal" in capsys.readouterr().err


def test_a_run_goes_on_with_other_slots_concurrency_and_steps(tiny_inputs, copied):
    rollout = TRAIN["rollout"] | {"max_concurrency": 4}
    engine = TRAIN["engine"] | {"slots": 4, "decode_steps": 2}
    train(**arguments(tiny_inputs, copied, rollout=rollout, engine=engine, steps=5))
    assert audit(copied / "run") == {"steps": 5, **SOUND}


def test_fewer_steps_than_were_made_are_refused(tiny_inputs, copied):
    with pytest.raises(ConfigError, match=r"train\.steps: the run has already made 4 steps.*got 2"):
        train(**arguments(tiny_inputs, copied, steps=2))


@pytest.mark.parametrize("changed", ["base", "adapter", "tasks"])
def test_a_run_on_another_base_adapter_or_data_is_refused_by_name(tiny_inputs, copied, changed):
    other = copied / "other"
    shutil.copytree(tiny_inputs[changed], other)
    if changed == "tasks":
        lines = (other / "train.jsonl").read_text().splitlines(keepends=True)
        (other / "train.jsonl").write_text("".join(lines[1:]))
    elif changed == "base":
        (other / "config.json").write_text((other / "config.json").read_text() + "\n")
        write_base(other, HERE, dtype="float32")
    else:
        (other / WEIGHTS_FILE).write_bytes((other / WEIGHTS_FILE).read_bytes() + b" ")
    with pytest.raises(CheckpointError, match=f"the run was started on {changed} with fingerprint"):
        train(**arguments(tiny_inputs | {changed: str(other)}, copied))


def test_a_journal_that_ends_before_its_checkpoint_is_refused_and_left_as_it_is(tiny_inputs, copied):
    path = copied / "run" / "journal.jsonl"
    cut = b"".join(path.read_bytes().splitlines(keepends=True)[:-3])
    path.write_bytes(cut)
    with pytest.raises(CheckpointError, match="the journal beside it ends before that"):
        train(**arguments(tiny_inputs, copied))
    assert path.read_bytes() == cut


@pytest.mark.long
def test_a_run_on_a_bucket_is_gone_on_with(tiny_inputs, whole, tmp_path, gcs):
    call = arguments(tiny_inputs, tmp_path, steps=2) | {"run_folder": f"{gcs}/exactly-once"}
    train(**call)
    train(**call | {"section": json.dumps(TRAIN)})
    assert bits(tmp_path) == bits(whole)

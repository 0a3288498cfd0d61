"""A train run on a bucket with a bad day: killed and gone on with, or without its bucket for a while."""

import json
import os
import random
import signal

import pytest

from components.errors import HeadraceError
from components.model.peft import WEIGHTS_FILE
from components.storage import patience
from components.training import journal
from components.training.records import RunRecords
from components.training.run import train
from tests.audit import audit
from tests.benchmarks import storage_faults
from tests.storage.fault_proxy import Faults
from tests.tiny_run import TRAIN
from tests.training.test_run import arguments

STEPS = 4


@pytest.fixture(scope="module")
def undisturbed(tiny_inputs, tmp_path_factory):
    """The same run, on a disk."""
    folder = tmp_path_factory.mktemp("undisturbed")
    train(**arguments(tiny_inputs, folder))
    return folder


@pytest.fixture
def proxy(google_storage, monkeypatch):
    monkeypatch.setattr(journal, "REMOTE_INTERVAL", 0.1)
    for name, value in {"answer": 1.0, "first_pause": 0.01, "longest_pause": 0.1, "total": 60.0}.items():
        monkeypatch.setattr(patience.PATIENCE, name, value)
    yield google_storage
    google_storage.faults = Faults()


@pytest.mark.long
def test_a_run_killed_on_a_bad_network_loses_nothing_and_shows_nothing_half(proxy, undisturbed, tiny_inputs, tmp_path):
    slow = {"429 with Retry-After", "work done, answer late", "connections refused"}
    proxy.faults = Faults(seed=3, rate=0.2, weights=storage_faults.WEIGHTS | dict.fromkeys(slow, 0.05), late=1.3)
    call = storage_faults.call_of(tiny_inputs, storage_faults.RUN, tmp_path / "trained", STEPS)
    seen = storage_faults.disturbed_run(call, tmp_path, 1, random.Random(0))
    found = storage_faults.verdict(proxy, seen, tmp_path, undisturbed, STEPS)
    assert found["found"] == []
    assert (found["lost"], found["twice"], found["half_visible"]) == (0, 0, 0)
    assert found["kills"] == found["resumed"] == 1
    assert found["faults_of_changes"] >= 15
    assert found["looks"] >= 2


@pytest.mark.long
@pytest.mark.parametrize("ended_by", ["its own patience", "SIGTERM"])
def test_a_run_ends_in_words_when_its_bucket_stays_away_and_the_same_command_goes_on(
    ended_by, proxy, undisturbed, tiny_inputs, tmp_path, monkeypatch
):
    call = arguments(tiny_inputs, tmp_path, grace_seconds=0.3) | {"run_folder": f"gs://headrace/{tmp_path.name}/away"}
    step, written_down = RunRecords.step, []

    def lose_the_bucket(self, number, *others):
        if number == 2:
            proxy.go_away(600)
            if ended_by == "SIGTERM":
                os.kill(os.getpid(), signal.SIGTERM)
            else:
                monkeypatch.setattr(patience.PATIENCE, "total", 0.3)
        step(self, number, *others)
        written_down.append((number, proxy.is_away))

    monkeypatch.setattr(RunRecords, "step", lose_the_bucket)
    with pytest.raises(
        HeadraceError, match=r"the storage has failed for .*the same command goes on|stopped after step"
    ):
        train(**call)
    # Whoever makes the steps did not wait for the storage: meanwhile tools are answered.
    assert written_down == [(1, False), (2, True)]
    # Nobody waits longer for a storage that fails than the process may still live.
    assert patience.PATIENCE.total == 0.3
    proxy.come_back()
    monkeypatch.setattr(RunRecords, "step", step)
    monkeypatch.setattr(patience.PATIENCE, "total", 60.0)
    train(**call)
    storage_faults.fetch(proxy, f"{tmp_path.name}/", tmp_path.parent)
    assert audit(tmp_path / "away") == {
        "steps": STEPS,
        "trained_twice": 0,
        "regenerated_finished": 0,
        "dropped": 0,
        "missing_steps": 0,
    }
    assert sorted(storage_faults.steps_written(tmp_path / "away")) == [1, 2, 3, 4]
    assert (tmp_path / "trained" / WEIGHTS_FILE).read_bytes() == (undisturbed / "trained" / WEIGHTS_FILE).read_bytes()


@pytest.mark.long
def test_a_run_whose_bucket_comes_back_goes_on(proxy, undisturbed, tiny_inputs, tmp_path, monkeypatch):
    call = arguments(tiny_inputs, tmp_path) | {"run_folder": "gs://headrace/back"}
    step = RunRecords.step

    def lose_the_bucket(self, number, *others):
        if number in (1, 3):
            proxy.go_away(1.0)
        step(self, number, *others)

    monkeypatch.setattr(RunRecords, "step", lose_the_bucket)
    train(**call)
    storage_faults.fetch(proxy, "back/", tmp_path)
    assert storage_faults.steps_written(tmp_path / "back") == [1, 2, 3, 4]
    assert json.loads((tmp_path / "back" / "summary.json").read_text())["steps"] == TRAIN["steps"]
    assert (tmp_path / "trained" / WEIGHTS_FILE).read_bytes() == (undisturbed / "trained" / WEIGHTS_FILE).read_bytes()

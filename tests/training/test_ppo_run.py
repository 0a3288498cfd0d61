"""PPO from disk to disk: a kill in the middle of a step's updates loses nothing, and the critic stays at home."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors import safe_open

from components.model.peft import WEIGHTS_FILE
from components.telemetry.metrics import read_metrics
from components.telemetry.run_files import read_run
from components.training.replay import replay
from components.training.run import train
from tests.audit import audit
from tests.training.test_exactly_once import SOUND, bits
from tests.training.test_run import arguments

STEPS = 3
PPO = {
    "objective": {"preset": "ppo", "proximal": "current"},
    "critic": {"optimizer": {"learning_rate": 1e-2}},
    "steps": STEPS,
    "checkpoint_every": 2,
}
KILLED_BETWEEN_UPDATES = """
import os, signal
from components.training.learner import Learner
before, calls = Learner._end, iter(range(10**9))
def killed(self, *arguments, **named):
    done = before(self, *arguments, **named)
    if next(calls) == 9:
        os.kill(os.getpid(), signal.SIGKILL)
    return done
Learner._end = killed
"""
OF_THE_CRITIC = ("value_loss", "value_mean", "explained_variance", "critic_gradient_norm", "epoch_kl_2")


@pytest.fixture(scope="module")
def whole(tiny_inputs, tmp_path_factory) -> Path:
    """A run that nothing has disturbed."""
    folder = tmp_path_factory.mktemp("ppo")
    train(**arguments(tiny_inputs, folder, **PPO))
    return folder


def lines(folder: Path) -> list[dict]:
    return read_metrics(str(folder / "run" / "metrics.jsonl"))


@pytest.mark.long
def test_a_kill_between_two_updates_of_a_step_ends_with_the_bits_of_an_undisturbed_run(tiny_inputs, whole, tmp_path):
    call = arguments(tiny_inputs, tmp_path, **PPO)
    program = f"{KILLED_BETWEEN_UPDATES}\nfrom components.training.run import train; train(**{call!r})"
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert found.returncode == -signal.SIGKILL, found.stderr[-2000:]
    assert audit(tmp_path / "run") == {"steps": 2, **SOUND}, "killed in the third step, after its second update"
    train(**call)
    assert audit(tmp_path / "run") == {"steps": STEPS, **SOUND}
    assert bits(tmp_path) == bits(whole)
    for ours, theirs in zip(lines(tmp_path), lines(whole), strict=True):
        assert [ours[key] for key in OF_THE_CRITIC] == [theirs[key] for key in OF_THE_CRITIC]


def test_the_journal_alone_gives_the_same_adapter_and_so_the_same_critic_on_the_way(whole, tmp_path):
    assert replay(str(whole / "run"), adapter=tmp_path / "again").steps == STEPS
    assert (tmp_path / "again" / WEIGHTS_FILE).read_bytes() == bits(whole)


def test_every_token_is_trained_once_however_often_it_is_passed_over(whole):
    tokens = read_run(str(whole / "run")).summary["tokens"]
    assert tokens["trained"] == tokens["generated"] == sum(line["trained_tokens"] for line in lines(whole))
    assert [(line["updates"], line["epochs"], line["skipped"]) for line in lines(whole)] == [(4, 2, 0)] * STEPS
    assert all(line["staleness_max"] == 0 and line["mismatch_kl"] < 1e-6 for line in lines(whole))
    assert sorted(os.listdir(whole / "run" / "checkpoints")) == ["2", "3"]


def test_what_is_exported_is_the_policy_alone(tiny_inputs, whole):
    places = (whole / "trained" / WEIGHTS_FILE, Path(tiny_inputs["adapter"]) / WEIGHTS_FILE)
    with safe_open(places[0], "np") as trained, safe_open(places[1], "np") as start:
        assert set(trained.keys()) == set(start.keys())
    assert sorted(os.listdir(whole / "trained")) == sorted(os.listdir(tiny_inputs["adapter"]))

"""The train step from disk to disk: it learns, keeps its books, and a kill changes no bit of what comes out."""

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from components.errors import ConfigError
from components.model.peft import WEIGHTS_FILE
from components.telemetry.metrics import read_metrics
from components.telemetry.run_files import read_run
from components.training.run import train
from tests.audit import audit
from tests.tiny_run import ENVIRONMENT, TRAIN


def arguments(tiny_inputs: dict[str, str], folder: Path, **changes) -> dict[str, object]:
    return {
        "section": json.dumps(TRAIN | changes),
        "environment": json.dumps(ENVIRONMENT),
        "seed": 0,
        "run_folder": str(folder / "run"),
        "trained": str(folder / "trained"),
        **tiny_inputs,
    }


@pytest.fixture(scope="module")
def uninterrupted(tiny_inputs, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("uninterrupted")
    train(**arguments(tiny_inputs, folder))
    return folder


def adapter_bits(folder: Path) -> bytes:
    return (folder / "trained" / WEIGHTS_FILE).read_bytes()


def totals(folder: Path) -> dict[str, int]:
    return read_run(str(folder / "run")).summary["tokens"]


def test_the_run_folder_tells_what_happened(uninterrupted):
    run = read_run(str(uninterrupted / "run"))
    assert [line["step"] for line in run.metrics] == [1, 2, 3, 4]
    tokens = run.summary["tokens"]
    assert tokens["generated"] == sum(tokens[fate] for fate in tokens if fate != "generated") > 0
    assert sum(line["tokens"]["generated"] for line in run.metrics) == tokens["generated"]
    assert all(line["staleness_max"] == 0 and list(line["staleness"]) == ["0"] for line in run.metrics)
    # On-policy and in float32: what was sampled is what is trained.
    assert all(line["behavior_kl"] < 1e-6 for line in run.metrics if line["microbatches"])
    assert run.summary["proofs"]["sync"]["versions"] == 5
    # At least one member of each of the four groups of each step.
    assert Counter(line["step"] for line in run.trajectories) >= Counter(dict.fromkeys((1, 2, 3, 4), 4))


def test_the_seconds_of_a_step_are_all_accounted_for(uninterrupted):
    for line in read_metrics(str(uninterrupted / "run" / "metrics.jsonl")):
        assert sum(line["trainer_seconds"].values()) == pytest.approx(line["seconds"], rel=0.02)


def test_a_kill_and_a_resume_end_with_the_bits_of_an_uninterrupted_run(tiny_inputs, uninterrupted, tmp_path):
    call = arguments(tiny_inputs, tmp_path)
    program = f"from components.training.run import train; train(**{call!r})"
    with subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.PIPE, text=True) as process:
        for line in process.stderr:
            if line.startswith("step 2/4"):
                os.kill(process.pid, signal.SIGKILL)
                break
    assert process.wait() == -signal.SIGKILL
    train(**call)
    assert adapter_bits(tmp_path) == adapter_bits(uninterrupted)
    killed, whole = (read_metrics(str(folder / "run" / "metrics.jsonl")) for folder in (tmp_path, uninterrupted))
    assert [line["reward_mean"] for line in killed] == [line["reward_mean"] for line in whole]
    assert totals(tmp_path)["trained"] == totals(uninterrupted)["trained"]


def test_two_runs_of_one_seed_are_the_same_run(tiny_inputs, uninterrupted, tmp_path):
    train(**arguments(tiny_inputs, tmp_path))
    assert adapter_bits(tmp_path) == adapter_bits(uninterrupted)


def test_with_staleness_generation_goes_on_during_updates_and_the_books_balance(tiny_inputs, tmp_path):
    rollout = TRAIN["rollout"] | {"max_staleness": 2, "max_concurrency": 48}
    train(**arguments(tiny_inputs, tmp_path, rollout=rollout, steps=6))
    run = read_run(str(tmp_path / "run"))
    assert max(line["staleness_max"] for line in run.metrics) >= 1
    tokens = run.summary["tokens"]
    assert tokens["generated"] == sum(tokens[fate] for fate in tokens if fate != "generated")
    assert tokens["in_flight"] == 0


def test_a_resume_with_another_recipe_is_refused(tiny_inputs, uninterrupted):
    call = arguments(tiny_inputs, uninterrupted, packing={"rows": 4, "row_length": 32})
    with pytest.raises(ConfigError, match=r"train\.packing\.rows: the run was started with 8.*got 4"):
        train(**call)


def test_what_lands_too_old_is_stale_and_replaced_and_the_books_balance(tiny_inputs, tmp_path):
    rollout = TRAIN["rollout"] | {"max_staleness": 1, "drop_older_than": 1, "max_concurrency": "auto"}
    call = arguments(tiny_inputs, tmp_path, rollout=rollout, steps=12)
    call["environment"] = json.dumps(ENVIRONMENT | {"use": "tests.training.slow_sums:SlowSums"})
    train(**call)
    tokens = totals(tmp_path)
    assert tokens["stale"] > 0
    assert tokens["generated"] == sum(tokens[fate] for fate in tokens if fate != "generated")
    lines = read_metrics(str(tmp_path / "run" / "metrics.jsonl"))
    assert all(line["staleness_max"] <= 1 for line in lines)
    assert {name: count for name, count in audit(tmp_path / "run").items() if count} == {"steps": 12}


def test_an_episode_longer_than_a_row_is_refused_before_anything_runs(tiny_inputs, tmp_path):
    with pytest.raises(ConfigError, match="24 tokens long"):
        train(**arguments(tiny_inputs, tmp_path, packing={"rows": 8, "row_length": 16}))
    assert not (tmp_path / "run").exists()

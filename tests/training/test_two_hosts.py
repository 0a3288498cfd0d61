"""A model spread over the devices of two processes, as over two hosts of a TPU slice."""

import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from components.model.peft import WEIGHTS_FILE
from components.telemetry.metrics import read_metrics
from components.training.run import train
from tests.training.test_run import arguments

REPOSITORY = Path(__file__).resolve().parents[2]
MESH = {"mesh": {"fsdp": 2, "tensor": 4}}


def start(coordinator: str, process: int, given: dict[str, object]) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.training.one_of_two_hosts", coordinator, str(process), json.dumps(given)]
    return subprocess.Popen(
        command,
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def run_on_two_hosts(given: dict[str, object]) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        coordinator = f"127.0.0.1:{free.getsockname()[1]}"
    hosts = [start(coordinator, process, given) for process in range(2)]
    try:
        said = [host.communicate(timeout=300)[0] for host in hosts]
    finally:
        for host in hosts:
            host.kill()
    assert [host.returncode for host in hosts] == [0, 0], "\n".join(said)


@pytest.mark.long
def test_a_run_on_two_hosts_is_the_run_of_one_and_goes_on_from_its_checkpoint(tiny_inputs, tmp_path: Path):
    train(**arguments(tiny_inputs, tmp_path / "one", steps=2))
    run_on_two_hosts(arguments(tiny_inputs, tmp_path / "two", steps=1, **MESH))
    run_on_two_hosts(arguments(tiny_inputs, tmp_path / "two", steps=2, **MESH))
    lines = [read_metrics(str(tmp_path / name / "run" / "metrics.jsonl")) for name in ("one", "two")]
    for one, two in zip(*lines, strict=True):
        assert two["reward_mean"] == one["reward_mean"]
        assert two["tokens"] == one["tokens"]
        assert two["gradient_norm"] == pytest.approx(one["gradient_norm"], rel=1e-4)
    assert (tmp_path / "two" / "trained" / WEIGHTS_FILE).stat().st_size > 0

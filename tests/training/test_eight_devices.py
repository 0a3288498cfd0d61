"""Trainer and engine on two disjoint sub-meshes of four devices each, in a process that sees eight."""

import os
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]


def test_trainer_and_engine_on_four_devices_each_do_what_one_device_does():
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/training/on_eight_devices.py"]
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8"
    environment = os.environ | {"XLA_FLAGS": flags}
    found = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, timeout=600)
    assert found.returncode == 0, found.stdout + found.stderr

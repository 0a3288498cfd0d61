"""A file of tests -> what it says in a process that sees eight devices of the CPU."""

import os
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]


def assert_passes_on_eight_devices(file: str) -> None:
    """Run pytest on `file` (a path below the repository) and fail with what it printed."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", file]
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8"
    environment = os.environ | {"XLA_FLAGS": flags}
    found = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, timeout=600)
    assert found.returncode == 0, found.stdout + found.stderr

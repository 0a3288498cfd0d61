"""One whole run on this machine, which many tests look at."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

MODULE = '''\
"""A user's own environment, in the folder that the command is called in."""

from components.environments.arithmetic import Arithmetic


class Mine(Arithmetic):
    """Sums, as they are."""


class Dated(Arithmetic):
    """Sums that stand for what lies in a folder of data."""

    def __init__(self, data: str) -> None:
        super().__init__(low=100, high=999, operators=["+"], train_tasks=64, test_tasks=8, worked_examples=0)


class Doubled(Arithmetic):
    """Lists every problem twice, which no run can be made of."""

    def tasks(self, split):
        return [task for task in super().tasks(split) for _ in range(2)]
'''


@dataclass(frozen=True)
class Finished:
    """What a command left behind: where it was called, its figures, and what it said to a person."""

    project: Path
    folder: Path
    figures: dict[str, Any]
    said: str

    def summary(self) -> dict[str, Any]:
        """What the steps wrote down."""
        return json.loads((self.folder / "summary.json").read_text())

    def output(self, step: str) -> dict[str, Any]:
        """What a step told Kubeflow."""
        (path,) = (self.folder / "steps").glob(f"*/{step}/executor_output.json")
        return json.loads(path.read_text())


def headrace(*arguments: str, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run the command line as a process of its own, in a folder."""
    root = str(Path(__file__).resolve().parents[2])
    command = [sys.executable, "-m", "pipeline.cli", *arguments]
    environment = {**os.environ, "PYTHONPATH": root, **variables}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


@pytest.fixture(scope="session")
def learnt(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """The smoke recipe on an environment of the user, from the command line to its end."""
    project = tmp_path_factory.mktemp("project")
    (project / "my_module.py").write_text(MODULE)
    use = ("--set", "environment.use=my_module:Mine")
    # Long enough for optimised programs to be worth their while.
    finished = headrace("run", "smoke", "--json", *use, folder=project, XLA_FLAGS="")
    assert finished.returncode == 0, finished.stderr[-4000:]
    (line,) = finished.stdout.splitlines()
    figures = json.loads(line)
    return Finished(project, Path(figures["run_dir"]), figures, finished.stderr)

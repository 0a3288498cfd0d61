"""A launcher is expendable: after kill -9 or SIGTERM the next one goes on with the very same pods."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY
from tests.launcher.conftest import NAMESPACE
from tests.launcher.controller import Controllers
from tests.launcher.plans import FOUR_HOSTS
from tests.launcher.test_jobset import Story, nothing_is_left, wait_for


def start_launcher(kubeconfig: Path, output: Path) -> "subprocess.Popen[bytes]":
    with output.open("wb") as file:
        return subprocess.Popen(
            [sys.executable, "-m", "tests.launcher.launcher_process", json.dumps({"platform": FOUR_HOSTS})],
            cwd=REPOSITORY,
            env=os.environ | {"KUBECONFIG": str(kubeconfig)},
            stdout=file,
            stderr=subprocess.STDOUT,
        )


@pytest.mark.parametrize("blow", [signal.SIGKILL, signal.SIGTERM])
def test_the_next_launcher_goes_on_with_the_pods_of_one_that_was_killed(server, tmp_path: Path, blow) -> None:
    kubeconfig = tmp_path / "kubeconfig"
    server.write_kubeconfig(kubeconfig, NAMESPACE)
    story = Story(4)
    with Controllers(server, story) as controllers:
        first = start_launcher(kubeconfig, tmp_path / "first.txt")
        for _ in range(8):  # two lines of each of four pods
            story.may.release()
        wait_for(lambda: "\nline 0\n" in (tmp_path / "first.txt").read_text(), 60)
        pods = controllers.names()
        first.send_signal(blow)
        assert first.wait(20) != 0
        time.sleep(0.1)
        assert controllers.names() == pods
        second = start_launcher(kubeconfig, tmp_path / "second.txt")
        wait_for(lambda: "watching it again" in (tmp_path / "second.txt").read_text(), 60)
        for _ in range(8):
            story.may.release()
        assert second.wait(60) == 0, (tmp_path / "second.txt").read_text()
        wait_for(lambda: nothing_is_left(server))
    assert len(controllers.pods) == story.runs == 4
    told = (tmp_path / "second.txt").read_text()
    assert "is there already, with 0 restarts: watching it again" in told
    assert [line for line in told.splitlines() if line.startswith("line")] == story.lines

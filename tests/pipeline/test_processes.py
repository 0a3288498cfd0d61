"""Who ends a run ends its steps: they are told, waited for, and killed when they do not listen."""

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from pipeline.processes import ended_together

PROGRAM = "import signal, sys, time; signal.signal(signal.SIGTERM, {}); print('up', flush=True); time.sleep(60)"
LISTENS, DEAF = PROGRAM.format("lambda *_: sys.exit(7)"), PROGRAM.format("signal.SIG_IGN")


def started(program: str) -> subprocess.Popen[str]:
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    return process


def interrupted(number: signal.Signals, patience: float) -> None:
    """A run in whose middle the signal comes."""
    with ended_together(patience):
        threading.Timer(0.1, os.kill, (os.getpid(), number)).start()
        time.sleep(30)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_steps_are_told_and_waited_for(number):
    step = started(LISTENS)
    with pytest.raises(KeyboardInterrupt):
        interrupted(number, patience=20.0)
    assert step.wait(1) == 7
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_a_step_behind_a_shell_is_found():
    command = ["sh", "-c", f'"{sys.executable}" -c "{LISTENS}"; echo gone']
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as shell:
        assert shell.stdout is not None
        assert shell.stdout.readline() == "up\n"
        with pytest.raises(KeyboardInterrupt):
            interrupted(signal.SIGTERM, patience=20.0)


def test_a_step_that_does_not_listen_is_killed():
    step = started(DEAF)
    with pytest.raises(KeyboardInterrupt):
        interrupted(signal.SIGTERM, patience=0.5)
    assert step.wait(5) == -signal.SIGKILL

"""Who ends a run ends its steps: they are told, waited for, and killed when they do not listen."""

import signal
import subprocess
import sys

import pytest

STEP = "import signal, sys, time; signal.signal(signal.SIGTERM, {}); print('up', flush=True); time.sleep(60)"
LISTENS, DEAF = STEP.format("lambda *_: sys.exit(7)"), STEP.format("signal.SIG_IGN")

# In a process of its own: whatever runs below the one that is interrupted is ended.
RUN = """
import os, subprocess, sys, threading, time
from pipeline.processes import ended_together
command, number, patience = {!r}, {!r}, {!r}
step = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
assert step.stdout.readline() == "up\\n"
try:
    with ended_together(patience):
        threading.Timer(0.1, os.kill, (os.getpid(), number)).start()
        time.sleep(30)
except KeyboardInterrupt:
    print("the step ended with", step.wait(5))
"""


def interrupted(command: list[str], number: signal.Signals, patience: float) -> str:
    """What a run says of its step when the signal has come in the middle of it."""
    program = RUN.format(command, int(number), patience)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_steps_are_told_and_waited_for(number):
    assert interrupted([sys.executable, "-c", LISTENS], number, 20.0) == "the step ended with 7"


def test_a_step_behind_a_shell_is_told_too():
    told = f'"{sys.executable}" -c "{LISTENS}"; test $? = 7 && exit 9'
    # The shell lives on when it is told, so that what it ends with is what became of the step.
    command = ["sh", "-c", f"trap : TERM; {told}"]
    assert interrupted(command, signal.SIGTERM, 20.0) == "the step ended with 9"


def test_a_step_that_does_not_listen_is_killed():
    assert interrupted([sys.executable, "-c", DEAF], signal.SIGTERM, 0.5) == f"the step ended with {-signal.SIGKILL}"

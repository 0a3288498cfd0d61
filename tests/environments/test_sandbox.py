"""Code in, an execution out: what it says, where its files are, and what is left when this process dies."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from components.environments.environment import environment_factory
from components.environments.sandbox.detection import reason_against
from components.environments.sandbox.lane import Lane
from components.environments.sandbox.limits import Isolation, Limits, Outcome
from components.environments.sandbox.pool import Sandbox
from components.errors import ConfigError, SandboxFailedError
from tests.environments import outside

REASON = reason_against("sandbox")
NEEDS_NAMESPACES = pytest.mark.skipif(REASON is not None, reason=str(REASON))
LEVELS = [pytest.param("sandbox", marks=NEEDS_NAMESPACES), "process"]


@pytest.fixture(scope="module", params=LEVELS)
def sandbox(request: pytest.FixtureRequest) -> Iterator[Sandbox]:
    with Sandbox(request.param, workers=2) as opened:
        yield opened


def run(sandbox: Sandbox, code: str, **more: object):
    return asyncio.run(sandbox.run(code, **more))


def test_an_execution_says_what_was_printed_the_last_value_and_how_it_ended(sandbox: Sandbox) -> None:
    found = run(sandbox, "import sys\nprint('grüß', input())\nprint('no', file=sys.stderr)\n[6 * 7]", stdin="dich\n")
    assert (found.stdout, found.stderr, found.value) == ("grüß dich\n", "no\n", "[42]")
    assert (found.outcome, found.exit_code, found.error, found.ok) == (Outcome.FINISHED, 0, None, True)
    assert 0 < found.cpu_seconds < 1
    assert 0 < found.seconds < 5


def test_an_error_is_the_lines_of_the_code_and_not_of_what_runs_it(sandbox: Sandbox) -> None:
    found = run(sandbox, "def f(x):\n    return 1 / x\n\nf(0)")
    assert found.outcome is Outcome.RAISED
    assert found.error == "line 4, in <module>: f(0)\nline 2, in f: return 1 / x\nZeroDivisionError: division by zero"
    assert run(sandbox, "x = (").error == "line 1: x = (\nSyntaxError: '(' was never closed"


@pytest.mark.parametrize(
    ("code", "outcome", "error", "exit_code"),
    [
        ("import sys; sys.exit(3)", Outcome.FINISHED, None, 3),
        ("import os; os._exit(4)", Outcome.FINISHED, None, 4),
        ("import os; os.abort()", Outcome.KILLED, "was ended by SIGABRT", None),
        ("print('x' * 2000)", Outcome.OUTPUT, "wrote more than 1000 bytes", None),
        ("while True: pass", Outcome.TIME, "took longer than 0.3 seconds", None),
    ],
)
def test_each_way_to_end_has_its_words(
    sandbox: Sandbox, code: str, outcome: Outcome, error: str | None, exit_code: int | None
) -> None:
    seconds = 0.3 if outcome is Outcome.TIME else 10.0
    found = run(sandbox, code, limits=Limits(seconds=seconds, output_bytes=1000))
    assert (found.outcome, found.error, found.exit_code) == (outcome, error, exit_code)


def test_a_kill_that_comes_after_the_end_is_not_for_the_next(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    hear = Lane._hear

    def hear_and_kill(self: Lane, seconds: float):
        answer = hear(self, seconds)
        self._control.sendall(b"k")
        return answer

    monkeypatch.setattr(Lane, "_hear", hear_and_kill)
    assert [run(sandbox, "6 * 7").value for _ in range(4)] == ["42"] * 4


def test_processor_time_has_a_limit_of_its_own(sandbox: Sandbox) -> None:
    found = run(sandbox, "while True: pass", limits=Limits(seconds=20.0, cpu_seconds=1))
    assert (found.outcome, found.error) == (Outcome.TIME, "used more than 1 seconds of processor time")


def test_memory_has_a_limit_and_running_out_of_it_is_an_error_of_the_code(sandbox: Sandbox) -> None:
    found = run(sandbox, "x = bytearray(300 * 10**6)", limits=Limits(memory_megabytes=200))
    assert found.outcome is Outcome.RAISED
    assert str(found.error).endswith("MemoryError")
    assert run(sandbox, "len(bytearray(300 * 10**6))", limits=Limits(memory_megabytes=600)).value == "300000000"


def test_what_was_printed_before_a_limit_is_kept(sandbox: Sandbox) -> None:
    found = run(sandbox, "print('first')\nwhile True: pass", limits=Limits(seconds=1.0))
    assert found.stdout == "first\n"


def test_a_folder_is_kept_between_executions_and_gone_when_it_is_closed(sandbox: Sandbox) -> None:
    async def play():
        mine, other = await sandbox.open_folder(), await sandbox.open_folder()
        wrote = await sandbox.run("import os\nopen('kept', 'w').write('x')\nos.getcwd()", folder=mine)
        read = await sandbox.run("open('kept').read()", folder=mine)
        theirs = await sandbox.run("import os\nos.listdir()", folder=other)
        nobodys = await sandbox.run("import os\nos.listdir()")
        await sandbox.close_folder(mine)
        with pytest.raises(SandboxFailedError, match="folder of this episode was lost"):
            await sandbox.run("1", folder=mine)
        await sandbox.close_folder(other)
        return wrote, read, theirs, nobodys

    wrote, read, theirs, nobodys = asyncio.run(play())
    assert (read.value, theirs.value, nobodys.value) == ("'x'", "[]", "[]")
    if sandbox.isolation == "process":
        assert not Path(str(wrote.value).strip("'")).exists()


def test_executions_run_at_the_same_time_and_are_not_mixed_up(sandbox: Sandbox) -> None:
    async def play():
        started = time.monotonic()
        slow = [sandbox.run("import time; time.sleep(1)") for _ in range(2)]
        await asyncio.gather(*slow)
        seconds = time.monotonic() - started
        return seconds, await asyncio.gather(*(sandbox.run(f"{number} * 2") for number in range(20)))

    seconds, found = asyncio.run(play())
    assert seconds < 1.95
    assert [each.value for each in found] == [str(number * 2) for number in range(20)]


def test_chance_is_not_the_same_in_every_execution(sandbox: Sandbox) -> None:
    drawn = {run(sandbox, "import random; random.random()").value for _ in range(4)}
    assert len(drawn) == 4


def test_the_code_finds_nothing_of_headrace_in_its_modules_but_what_runs_it(sandbox: Sandbox) -> None:
    found = run(
        sandbox, "import sys\nsorted({name.split('.')[0] for name in sys.modules} & {'jax', 'numpy', 'pydantic'})"
    )
    assert found.value == "[]"


def test_a_sandbox_whose_process_is_lost_says_so_and_starts_another(sandbox: Sandbox) -> None:
    async def play():
        running = [
            asyncio.create_task(sandbox.run("import time; time.sleep(20)", limits=Limits(seconds=30))) for _ in "ab"
        ]
        await asyncio.sleep(0.3)
        for queue in sandbox._lanes:
            queue.lane.kill()
        failed = await asyncio.gather(*running, return_exceptions=True)
        return failed, await sandbox.run("6 * 7")

    failed, after = asyncio.run(play())
    assert [type(each) for each in failed] == [SandboxFailedError] * 2
    assert after.value == "42"


DYING = """
import asyncio, sys
from components.environments.sandbox.limits import Limits
from components.environments.sandbox.pool import Sandbox
code = "import os, time\\nos.fork()\\nprint('running', flush=True)\\nwhile True: time.sleep(0.01)"
async def play():
    sandbox = Sandbox(sys.argv[1], workers=1)
    started = asyncio.create_task(sandbox.run(code, limits=Limits(seconds=100.0)))
    while len(children()) < int(sys.argv[2]): await asyncio.sleep(0.02)
    print("running", flush=True)
    await started
def children():
    from tests.environments.outside import descendants
    return descendants()
asyncio.run(play())
"""


@pytest.mark.parametrize(
    ("isolation", "processes"), [pytest.param("sandbox", 4, marks=LEVELS[0].marks), ("process", 3)]
)  # type: ignore[attr-defined]
def test_nothing_is_left_when_the_process_that_asked_is_killed(
    isolation: Isolation, processes: int, tmp_path: Path
) -> None:
    before = set(outside.descendants())
    command = [sys.executable, "-c", DYING, isolation, str(processes)]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as dying:
        assert dying.stdout is not None
        assert dying.stdout.readline() == "running\n"
        running = set(outside.descendants()) - before - {dying.pid}
        assert len(running) >= processes
        os.kill(dying.pid, signal.SIGKILL)
    deadline = time.monotonic() + 5
    while (left := [pid for pid in running if Path(f"/proc/{pid}").exists()]) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert left == []
    assert list(tmp_path.iterdir()) == []


REFUSED = """
import os
from components.environments.sandbox import seccomp
seccomp.install()
from components.environments.sandbox.pool import open_sandbox
from components.errors import ConfigError
try:
    open_sandbox("sandbox")
except ConfigError as error:
    print(error)
open_sandbox("process")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="system calls are filtered on Linux alone")
def test_where_namespaces_are_forbidden_the_sandbox_is_refused_with_what_is_missing_and_what_to_do() -> None:
    """A real refusal: the process has given up the right to make namespaces, as many containers have."""
    said = subprocess.run([sys.executable, "-c", REFUSED], capture_output=True, text=True, check=True).stdout
    assert said.startswith("environment.isolation: this machine cannot isolate code that a model wrote: unshare: ")
    assert "kernel.unprivileged_userns_clone=1" in said
    assert "say environment.isolation: process (got 'sandbox')" in said


def test_an_environment_that_runs_no_code_asks_for_no_isolation_and_is_given_none() -> None:
    with pytest.raises(ConfigError, match=r"environment\.isolation: has no effect, as arithmetic runs no code"):
        environment_factory("arithmetic", isolation="process")
    assert environment_factory("arithmetic")().tasks("test")

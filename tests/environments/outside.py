"""A program that tries to escape -> what it did, as seen from outside of the sandbox."""

import asyncio
import contextlib
import os
import secrets
import signal
import socket
import subprocess
import sysconfig
import threading
from collections.abc import Iterator
from pathlib import Path

from components.environments.sandbox.limits import Execution, Limits, Outcome
from components.environments.sandbox.pool import Sandbox
from tests.environments.escapes import Escape

LIMITS = Limits(
    seconds=0.3, cpu_seconds=2, memory_megabytes=256, processes=8, output_bytes=64_000, folder_megabytes=8, files=200
)
FD = 77
"""The number of a file that the parent holds open, and lets its children have."""


class Outside:
    """What a program must not reach: files, servers, processes and secrets of this machine."""

    def __init__(self, folder: Path, held: contextlib.ExitStack) -> None:
        self.host = folder / "host"
        self.host.mkdir()
        self.secret = secrets.token_hex(16)
        (self.host / "secret").write_text(self.secret)
        (self.host / "deletable").write_text("x")
        os.chmod(self.host, 0o777)
        self.heard: list[str] = []
        self.signals: list[int] = []
        self._servers(held)
        self.victim = subprocess.Popen(["sleep", "1000"])
        held.callback(lambda: (self.victim.kill(), self.victim.wait()))
        os.environ["HEADRACE_TEST_SECRET"] = self.secret
        held.callback(os.environ.pop, "HEADRACE_TEST_SECRET")
        opened = os.open(self.host / "secret", os.O_RDWR)
        os.dup2(opened, FD, inheritable=True)
        os.close(opened)
        held.callback(os.close, FD)
        for number in (signal.SIGUSR1, signal.SIGTERM, signal.SIGHUP):
            held.callback(signal.signal, number, signal.signal(number, lambda got, frame: self.signals.append(got)))

    def filled_in(self, code: str) -> str:
        """The program with the names of what is here."""
        names = {
            "HOST": str(self.host),
            "PARENT": str(os.getpid()),
            "VICTIM": str(self.victim.pid),
            "TCP": str(self.tcp),
            "UDP": str(self.udp),
            "UNIX": str(self.host / "socket"),
            "ABSTRACT": self.abstract,
            "PACKAGES": sysconfig.get_path("purelib"),
            "REPOSITORY": str(Path(__file__).resolve().parents[2]),
        }
        for name, value in names.items():
            code = code.replace(f"@{name}@", value)
        return code

    def damage(self) -> list[str]:
        """What is not as it was. Puts it back."""
        found = [f"a server heard from it: {heard}" for heard in self.heard]
        found += [f"this process got signal {number}" for number in self.signals]
        files = {path.name: path.read_text() for path in self.host.iterdir() if path.is_file()}
        if files != {"secret": self.secret, "deletable": "x"}:
            found.append(f"files of the host are now {sorted(files)}")
        if self.victim.poll() is not None:
            found.append("it ended a process of the host")
        places = (sysconfig.get_path("purelib"), sysconfig.get_path("stdlib"), "/dev/shm", "/tmp", os.getcwd())
        for place in places:
            left = [path for path in Path(place).iterdir() if "headrace_escape" in path.name]
            found += [f"it left {path}" for path in left]
            for path in left:
                path.unlink()
        (self.host / "written").unlink(missing_ok=True)
        (self.host / "deletable").write_text("x")
        self.heard.clear()
        self.signals.clear()
        return found

    def _servers(self, held: contextlib.ExitStack) -> None:
        self.abstract = f"headrace-{self.secret[:8]}"
        tcp, udp = socket.socket(), socket.socket(type=socket.SOCK_DGRAM)
        unix, abstract = socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX)
        tcp.bind(("127.0.0.1", 0))
        udp.bind(("127.0.0.1", 0))
        unix.bind(str(self.host / "socket"))
        abstract.bind(f"\0{self.abstract}")
        self.tcp, self.udp = tcp.getsockname()[1], udp.getsockname()[1]
        for server in (tcp, unix, abstract):
            server.listen()
        for server in (tcp, udp, unix, abstract):
            held.enter_context(server)
            threading.Thread(target=self._listen, args=(server,), daemon=True).start()

    def _listen(self, server: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                if server.type == socket.SOCK_DGRAM:
                    server.recv(100)
                else:
                    server.accept()[0].close()
                self.heard.append(f"{server.family.name} {server.type.name}")


@contextlib.contextmanager
def outside(folder: Path) -> Iterator[Outside]:
    """An outside that lasts as long as the block."""
    with contextlib.ExitStack() as held:
        yield Outside(folder, held)


def descendants() -> dict[int, str]:
    """The processes below this one: what each runs, by its number."""
    parents: dict[int, tuple[int, str]] = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            head, _, tail = Path(f"/proc/{name}/stat").read_text().rpartition(")")
            parents[int(name)] = (int(tail.split()[1]), head.partition("(")[2])
    found: dict[int, str] = {}
    below = {os.getpid()}
    while below:
        below = {pid for pid, (parent, _) in parents.items() if parent in below}
        found |= {pid: parents[pid][1] for pid in below}
    return found


async def tried(world: Outside, sandbox: Sandbox, escape: Escape) -> list[str]:
    """What an attempt achieved; empty where it was held."""
    if escape.before:
        await sandbox.run(world.filled_in(escape.before), limits=LIMITS)
    before = descendants()
    execution = await sandbox.run(world.filled_in(escape.code), limits=LIMITS)
    found = _signs(world, escape, execution)
    left = {pid: name for pid, name in descendants().items() if pid not in before}
    if left:
        found.append(f"processes are left: {left}")
    after = await sandbox.run("import json\nprint(len([1, 2, 3]), json.dumps([1]))\n6 * 7")
    if (after.stdout, after.value) != ("3 [1]\n", "42"):
        found.append(f"the next execution is not as it should be: {after}")
    return found + world.damage()


def try_all(world: Outside, sandbox: Sandbox, escapes: list[Escape]) -> dict[str, list[str]]:
    """What each attempt achieved, by its name, for those that achieved something."""

    async def play() -> dict[str, list[str]]:
        return {escape.name: await tried(world, sandbox, escape) for escape in escapes}

    return {name: found for name, found in asyncio.run(play()).items() if found}


def _signs(world: Outside, escape: Escape, execution: Execution) -> list[str]:
    said = "".join(filter(None, (execution.stdout, execution.stderr, execution.value, execution.error)))
    found = []
    if world.secret in said:
        found.append("it read the secret")
    if "ESCAPED" in said:
        found.append(f"it says so: {said[:300]}")
    if max(len(execution.stdout), len(execution.stderr)) > LIMITS.output_bytes:
        found.append("more output than allowed")
    if execution.seconds > LIMITS.seconds + 3:
        found.append(f"it took {execution.seconds:.1f} seconds")
    if execution.peak_megabytes > escape.peak_megabytes:
        found.append(f"it used {execution.peak_megabytes:.0f} MB")
    if escape.at_limit and execution.outcome not in (Outcome.TIME, Outcome.OUTPUT, Outcome.KILLED):
        found.append(f"no limit ended it: {execution.outcome}, {said[:300]}")
    return found

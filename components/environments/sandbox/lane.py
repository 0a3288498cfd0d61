"""One template process of this side: orders in, executions out, one at a time.

The template process (template.py) is a program of its own and never a fork of this one, which may hold JAX. It is
started with the first order and again after it was lost.
"""

import contextlib
import json
import os
import selectors
import site
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from components.environments.sandbox.limits import Isolation, Limits
from components.environments.sandbox.reading import Ended, Stream, ended
from components.errors import SandboxFailedError

_START_SECONDS = 30.0
_GRACE_SECONDS = 5.0
_MAX_REPORT = 1_000_000
_REPOSITORY = Path(__file__).resolve().parents[3]
_PROGRAM = (
    "import sys; sys.path.append(sys.argv[1]); from components.environments.sandbox import template; "
    "template.main(int(sys.argv[2]), sys.argv[3], sys.argv[4:])"
)


@dataclass(frozen=True, slots=True)
class Work:
    """What to run: `order` is for the driver (code and mode), `link` a socket for a grader's two sides."""

    order: Mapping[str, Any]
    stdin: bytes
    limits: Limits
    folder: str | None = None
    link: socket.socket | None = None


class Lane:
    """A template process and the folders that live with it. Not for two threads at once; `kill` is for any."""

    def __init__(self, isolation: Isolation) -> None:
        self.isolation = isolation
        self._control: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._folders: dict[str, str] = {}
        self._closed = False

    def start(self) -> None:
        """Start the template process if there is none. Raises SandboxFailedError with what is not allowed here."""
        if self._closed:
            raise SandboxFailedError("the sandbox is closed")
        if self._process is not None and self._process.poll() is None:
            return
        # One that was lost while nothing ran costs no execution, only the folders that it held.
        self._drop()
        mine, theirs = socket.socketpair()
        # The base interpreter: of the environment around it nothing is shown to the code.
        python = os.path.realpath(sys.executable)
        flags = ["-I", "-S", "-X", "utf8", "-c", _PROGRAM]
        with theirs:
            self._process = subprocess.Popen(
                [python, *flags, str(_REPOSITORY), str(theirs.fileno()), self.isolation, *_hidden()],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env={"LANG": "C.UTF-8"},
                cwd="/",
            )
        self._control = mine
        self._hear(_START_SECONDS)

    def open_folder(self, name: str, limits: Limits) -> None:
        """A folder that is kept from one execution to the next."""
        self.start()
        if self.isolation == "process":
            self._folders[name] = _make_folder()
            return
        self._say({"do": "open", "folder": name, "megabytes": limits.folder_megabytes, "files": limits.files})
        self._hear(_GRACE_SECONDS)
        self._folders[name] = name

    def close_folder(self, name: str) -> None:
        """Remove a folder; nothing where it is gone already, as it is with the process that held it."""
        place = self._folders.pop(name, None)
        if place is None or self._control is None:
            return
        if self.isolation == "process":
            _remove_folder(place)
        else:
            self._say({"do": "close", "folder": name})
            self._hear(_GRACE_SECONDS)

    def run(self, work: Work) -> Ended:
        """Run it to its end, whichever that is. Raises SandboxFailedError when the sandbox itself broke."""
        self.start()
        if work.folder is not None and work.folder not in self._folders:
            raise SandboxFailedError("the folder of this episode was lost with the process that held it")
        if self.isolation == "sandbox":
            return self._run(work, work.folder)
        place = self._folders[work.folder] if work.folder else _make_folder()
        try:
            return self._run(work, place)
        finally:
            if work.folder is None:
                _remove_folder(place)

    def close(self) -> None:
        """End the template process and everything in it, and wait until it has ended."""
        self._closed = True
        self._drop()
        for place in self._folders.values() if self.isolation == "process" else ():
            _remove_folder(place)
        self._folders.clear()

    def kill(self) -> None:
        """End what runs. The thread that waits for it gets a SandboxFailedError."""
        if self._process is not None:
            self._process.kill()

    def _run(self, work: Work, place: str | None) -> Ended:
        limits, started = work.limits, time.monotonic()
        order = {
            "do": "run",
            "folder": place,
            **{name: vars(limits)[name] for name in vars(limits) if not name.startswith("_")},
        }
        with contextlib.ExitStack() as held:
            pipes = [_pipe(held) for _ in range(3)]
            given = [_file(held, json.dumps(work.order).encode()), _file(held, work.stdin)]
            given += [write for _, write in pipes]
            if work.link is not None:
                given.append(work.link.fileno())
            self._say(order, given)
            for _, write in pipes:
                os.close(write)
            if work.link is not None:
                work.link.close()
            streams = [
                Stream(read, most)
                for (read, _), most in zip(pipes, (limits.output_bytes, limits.output_bytes, _MAX_REPORT), strict=True)
            ]
            answer = self._follow(streams, limits.seconds + _GRACE_SECONDS)
            for stream in streams:
                stream.drain()
        return ended(answer, streams, limits, time.monotonic() - started)

    def _follow(self, streams: list[Stream], seconds: float) -> dict[str, Any]:
        """Read what comes until the template says that all has ended."""
        assert self._control is not None
        until, killed = time.monotonic() + seconds, False
        with selectors.DefaultSelector() as selector:
            selector.register(self._control, selectors.EVENT_READ)
            for stream in streams:
                selector.register(stream.descriptor, selectors.EVENT_READ, stream)
            while (left := until - time.monotonic()) > 0:
                for key, _ in selector.select(left):
                    if key.data is None:
                        return self._hear(_GRACE_SECONDS)
                    if not key.data.read():
                        selector.unregister(key.fileobj)
                if not killed and any(stream.over for stream in streams):
                    with contextlib.suppress(OSError):  # Whoever is lost is heard of above.
                        self._control.sendall(b"k")
                    killed = True
        self._drop()
        raise SandboxFailedError(f"an execution could not be ended within {seconds:g} seconds")

    def _say(self, order: Mapping[str, Any], descriptors: list[int] | None = None) -> None:
        assert self._control is not None
        try:
            socket.send_fds(self._control, [json.dumps(order).encode()], descriptors or [])
        except OSError as error:
            self._drop()
            raise SandboxFailedError(f"the sandbox's process was lost: {error}") from error

    def _hear(self, seconds: float) -> dict[str, Any]:
        assert self._control is not None
        self._control.settimeout(seconds)
        said = b""
        try:
            while not said.endswith(b"\n"):
                part = self._control.recv(65536)
                if not part:
                    raise OSError("it ended")
                said += part
            self._control.settimeout(None)
        except OSError as error:
            self._drop()
            raise SandboxFailedError(f"the sandbox's process was lost: {error}") from error
        answer: dict[str, Any] = json.loads(said)
        if "broken" in answer:
            raise SandboxFailedError(f"the sandbox could not be set up: {answer['broken']}")
        return answer

    def _drop(self) -> None:
        if self._control is not None:
            self._control.close()
            self._control = None
        if self._process is not None:
            try:
                # It ends by itself when it sees that its owner is gone, and takes with it what it started.
                self._process.wait(timeout=1.0)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None
        if self.isolation == "sandbox":
            self._folders.clear()


def _hidden() -> list[str]:
    """Folders in which code finds nothing: this repository, this environment, and whatever packages are installed."""
    found = {str(_REPOSITORY), sys.prefix, *site.getsitepackages(), sysconfig.get_path("purelib")}
    for place in (sys.base_prefix, "/usr", "/usr/local"):
        for pattern in ("lib/python3*/dist-packages", "lib/python3*/site-packages"):
            found |= {str(path) for path in Path(place).glob(pattern)}
    return sorted({os.path.realpath(path) for path in found})


def _pipe(held: contextlib.ExitStack) -> tuple[int, int]:
    """A pipe whose reading end is closed with `held`."""
    read, write = os.pipe()
    held.callback(os.close, read)
    return read, write


def _file(held: contextlib.ExitStack, content: bytes) -> int:
    """An open file with this content and no name. What can be read of it is all that anybody can do with it."""
    with tempfile.NamedTemporaryFile(delete=False) as file:
        file.write(content)
    descriptor = os.open(file.name, os.O_RDONLY)
    os.unlink(file.name)
    held.callback(os.close, descriptor)
    return descriptor


def _make_folder() -> str:
    folder = tempfile.mkdtemp(prefix="headrace-")
    if os.geteuid() == 0:
        os.chmod(folder, 0o777)  # The code may be somebody else there (template.py).
    return folder


def _remove_folder(folder: str) -> None:
    """Remove a folder in which code may have made anything: links, what may not be entered, folders of any depth."""
    for command in (["rm", "-rf"], ["chmod", "-R", "u+rwX"], ["rm", "-rf"]):
        subprocess.run([*command, "--", folder], stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
        if not os.path.lexists(folder):
            return

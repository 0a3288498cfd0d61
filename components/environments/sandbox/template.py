"""The program that forks: Python, already started, that becomes one execution after another.

It is started as a program of its own by lane.py, has one thread, an empty environment and nothing but the standard
library, and never sees a text of the model or a test: what is to run goes by a file descriptor straight to the fork
that runs it. So a fork finds nothing in its memory but what any Python has.

Orders come as one line of JSON each, with five or six descriptors (payload, stdin, stdout, stderr, report, and a link
for graders) where there is something to run. Answers are lines of JSON. While something runs, the byte `k` kills it.
"""

import contextlib
import gc
import json
import os
import resource
import select
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from components.environments.sandbox import driver, linux, rooms, seccomp

_ENVIRONMENT = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8", "PYTHONDONTWRITEBYTECODE": "1"}
_ON_LINUX = sys.platform == "linux"
_KILL = b"k"


def main(control_number: int, isolation: str, hidden: Sequence[str]) -> None:
    """Answer orders until the other side is gone. The first answer says whether the isolation could be set up."""
    control = socket.socket(fileno=control_number)
    sys.path[:] = [path for path in sys.path if path.startswith((sys.base_prefix, sys.base_exec_prefix, "/usr"))]
    driver.preload()
    wake, ring = os.pipe()
    os.set_blocking(ring, False)
    os.set_blocking(wake, False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    signal.set_wakeup_fd(ring, warn_on_full_buffer=False)
    try:
        server = _Rooms(control, hidden) if isolation == "sandbox" else _Processes(control, wake)
    except (OSError, KeyError, AttributeError) as error:
        _answer(control, {"broken": _words(error)})
        return
    gc.collect()
    gc.freeze()
    _answer(control, {"ready": True})
    while True:
        message, descriptors, _, _ = socket.recv_fds(control, 65536, 8)
        if not message:
            return
        # A word to end what runs may come when it has ended by itself; it is not for what comes next.
        message = message.lstrip(_KILL)
        if not message:
            continue
        try:
            answer = server.obey(json.loads(message), descriptors)
        except OSError as error:
            answer = {"broken": _words(error)}
        for descriptor in descriptors:
            with contextlib.suppress(OSError):
                os.close(descriptor)
        _answer(control, answer)


def _words(error: Exception) -> str:
    """Without the number: `unshare: Operation not permitted`."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror} ({error.filename})" if error.filename else error.strerror
    return f"{type(error).__name__}: {error}"


def _answer(control: socket.socket, answer: Mapping[str, Any]) -> None:
    control.sendall(json.dumps(answer).encode() + b"\n")


class _Rooms:
    """Executions in rooms of a world (rooms.py)."""

    def __init__(self, control: socket.socket, hidden: Sequence[str]) -> None:
        self.control = control
        # Where memory runs out, what a model wrote is what the system should end.
        with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="utf-8") as file:
            file.write("500")
        self.user = rooms.enter_world(hidden)

    def obey(self, order: Mapping[str, Any], descriptors: Sequence[int]) -> dict[str, Any]:
        """Do what is asked."""
        if order["do"] == "open":
            rooms.make_folder(order["folder"], order["megabytes"], order["files"], self.user)
            return {}
        if order["do"] == "close":
            rooms.remove_folder(order["folder"])
            return {}
        told, tell = os.pipe()
        try:
            first = rooms.enter_room()
        except OSError:
            os.close(told)
            os.close(tell)
            raise
        if first == 0:
            os.close(told)
            self._be_first(order, descriptors, tell)
        os.close(tell)
        why = _wait(self.control, told, order["seconds"])
        if why == "gone":
            os._exit(0)  # The room's first process ends with this one.
        with contextlib.suppress(ProcessLookupError):
            os.kill(first, signal.SIGKILL)
        # Ends when the last process of the room has.
        _, _, used = os.wait4(first, 0)
        return {"late": why == "time", **_used(used), **_said(told)}

    def _be_first(self, order: Mapping[str, Any], descriptors: Sequence[int], tell: int) -> None:
        """The first process of a room: lays it out, starts the code, and ends when that has ended."""
        try:
            linux.prctl(linux.PR_SET_PDEATHSIG, signal.SIGKILL)
            signal.set_wakeup_fd(-1)
            self.control.close()
            rooms.furnish_room(order["folder"], order["folder_megabytes"], order["files"], self.user)
            guest = os.fork()
            if guest == 0:
                _become_guest(order, descriptors, tell, self._lose_rights)
            while (ended := os.wait())[0] != guest:
                pass
            _tell(tell, {"status": ended[1]})
        except OSError as error:
            _tell(tell, {"broken": _words(error)})
        finally:
            os._exit(0)

    def _lose_rights(self, order: Mapping[str, Any]) -> str:
        if self.user:
            os.setresgid(self.user, self.user, self.user)
            os.setresuid(self.user, self.user, self.user)
        linux.drop_capabilities()
        os.chdir(rooms.WORK)
        # The template and the room's first process may count, too: where the code is of the same user.
        _limit(order, spare_processes=0 if self.user else 2)
        seccomp.install()
        return rooms.WORK


class _Processes:
    """Executions in process groups of their own: limits, a clean environment, and no wall."""

    def __init__(self, control: socket.socket, wake: int) -> None:
        self.control, self.wake = control, wake
        if _ON_LINUX:
            linux.prctl(linux.PR_SET_CHILD_SUBREAPER, 1)
        self.user = rooms.STRANGER if os.geteuid() == 0 and self._works_as(rooms.STRANGER) else None

    def obey(self, order: Mapping[str, Any], descriptors: Sequence[int]) -> dict[str, Any]:
        """Do what is asked; folders are the other side's."""
        if order["do"] != "run":
            return {}
        told, tell = os.pipe()
        process = os.fork()
        if process == 0:
            os.close(told)
            signal.set_wakeup_fd(-1)
            self.control.close()
            _become_guest(order, descriptors, tell, self._lose_rights)
        os.close(tell)
        why, until = "", time.monotonic() + order["seconds"]
        while why in ("", "told") and os.waitid(os.P_PID, process, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            why = _wait(self.control, self.wake, until - time.monotonic())
            with contextlib.suppress(BlockingIOError):
                os.read(self.wake, 4096)
        for kill in (os.killpg, os.kill):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                kill(process, signal.SIGKILL)
        _, status, used = os.wait4(process, 0)
        if _ON_LINUX:
            _end_children()
        if why == "gone":
            # Nobody else is left to do it.
            os.execv("/bin/rm", ["rm", "-rf", "--", order["folder"]])
        return {"late": why == "time", "status": status, **_used(used), **_said(told)}

    def _lose_rights(self, order: Mapping[str, Any]) -> str:
        folder: str = order["folder"]
        if self.user is not None:
            os.setgroups([])
            os.setresgid(self.user, self.user, self.user)
            os.setresuid(self.user, self.user, self.user)
        os.chdir(folder)
        # The system counts all processes of a user's, and limits none of root's.
        user = os.geteuid()
        _limit(order, spare_processes=None if user == 0 else _tasks_of(user) if _ON_LINUX else None)
        if _ON_LINUX:
            linux.prctl(linux.PR_SET_NO_NEW_PRIVS, 1)
            linux.prctl(linux.PR_SET_PDEATHSIG, signal.SIGKILL)
        return folder

    def _works_as(self, user: int) -> bool:
        """Whether the standard library can be read by somebody else: root's own Python may lie in root's own folder."""
        process = os.fork()
        if process == 0:
            with contextlib.suppress(OSError):
                os.setresuid(user, user, user)
                os.stat(json.__file__)
                os._exit(0)
            os._exit(1)
        return os.waitpid(process, 0)[1] == 0


def _end_children() -> None:
    """Kill what left its process group: without its own parent it has become this process's child."""
    for _ in range(1000):
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        for child in _children():
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        select.select([], [], [], 0.001)
    raise OSError("processes of an execution cannot be ended")


def _children() -> list[int]:
    """The processes whose parent is this one."""
    me, found = os.getpid(), []
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:
            if int(file.read().rpartition(b")")[2].split()[1]) == me:
                found.append(int(name))
    return found


def _tasks_of(user: int) -> int:
    """How many threads a user has at work."""
    count = 0
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            if os.stat(f"/proc/{name}").st_uid == user:
                count += len(os.listdir(f"/proc/{name}/task"))
    return count


def _wait(control: socket.socket, told: int, seconds: float) -> str:
    """Until `told` can be read ("told"), the owner says so ("kill") or is gone ("gone"), or the time is up ("time")."""
    ready, _, _ = select.select([control.fileno(), told], [], [], max(seconds, 0))
    if control.fileno() in ready:
        return "kill" if control.recv(1) == _KILL else "gone"
    return "told" if told in ready else "time"


def _said(told: int) -> dict[str, Any]:
    """What the other end of a pipe said before it closed."""
    with open(told, "rb") as file:
        said: dict[str, Any] = json.loads(file.read(65536) or b"{}")
    return said


def _used(used: resource.struct_rusage) -> dict[str, float]:
    unit = 1024 if _ON_LINUX else 1024 * 1024
    return {"cpu_seconds": used.ru_utime + used.ru_stime, "peak_megabytes": used.ru_maxrss / unit}


def _tell(tell: int, what: Mapping[str, Any]) -> None:
    os.write(tell, json.dumps(what).encode())


def _become_guest(
    order: Mapping[str, Any], descriptors: Sequence[int], tell: int, lose_rights: Callable[[Mapping[str, Any]], str]
) -> None:
    """Turn this fork into the code's own process. Never comes back."""
    try:
        os.setsid()
        tell = os.dup2(tell, 99)
        kept = _take(descriptors)
        folder = lose_rights(order)
        os.environ.clear()
        os.environ.update({**_ENVIRONMENT, "HOME": folder, "TMPDIR": "/tmp" if folder == rooms.WORK else folder})
        # Behind this, nothing that the code does can pass for a fault of the sandbox.
        os.closerange(3 + len(kept), 4096)
    except OSError as error:
        _tell(tell, {"broken": _words(error)})
        os._exit(1)
    driver.run(folder, kept)


def _take(descriptors: Sequence[int]) -> list[int]:
    """Put stdin, stdout and stderr in their places; then payload, report and, for graders, a link."""
    payload, stdin, stdout, stderr, *others = [os.dup2(each, 100 + at) for at, each in enumerate(descriptors)]
    for place, descriptor in enumerate((stdin, stdout, stderr)):
        os.dup2(descriptor, place)
    return [os.dup2(each, 3 + at) for at, each in enumerate((payload, *others))]


def _limit(order: Mapping[str, Any], spare_processes: int | None) -> None:
    """Lower what this process may use, for good. None: the number of processes is not limited."""
    megabyte = 1024 * 1024
    limits = {
        resource.RLIMIT_CPU: (order["cpu_seconds"], order["cpu_seconds"] + 1),
        resource.RLIMIT_AS: (order["memory_megabytes"] * megabyte,) * 2,
        resource.RLIMIT_FSIZE: (order["folder_megabytes"] * megabyte,) * 2,
        resource.RLIMIT_NOFILE: (64, 64),
        resource.RLIMIT_CORE: (0, 0),
    }
    if _ON_LINUX:
        limits |= dict.fromkeys((resource.RLIMIT_MEMLOCK, resource.RLIMIT_MSGQUEUE), (0, 0))
    if spare_processes is not None:
        limits[resource.RLIMIT_NPROC] = (order["processes"] + spare_processes,) * 2
    for kind, (soft, hard) in limits.items():
        most = resource.getrlimit(kind)[1]
        fits = [value if most == resource.RLIM_INFINITY else min(value, most) for value in (soft, hard)]
        resource.setrlimit(kind, (fits[0], fits[1]))

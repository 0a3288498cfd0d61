"""Pieces of code -> executions, several at a time, none of which can reach another or anything else.

sandbox = open_sandbox("sandbox")          # ConfigError where this machine has none
execution = await sandbox.run("print(6 * 7)")
execution.stdout, execution.outcome        # "42\\n", Outcome.FINISHED
"""

import asyncio
import atexit
import dataclasses
import functools
import itertools
import os
import socket
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from components.environments.sandbox.detection import reason_against
from components.environments.sandbox.lane import Lane, Work
from components.environments.sandbox.limits import DEFAULT_LIMITS, Execution, Isolation, Limits
from components.environments.sandbox.reading import Ended
from components.errors import ConfigError, Problem, SandboxFailedError


class Sandbox:
    """Template processes, each with a thread of this process. Use as a context manager, or call `close`."""

    def __init__(self, isolation: Isolation, workers: int | None = None) -> None:
        """`workers` executions run at once; default: as many as there are processors."""
        self.isolation = isolation
        self._lanes = [_Queue(isolation) for _ in range(workers or len(os.sched_getaffinity(0)))]
        self._names = itertools.count()
        self._lock = threading.Lock()

    def __enter__(self) -> "Sandbox":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def run(
        self, code: str, *, stdin: str = "", limits: Limits = DEFAULT_LIMITS, folder: "Folder | None" = None
    ) -> Execution:
        """Run Python code. Its working directory is `folder`, or a fresh one that is removed afterwards.

        Whatever the code does becomes an Execution. Raises SandboxFailedError when the sandbox itself broke.
        """
        return (await self.play({"mode": "python", "code": code}, stdin=stdin, limits=limits, folder=folder)).execution

    async def play(
        self,
        order: Mapping[str, Any],
        *,
        stdin: str = "",
        limits: Limits = DEFAULT_LIMITS,
        folder: "Folder | None" = None,
        link: socket.socket | None = None,
    ) -> Ended:
        """As `run`, for any of the driver's modes. `link` is closed on this side once it has been handed over."""
        name = None if folder is None else folder.name
        work = Work(order, stdin.encode("utf-8", errors="replace"), limits, name, link)
        with self._lock:
            queue = folder.queue if folder is not None else min(self._lanes, key=lambda each: each.waiting)
            queue.waiting += 1
        try:
            return await queue.do(functools.partial(queue.lane.run, work))
        finally:
            queue.waiting -= 1

    async def judge(
        self, code: str, tests: Mapping[str, Any], *, limits: Limits = DEFAULT_LIMITS
    ) -> tuple[Execution, Execution, Mapping[str, Any]]:
        """Run a program that answers calls, and beside it, out of its reach, the tests that call it (judge.py).

        `tests` has setup, tests and names. Gives both executions and the judge's report.
        """
        with self._lock:
            queue = min(self._lanes, key=lambda each: each.waiting)
            queue.waiting += 1
        try:
            answer: tuple[Execution, Execution, Mapping[str, Any]] = await queue.do(
                functools.partial(_judged, queue, code, tests, limits)
            )
            return answer
        finally:
            queue.waiting -= 1

    async def open_folder(self, limits: Limits = DEFAULT_LIMITS) -> "Folder":
        """A folder that is kept from one execution to the next, until it is closed."""
        with self._lock:
            name, queue = f"{next(self._names)}", min(self._lanes, key=lambda each: each.folders)
            queue.folders += 1
        await queue.do(functools.partial(queue.lane.open_folder, name, limits))
        return Folder(name, queue)

    async def close_folder(self, folder: "Folder") -> None:
        """Remove a folder and what is in it."""
        folder.queue.folders -= 1
        await folder.queue.do(functools.partial(folder.queue.lane.close_folder, folder.name))

    def close(self) -> None:
        """End everything, also what runs, and wait until it has ended."""
        for queue in self._lanes:
            queue.lane.kill()
            queue.judges.kill()
        for queue in self._lanes:
            queue.threads.shutdown(wait=True, cancel_futures=True)
            queue.lane.close()
            queue.judges.close()


class _Queue:
    """A lane with the one thread that may use it, and one for the judges of what runs there."""

    def __init__(self, isolation: Isolation) -> None:
        self.lane = Lane(isolation)
        self.judges = Lane(isolation)
        self.threads = ThreadPoolExecutor(1, thread_name_prefix="sandbox")
        self.waiting = 0
        self.folders = 0

    async def do(self, work: Any) -> Any:
        try:
            doing = asyncio.get_running_loop().run_in_executor(self.threads, work)
        except RuntimeError as error:
            raise SandboxFailedError(f"the sandbox is closed: {error}") from error
        return await doing


def _judged(
    queue: _Queue, code: str, tests: Mapping[str, Any], limits: Limits
) -> tuple[Execution, Execution, Mapping[str, Any]]:
    """Run both sides at the same time: the program in this thread, its judge in one of its own."""
    queue.lane.start()
    queue.judges.start()
    theirs, ours = socket.socketpair()
    program = Work({"mode": "serve", "code": code}, b"", limits, None, theirs)
    patient = dataclasses.replace(
        limits, seconds=min(limits.seconds + 2, 600.0), cpu_seconds=limits.cpu_seconds + 2, memory_megabytes=512
    )
    judge = Work({"mode": "judge", **tests}, b"", patient, None, ours)
    with theirs, ours, ThreadPoolExecutor(1) as beside:
        judging = beside.submit(queue.judges.run, judge)
        try:
            ran = queue.lane.run(program)
        finally:
            theirs.close()
        judged = judging.result()
    return ran.execution, judged.execution, judged.report


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder of one episode. It lives in one of the sandbox's lanes."""

    name: str
    queue: _Queue


def open_sandbox(isolation: Isolation, where: str = "environment.isolation") -> Sandbox:
    """The sandbox of this process for an isolation, started with its first execution and closed when Python ends.

    Raises ConfigError, which says what is missing and what to do, where this machine has no such isolation.
    """
    reason = reason_against(isolation)
    if reason is not None:
        raise ConfigError(Problem(where, isolation, reason))
    return _shared(isolation)


@functools.cache
def _shared(isolation: Isolation) -> Sandbox:
    sandbox = Sandbox(isolation)
    atexit.register(sandbox.close)
    return sandbox

"""A grader that may hang or crash -> a grade in bounded time. The work is limited, not only the wait.

Each of a few threads owns one worker process. A call that takes too long has its worker killed; the next call of that
thread starts a new one. Workers are started as programs of their own (grader_worker.py), never by forking: this process
may hold JAX, whose threads do not survive a fork, and a worker must not import what this process imported.
"""

import asyncio
import atexit
import contextlib
import functools
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import connection
from types import TracebackType
from typing import Any

from components.environments import grader_worker
from components.errors import GraderFailedError

_LOAD_SECONDS = 60.0


class GraderPool:
    """Runs functions of importable modules in killable processes. Use as a context manager, or call `close`."""

    def __init__(self, workers: int = 2, timeout: float = 5.0) -> None:
        """`timeout` is in seconds and per call; the wait for a free worker does not count."""
        self.timeout = timeout
        self._threads = ThreadPoolExecutor(workers, thread_name_prefix="grader")
        self._own = threading.local()
        self._lock = threading.Lock()
        self._workers: set[_Worker] = set()
        self._closed = False

    def __enter__(self) -> "GraderPool":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def grade(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """The function's result, from another process. Function, arguments and result must be picklable.

        Raises GraderFailedError when it raises, takes longer than the time-out, or takes its process down.
        """
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._call, function, arguments)

    def close(self) -> None:
        """Kill all workers, also those at work. Calls that wait are cancelled, calls at work fail."""
        with self._lock:
            self._closed = True
            for worker in self._workers:
                worker.process.kill()
        self._threads.shutdown(wait=True, cancel_futures=True)
        for worker in list(self._workers):
            self._drop(worker)

    def _call(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        name = f"grader {function.__module__}.{function.__qualname__}"
        try:
            # Before anything is sent: a worker that was told half of a call could not be used again.
            to_load, to_call = pickle.dumps(function), pickle.dumps((arguments, self.timeout))
        except (pickle.PicklingError, TypeError, AttributeError, RecursionError) as error:
            raise GraderFailedError(f"{name} or its arguments cannot be sent to a process: {error}") from error
        worker = self._worker()
        try:
            # Sent by itself first, so that the import of its module does not count.
            self._ask(worker, to_load, _LOAD_SECONDS, f"{name} could not be loaded")
            return self._ask(worker, to_call, self.timeout, name)
        except (EOFError, OSError) as error:
            # It lets go of the pipe before it is gone, and only then is its exit code its own.
            with contextlib.suppress(subprocess.TimeoutExpired):
                worker.process.wait(timeout=1.0)
            self._drop(worker)
            raise GraderFailedError(f"{name} took its process down (exit code {worker.process.returncode})") from error

    def _ask(self, worker: "_Worker", message: bytes, timeout: float, name: str) -> Any:
        worker.link.send_bytes(message)
        if not worker.link.poll(timeout):
            self._drop(worker)
            raise GraderFailedError(f"{name} timed out after {timeout:g} seconds")
        ok, value = worker.link.recv()
        if not ok:
            raise GraderFailedError(f"{name} raised {value}")
        return value

    def _worker(self) -> "_Worker":
        """This thread's worker, started where there is none."""
        worker: _Worker | None = vars(self._own).get("worker")
        if worker is None:
            worker = _Worker()
            with self._lock:
                if self._closed:
                    worker.kill()
                    raise GraderFailedError("the grader pool is closed")
                self._workers.add(worker)
            self._own.worker = worker
        return worker

    def _drop(self, worker: "_Worker") -> None:
        worker.kill()
        self._own.worker = None
        with self._lock:
            self._workers.discard(worker)


class _Worker:
    """One process and the connection to it."""

    def __init__(self) -> None:
        self.link, theirs = connection.Pipe()
        # -P: the folder of the worker's file does not become a place to import from.
        command = [sys.executable, "-P", grader_worker.__file__, str(theirs.fileno())]
        self.process = subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
        theirs.close()
        self.link.send(sys.path)

    def kill(self) -> None:
        """End the process for sure, and wait until it has."""
        self.process.kill()
        self.process.wait()
        self.link.close()


@functools.cache
def shared_pool() -> GraderPool:
    """The pool of this process, started when the first grader needs it and closed when Python ends."""
    pool = GraderPool()
    atexit.register(pool.close)
    return pool

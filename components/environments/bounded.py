"""A coroutine of somebody else -> its result, or an end, in bounded time.

A coroutine may catch its cancellation and go on, or cancel itself. So it runs as a task of its own: it is cancelled
twice, and then closed by force, which ends it where it waits.
"""

import asyncio
import contextlib
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class OverdueError(Exception):
    """The coroutine took longer than it was given, and has been ended. What it raised then is the cause."""


class SelfCancelledError(Exception):
    """The coroutine ended as cancelled, although nobody had cancelled it."""

    def __init__(self) -> None:
        super().__init__("it ended as cancelled, although nobody had cancelled it")


async def bounded(work: Coroutine[Any, Any, T], seconds: float, *, grace: float) -> T:
    """The result of `work`, which may take `seconds`; from then on, or when this is cancelled, it is made to end.

    `grace` is how many seconds it may take to clean up after each of two cancellations. Raises what `work` raises,
    OverdueError, or SelfCancelledError.
    """
    task = asyncio.create_task(work)
    try:
        await asyncio.wait((task,), timeout=seconds)
    except asyncio.CancelledError:
        await _end(task, grace)
        raise
    except GeneratorExit:
        _kill(task)
        raise
    if not task.done():
        await _end(task, grace)
        raise OverdueError from _error_of(task)
    if task.cancelled():
        raise SelfCancelledError
    return task.result()


async def _end(task: asyncio.Task[Any], grace: float) -> None:
    for _ in range(2):
        task.cancel()
        await asyncio.wait((task,), timeout=grace)
        if task.done():
            _error_of(task)
            return
    _kill(task)


def _kill(task: asyncio.Task[Any]) -> None:
    """Raise GeneratorExit where the coroutine waits; at its next turn the task finds it closed, and ends."""
    coroutine = task.get_coro()
    task.add_done_callback(_error_of)
    # Raised by one that catches even that; it is left to itself.
    with contextlib.suppress(RuntimeError):
        if isinstance(coroutine, Coroutine):
            coroutine.close()
    task.cancel()


def _error_of(task: asyncio.Task[Any]) -> BaseException | None:
    """The error that a task ended with. One that is looked at is not reported as forgotten."""
    return task.exception() if task.done() and not task.cancelled() else None

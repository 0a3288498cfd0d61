"""SIGTERM, Ctrl-C, or the end of who started this process -> a loop of optimizer steps that stops at a good moment."""

import asyncio
import os
import select
import signal
import sys
import threading
from typing import Protocol, runtime_checkable

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_LOOK_SECONDS = 0.5


@runtime_checkable
class Stoppable(Protocol):
    """A loop that can be told to stop."""

    async def run(self) -> None:
        """Make all steps. Raises RunStoppedError when it was stopped before the last."""
        ...

    def stop(self, reason: str) -> None:
        """End at the next good moment. Called on the event loop."""
        ...


async def run_until_interrupted(loop: Stoppable) -> None:
    """Run the loop; raises RunStoppedError where it was told to stop, and what the loop raises."""
    running = asyncio.get_running_loop()
    # Python gives signals to the main thread only.
    handled = SIGNALS if threading.current_thread() is threading.main_thread() else ()
    for number in handled:
        running.add_signal_handler(number, loop.stop, number.name)
    watch = asyncio.create_task(_watch_launcher(loop), name="watch the launcher")
    try:
        await loop.run()
    finally:
        watch.cancel()
        for number in handled:
            running.remove_signal_handler(number)


async def _watch_launcher(loop: Stoppable) -> None:
    """A step whose launcher was killed would go on unseen, and hold the run folder against whoever resumes it."""
    parent = os.getppid()
    while os.getppid() == parent and _is_heard():
        await asyncio.sleep(_LOOK_SECONDS)
    loop.stop("the process that started this one is gone")


def _is_heard() -> bool:
    """False when standard error is a pipe whose reader is gone: a launcher may have a shell in between."""
    try:
        descriptor = sys.stderr.fileno()
    except (OSError, ValueError):
        return True
    look = select.poll()
    look.register(descriptor, 0)
    return not any(event & select.POLLERR for _, event in look.poll(0))

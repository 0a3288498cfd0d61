"""The calls of one tool, of all episodes together -> an order in which its infrastructure survives them.

How many run at once, how often one that failed for a moment is tried again, and when a tool that is down is left alone
for a while. What the tool answers is not looked at, nor what the policy did wrong: both are signs that it works.
"""

import asyncio
import contextlib
import hashlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Annotated, TypeVar
from weakref import WeakKeyDictionary

from pydantic import Field

from components.config import config
from components.environments.bounded import OverdueError
from components.errors import ConfigError, Problem, RolloutError, ToolFailedError

T = TypeVar("T")


class TransientToolError(Exception):
    """What a tool raises for a fault that may be gone in a moment: a connection that was reset, a server that is full.

    It is tried again as often as its limits say; after that the episode fails, as the policy cannot help it.
    """


@config
class ToolLimits:
    """What protects the infrastructure of a tool, over all episodes of a process.

    `concurrency` calls run at once; the others wait in the order in which they came, which costs their episodes seconds
    but not the tool's time-out. A TransientToolError is tried `retries` times again, after `backoff_seconds` that
    double each time, up to `max_backoff_seconds`. After `break_after` calls in a row that broke, calls fail at once for
    `pause_seconds`; then one is let through, and decides.
    """

    concurrency: Annotated[int, Field(ge=1)] | None = None
    retries: Annotated[int, Field(ge=0)] = 0
    backoff_seconds: Annotated[float, Field(gt=0)] = 0.1
    max_backoff_seconds: Annotated[float, Field(gt=0)] = 10.0
    break_after: Annotated[int, Field(ge=1)] | None = None
    pause_seconds: Annotated[float, Field(gt=0)] = 30.0

    def __post_init__(self) -> None:
        problems = []
        if not self.retries and (self.backoff_seconds, self.max_backoff_seconds) != (0.1, 10.0):
            problems.append(Problem("backoff_seconds", self.backoff_seconds, "has no effect without retries"))
        if self.break_after is None and self.pause_seconds != 30.0:
            problems.append(Problem("pause_seconds", self.pause_seconds, "has no effect without break_after"))
        if problems:
            raise ConfigError(problems)


class Gate:
    """What all calls of a tool pass through. It may be used from several event loops, one after the other.

    `clock` is in seconds; `sleep` waits between two tries.
    """

    def __init__(
        self,
        name: str,
        limits: ToolLimits,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.name = name
        self._limits = limits
        self._clock = clock
        self._sleep = sleep
        self._rooms: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = WeakKeyDictionary()
        self._calls = 0
        self._broken_in_a_row = 0
        self._closed_until: float | None = None
        self._probing = False
        self._last_words = ""

    async def call(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """The result of `attempt`, which is awaited once or, after a TransientToolError, again.

        Raises what it raises; ToolFailedError where it never came through, or while the tool is left alone.
        """
        self._calls += 1
        number = self._calls
        for tries in range(self._limits.retries + 1):
            try:
                async with self._room(), self._watched():
                    return await attempt()
            except TransientToolError as error:
                if tries == self._limits.retries:
                    times = f" {tries + 1} times in a row" if tries else ""
                    raise ToolFailedError(f"tool {self.name} failed{times}: {error}") from error
            await self._sleep(self._backoff(number, tries))
        raise AssertionError("the last try has returned or raised")

    def _room(self) -> contextlib.AbstractAsyncContextManager[None]:
        if self._limits.concurrency is None:
            return contextlib.nullcontext()
        loop = asyncio.get_running_loop()
        if loop not in self._rooms:
            self._rooms[loop] = asyncio.Semaphore(self._limits.concurrency)
        return self._rooms[loop]

    @contextlib.asynccontextmanager
    async def _watched(self) -> AsyncIterator[None]:
        """Refuses while the tool is left alone, and takes note of how a call that was let through ends."""
        if self._limits.break_after is None:
            yield
            return
        probe = self._let_through()
        answered = True
        try:
            yield
        except (RolloutError, TransientToolError) as error:
            answered = False
            self._broke(str(error), self._limits.break_after)
            raise
        except (OverdueError, asyncio.CancelledError, GeneratorExit) as error:
            # The policy may have asked for too much: no sign of a broken tool, but none of a sound one.
            answered = False
            if probe and isinstance(error, OverdueError):
                self._broke("it took too long", self._limits.break_after)
            raise
        finally:
            self._probing = self._probing and not probe
            if answered:
                self._broken_in_a_row, self._closed_until = 0, None

    def _let_through(self) -> bool:
        """Whether this call is the one that decides. Raises ToolFailedError while none may pass."""
        if self._closed_until is None:
            return False
        left = self._closed_until - self._clock()
        if left > 0 or self._probing:
            when = f"is tried again in {left:.1f} seconds" if left > 0 else "is being tried"
            raise ToolFailedError(
                f"tool {self.name} is left alone after {self._broken_in_a_row} failures in a row and {when}; "
                f"the last one said: {self._last_words}"
            )
        self._probing = True
        return True

    def _broke(self, words: str, limit: int) -> None:
        self._broken_in_a_row += 1
        self._last_words = words
        if self._broken_in_a_row >= limit:
            self._closed_until = self._clock() + self._limits.pause_seconds

    def _backoff(self, number: int, tries: int) -> float:
        """Seconds from a half to the whole of the doubled time: a function of tool, call and try."""
        whole = min(self._limits.backoff_seconds * 2**tries, self._limits.max_backoff_seconds)
        digest = hashlib.sha256(f"{self.name}\0{number}\0{tries}".encode()).digest()
        return whole * (0.5 + int.from_bytes(digest[:4], "big") / 2**33)

"""A policy that any asyncio task may call, served by one thread that keeps the device busy.

    with Engine(architecture, base, adapter, config=EngineConfig(slots=8), seed=0, stop_ids=(2,)) as engine:
        policy = engine.policy(SamplingConfig(temperature=0.7))
        completion = await policy(prompt_ids, sequence=SequenceId("task-1"), max_tokens=64)

Requests, cancellations and new weights reach the thread through one queue, in order: a request that is sent after a
swap is served with the new weights. Nothing here waits on the event loop's side but the await itself.
"""

import asyncio
import contextlib
import itertools
import queue
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from types import TracebackType

import jax
import numpy as np
from jaxtyping import Float

from components.engine import decode
from components.engine.core import Core, EngineConfig
from components.engine.sampling import SamplingConfig
from components.engine.scheduler import Request
from components.engine.statistics import EngineStatistics
from components.engine.stopping import DecodeText
from components.errors import EngineFailedError
from components.model.architecture import Architecture
from components.model.base import Base
from components.model.cache import init_cache
from components.model.compile_time import charge_compilation
from components.model.lora import Adapter
from components.model.manifest import Held, make_manifest
from components.model.placement import placement_of
from components.telemetry.clock import BUSY, RoleClock
from components.telemetry.spans import span
from components.types import Completion, SequenceId

WAITING = "waiting for requests"  # until somebody says what those who would send them are doing: `idle_because`
HOLDING = "waiting for more requests"


@dataclass(frozen=True, slots=True)
class _Waiter:
    """Who waits for a completion, and on which event loop."""

    future: asyncio.Future[Completion]
    loop: asyncio.AbstractEventLoop

    def resolve(self, result: Completion | BaseException) -> None:
        """Hand over the result, from the engine's thread."""
        # Raised by a loop that has been closed: its tasks are gone, and nobody is left to be told.
        with contextlib.suppress(RuntimeError):
            self.loop.call_soon_threadsafe(self._set, result)

    def _set(self, result: Completion | BaseException) -> None:
        if self.future.done():
            return
        if isinstance(result, Completion):
            self.future.set_result(result)
        else:
            self.future.set_exception(result)


@dataclass(frozen=True, slots=True)
class _Submit:
    request: Request
    sampling: SamplingConfig
    waiter: _Waiter


@dataclass(frozen=True, slots=True)
class _Cancel:
    request_id: int


@dataclass(frozen=True, slots=True)
class _Swap:
    adapter: Adapter | None
    version: int
    done: Future[None]


@dataclass(frozen=True, slots=True)
class _Forget:
    sequence: SequenceId


@dataclass(frozen=True, slots=True)
class _Wake:
    pass


@dataclass(frozen=True, slots=True)
class _Close:
    pass


_Command = _Submit | _Cancel | _Forget | _Swap | _Wake | _Close


class Engine:
    """Continuous batching over the slots of one cache.

    `base` and `adapter` are shared with whoever else holds them and are never donated; a trainer that donates its
    adapter must hand a copy to `swap`. `stop_ids` end a completion and belong to it. `decode_text` turns tokens into
    text and is needed for stop strings. `seed` and a SequenceId are all that a draw depends on.

    A `reproducible` engine decodes `rows` rows in every dispatch, however many of them are at rest, because sums differ
    in their last bits between numbers of rows (in float32 on a CPU, one row from two and sixteen from twenty-four).
    Without it, a dispatch costs what its live rows cost, and a sequence's log-probs waver in the last bits with them.
    """

    def __init__(
        self,
        architecture: Architecture,
        base: Base,
        adapter: Adapter | None,
        *,
        config: EngineConfig,
        seed: int,
        stop_ids: Sequence[int] = (),
        decode_text: DecodeText | None = None,
        version: int = 0,
        reproducible: bool = True,
    ) -> None:
        self.architecture, self.config = architecture, config
        self.clock = RoleClock("engine")
        self._base, self._adapter, self._decode_text = base, adapter, decode_text
        self._core = Core(
            architecture,
            base,
            adapter,
            config=config,
            seed=seed,
            stop_ids=tuple(stop_ids),
            decode_text=decode_text,
            version=version,
            reproducible=reproducible,
        )
        self._compilations_before = decode.compilations()
        self._commands: queue.SimpleQueue[_Command] = queue.SimpleQueue()
        self._waiters: dict[int, _Waiter] = {}
        self._request_ids = itertools.count()
        self._thread = threading.Thread(target=self._main, name="engine", daemon=True)
        self._trainer_waits = True
        self._waiting = WAITING
        self._held_since: float | None = None
        self._ended: BaseException | None = None
        self._lock = threading.Lock()  # held for moments: between looking whether the engine runs and queueing

    def start(self) -> "Engine":
        """Start the thread."""
        self._thread.start()
        return self

    def close(self) -> None:
        """End the thread and fail whatever still waits. Raises what the thread died of, if it did."""
        self._commands.put(_Close())
        self._thread.join()
        if self._ended is not None and not isinstance(self._ended, EngineFailedError):
            raise self._ended

    def __enter__(self) -> "Engine":
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def policy(self, sampling: SamplingConfig) -> "EnginePolicy":
        """A Policy that samples in this way."""
        if sampling.stop_strings and self._decode_text is None:
            raise ValueError(f"stop strings {sampling.stop_strings} need an engine that was given decode_text")
        return EnginePolicy(self, sampling)

    def swap(self, adapter: Adapter | None, version: int) -> Future[None]:
        """Use another adapter from the next dispatch on, and for all requests that are sent after this call.

        Does not wait; the future is done when the swap is. Raises ValueError when the adapter's modules or shapes
        are not those of the present one.
        """
        if adapter is not None and self._adapter is not None and _shape(adapter) != _shape(self._adapter):
            raise ValueError(f"adapter of version {version} binds other modules or shapes than the engine's adapter")
        self._adapter = adapter
        done: Future[None] = Future()
        self._send(_Swap(adapter, version, done))
        return done

    def stage(self, adapter: Adapter) -> Held:
        """Take a candidate to where this engine would serve it from, and tell what has arrived. Serving goes on."""
        held = placement_of(self._base).weights(adapter)
        return Held(held, make_manifest(held))

    def trainer_waits(self, waits: bool) -> None:
        """Tell the engine whether the trainer is out of work (as it is until told otherwise): nothing is held then."""
        self._trainer_waits = waits
        if waits:
            self._commands.put(_Wake())

    def idle_because(self, cause: str) -> None:
        """Tell the engine why nobody asks for tokens: its idle time counts as `waiting for CAUSE` from now on."""
        before, self._waiting = self._waiting, f"waiting for {cause}"
        self.clock.rename(before, self._waiting)

    def forget(self, sequence: SequenceId) -> None:
        """Tell the engine that the episode of this sequence is over, so that its slot is lent before any other."""
        self._commands.put(_Forget(sequence))

    def score(self, adapter: Adapter | None, token_ids: Sequence[int]) -> Float[np.ndarray, " successors"]:
        """Log-probs at temperature 1 of token_ids[1:], computed by the engine's path with a candidate adapter.

        Blocks, and may be called from any thread; the engine goes on meanwhile.
        """
        chunk = self.config.prefill_chunk
        inputs, targets = np.asarray(token_ids[:-1], np.int32), np.asarray(token_ids[1:], np.int32)
        size = decode.bucket(max(len(inputs), 1))
        cache = init_cache(self.architecture, 1, size, self.config.cache_dtype)
        parts = []
        for start in range(0, len(inputs), chunk):
            width = min(chunk, size)
            piece, wanted = (_padded(ids[start : start + width], width) for ids in (inputs, targets))
            cache, part = decode.score(
                self.architecture, self._base, adapter, cache, piece, wanted, np.asarray(start, np.int32)
            )
            parts.append(np.asarray(part))
        return np.concatenate(parts)[: len(inputs)] if parts else np.zeros(0, np.float32)

    def statistics(self) -> EngineStatistics:
        """What the engine has done so far."""
        core = self._core
        return EngineStatistics(
            version=core.version,
            generated_tokens=core.generated_tokens,
            prefilled_tokens=core.scheduler.prefilled_tokens,
            reused_tokens=core.scheduler.reused_tokens,
            recomputed_tokens=core.scheduler.recomputed_tokens,
            decode_dispatches=core.dispatches,
            decoded_rows=core.decoded_rows,
            rows=core.scheduler.rows,
            swaps=core.swaps,
            compilations=decode.compilations() - self._compilations_before,
            live_slots=len(core.scheduler.live()),
            waiting_requests=len(core.scheduler.waiting),
            seconds=self.clock.totals(),
        )

    async def complete(
        self, prompt_ids: Sequence[int], sampling: SamplingConfig, sequence: SequenceId, max_tokens: int
    ) -> Completion:
        """Sample one turn. Cancelling the task that awaits this frees its slot.

        Raises EngineFailedError when the prompt leaves no room in a slot or the engine is closed, ValueError for
        arguments that no engine could serve, and whatever the engine's thread died of.
        """
        self._check(prompt_ids, max_tokens)
        loop = asyncio.get_running_loop()
        waiter = _Waiter(loop.create_future(), loop)
        request = Request(next(self._request_ids), tuple(prompt_ids), sequence, max_tokens)
        self._send(_Submit(request, sampling, waiter))
        try:
            return await waiter.future
        except asyncio.CancelledError:
            self._commands.put(_Cancel(request.id))
            raise

    def _check(self, prompt_ids: Sequence[int], max_tokens: int) -> None:
        if not prompt_ids or max_tokens < 1:
            raise ValueError(f"a turn needs a prompt and a token to sample: {len(prompt_ids)=}, {max_tokens=}")
        if min(prompt_ids) < 0 or max(prompt_ids) >= self.architecture.vocab_size:
            outside = next(each for each in prompt_ids if not 0 <= each < self.architecture.vocab_size)
            raise ValueError(f"token id {outside} is outside the vocabulary of {self.architecture.vocab_size}")
        if len(prompt_ids) >= self.config.capacity:
            raise EngineFailedError(
                f"a prompt of {len(prompt_ids)} tokens leaves no room for a new one in a slot of capacity "
                f"{self.config.capacity}; raise the engine's capacity or shorten the prompt"
            )

    def _send(self, command: _Command) -> None:
        with self._lock:
            if self._ended is not None:
                raise self._ended
            self._commands.put(command)

    def _main(self) -> None:
        """The thread. Whatever ends it fails those who wait; an error is kept for the owner and later callers."""
        reason: BaseException = EngineFailedError("the engine is closed")
        charge_compilation(self.clock)
        try:
            self._serve()
        except BaseException as error:
            reason = error
        with self._lock:
            self._ended = reason
        while not self._commands.empty():
            self._accept_after_end(self._commands.get(), reason)
        for waiter in self._waiters.values():
            waiter.resolve(reason)

    def _serve(self) -> None:
        """Carry out commands as they come, and steps as long as there are requests."""
        while True:
            while not self._commands.empty() or not self._may_step():
                command = self._next_command()
                if isinstance(command, _Close):
                    return
                if command is not None:
                    self._carry_out(command)
            if self._hold() == 0:
                self._core.scheduler.admit()
            for request_id, completion in self._core.step():
                self._waiters.pop(request_id).resolve(completion)

    def _may_step(self) -> bool:
        return not self._core.idle and (bool(self._core.scheduler.live()) or self._hold() == 0)

    def _hold(self) -> float:
        """For how many seconds more the requests that wait are kept waiting; 0 when they may start."""
        scheduler = self._core.scheduler
        if self._trainer_waits or not scheduler.waiting or len(scheduler.waiting) >= scheduler.room:
            self._held_since = None
            return 0.0
        now = time.perf_counter()
        if self._held_since is None:
            self._held_since = now
        return max(0.0, self._held_since + self.config.patience - now)

    def _next_command(self) -> _Command | None:
        """The next command, as soon as there is one; None when requests have been held for long enough."""
        if not self._commands.empty():
            return self._commands.get()
        state, seconds = (self._waiting, None) if self._core.idle else (HOLDING, self._hold())
        with self.clock.during(state), contextlib.suppress(queue.Empty):
            return self._commands.get(timeout=seconds)
        return None

    def _carry_out(self, command: _Submit | _Cancel | _Forget | _Swap | _Wake) -> None:
        self.clock.switch(BUSY)
        match command:
            case _Submit(request, sampling, waiter):
                self._waiters[request.id] = waiter
                self._core.submit(request, sampling)
            case _Cancel(request_id):
                self._waiters.pop(request_id, None)
                self._core.cancel(request_id)
            case _Forget(sequence):
                self._core.forget(sequence)
            case _Swap(adapter, version, done):
                with span("swap", version=version):
                    self._core.swap(adapter, version)
                done.set_result(None)
            case _Wake():
                pass  # what it is for has happened: the thread looks again whether to hold

    def _accept_after_end(self, command: _Command, reason: BaseException) -> None:
        match command:
            case _Submit(_, _, waiter):
                waiter.resolve(reason)
            case _Swap(_, _, done):
                done.set_exception(reason)


@dataclass(frozen=True, slots=True)
class EnginePolicy:
    """The engine, sampling in one way. A `components.types.Policy`."""

    engine: Engine
    sampling: SamplingConfig

    async def __call__(self, prompt_ids: Sequence[int], *, sequence: SequenceId, max_tokens: int) -> Completion:
        """Sample one turn; see `Engine.complete`."""
        return await self.engine.complete(prompt_ids, self.sampling, sequence, max_tokens)


def _shape(adapter: Adapter) -> tuple[object, ...]:
    leaves, structure = jax.tree.flatten(adapter)
    return structure, tuple((leaf.shape, leaf.dtype) for leaf in leaves)


def _padded(ids: np.ndarray, width: int) -> np.ndarray:
    return np.pad(ids, (0, width - len(ids)))

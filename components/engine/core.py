"""Requests in, completions out, one step of the device at a time. Single-threaded: `engine.py` gives it a thread."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Literal

import jax
import numpy as np
from pydantic import Field

from components.config import config
from components.engine import decode
from components.engine.sampling import SamplingConfig, sequence_key
from components.engine.scheduler import Copy, Prefill, Request, Scheduler, Slot, episode_of
from components.engine.stopping import DecodeText, tokens_until_stop
from components.errors import ConfigError, Problem
from components.model.architecture import Architecture
from components.model.base import Base
from components.model.cache import init_cache
from components.model.lora import Adapter
from components.model.placement import placement_of
from components.telemetry.spans import count, now, record, span
from components.types import Completion, FinishReason, SequenceId


@config
class EngineConfig:
    """How much the engine holds at once, and how it shares its time.

    `slots` sequences of `capacity` tokens each, prompt and completion together, have keys and values in memory, as
    `cache_dtype`. At most `rows` of them (None: all) decode at once; what is more keeps the contexts of episodes that
    wait for their tools. A dispatch runs `decode_steps` steps: more of them cost less overhead per token and make a new
    request, a swap and a stop string wait longer. Prompts are prefilled in pieces of `prefill_chunk` tokens, one
    between two dispatches while most rows decode. `kv_on_update` says what happens to the cache when weights are
    swapped: running episodes go on with it, or it is computed again with the new weights.

    `patience` seconds at most a request is held while a trainer that shares the devices has enough to do, so that more
    of them start together: few rows cost nearly as much as many, and the trainer pays for it.
    """

    slots: Annotated[int, Field(ge=1)] = 8
    rows: Annotated[int, Field(ge=1)] | None = None
    capacity: Annotated[int, Field(ge=2)] = 1024
    decode_steps: Annotated[int, Field(ge=1)] = 4
    prefill_chunk: Annotated[int, Field(ge=16)] = 256
    kv_on_update: Literal["keep", "recompute"] = "keep"
    cache_dtype: Literal["float32", "bfloat16"] = "float32"
    patience: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1.0

    def __post_init__(self) -> None:
        problems = []
        if self.prefill_chunk & (self.prefill_chunk - 1):
            message = "must be a power of two, as pieces are padded to one"
            problems.append(Problem("prefill_chunk", self.prefill_chunk, message))
        if self.rows is not None and self.rows > self.slots:
            message = f"must not exceed slots ({self.slots}): each row decodes in a slot"
            problems.append(Problem("rows", self.rows, message))
        if problems:
            raise ConfigError(problems)


@dataclass(slots=True)
class _Job:
    """What is known of a request beside its tokens, which its slot holds."""

    request: Request
    sampling: SamplingConfig
    key: tuple[int, int]
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    submitted: float = field(default_factory=now)
    admitted: float | None = None
    decoding: float | None = None

    def record_spans(self) -> None:
        """How long it waited for a slot, for its prompt, and for its tokens."""
        sequence, ended = self.request.sequence, now()
        decoding = self.decoding or ended
        admitted = self.admitted or decoding
        of = {"episode": sequence.episode, "turn": sequence.turn}
        record("engine queue", self.submitted, admitted, **of)
        record("prefill of turn", admitted, decoding, prompt_tokens=len(self.request.prompt_ids), **of)
        record("decode of turn", decoding, ended, tokens=len(self.logprobs), **of)


class Core:
    """The engine without its thread. See `Engine` for the arguments."""

    def __init__(
        self,
        architecture: Architecture,
        base: Base,
        adapter: Adapter | None,
        *,
        config: EngineConfig,
        seed: int,
        stop_ids: tuple[int, ...],
        decode_text: DecodeText | None,
        version: int,
        reproducible: bool,
    ) -> None:
        self.config = config
        self.scheduler = Scheduler(config.slots, config.capacity, config.prefill_chunk, config.rows)
        self.version = version
        self.generated_tokens = 0
        self.dispatches = 0
        self.decoded_rows = 0
        self.swaps = 0
        self._architecture, self._base, self._adapter = architecture, base, adapter
        self._seed, self._stop_ids, self._decode_text = seed, stop_ids, decode_text
        self._reproducible = reproducible
        placement = placement_of(base)
        self._cache = init_cache(architecture, config.slots, config.capacity, config.cache_dtype, placement=placement)
        self._jobs: dict[int, _Job] = {}

    @property
    def idle(self) -> bool:
        """Whether there is nothing to do."""
        return not self._jobs

    def submit(self, request: Request, sampling: SamplingConfig) -> None:
        """Queue a request."""
        self._jobs[request.id] = _Job(request, sampling, sequence_key(self._seed, request.sequence))
        self.scheduler.submit(request)

    def cancel(self, request_id: int) -> None:
        """Forget a request; its slot is free at once."""
        self._jobs.pop(request_id, None)
        self.scheduler.cancel(request_id)

    def forget(self, sequence: SequenceId) -> None:
        """The episode of this sequence is over."""
        self.scheduler.forget(episode_of(sequence))

    def swap(self, adapter: Adapter | None, version: int) -> None:
        """Sample with another adapter from the next dispatch on."""
        self._adapter, self.version = adapter, version
        self.scheduler.swap(recompute=self.config.kv_on_update == "recompute")
        self.swaps += 1

    def step(self) -> list[tuple[int, Completion]]:
        """Prefill within the budget, decode once. Returns the completions that this ended, by request id."""
        self._prefill()
        ready = self.scheduler.ready()
        return self._decode(ready) if ready else []

    def _prefill(self) -> None:
        budget = self.scheduler.prefill_budget()
        while (work := self.scheduler.next_work(budget)) is not None:
            match work:
                case Copy(source, target):
                    self._cache = decode.copy(self._cache, np.int32(source), np.int32(target))
                case Prefill(slot, start, tokens):
                    self._prefill_piece(slot, start, tokens)
                    budget -= len(tokens)

    def _prefill_piece(self, slot: int, start: int, tokens: tuple[int, ...]) -> None:
        job = self._job(self.scheduler.slots[slot])
        job.admitted = job.admitted or now()
        padded = np.zeros((1, decode.bucket(len(tokens))), np.int32)
        padded[0, : len(tokens)] = tokens
        place, begin = np.array([slot], np.int32), np.array([start], np.int32)
        with span("prefill", tokens=len(tokens)):
            self._cache = decode.prefill(
                self._architecture, self._base, self._adapter, self._cache, padded, place, begin
            )
            # Waits, so that the span tells what a prefill takes; the decode step that follows would wait for it anyway.
            jax.block_until_ready(self._cache.keys[0])

    def _decode(self, ready: list[Slot]) -> list[tuple[int, Completion]]:
        rows, places = self._rows(ready)
        with span("decode", rows=len(ready)):
            self._cache, *results = decode.decode(
                self._architecture,
                self._base,
                self._adapter,
                self._cache,
                rows,
                steps=self.config.decode_steps,
                stop_ids=self._stop_ids,
                truncated=any(self._job(slot).sampling.truncated for slot in ready),
            )
            tokens, logprobs, counts = jax.device_get(results)
        self.dispatches += 1
        self.decoded_rows += len(ready)
        completions = []
        for place, slot in zip(places, ready, strict=True):
            mine = slice(counts[place]), place
            completion = self._take(slot, tokens[mine].tolist(), logprobs[mine].tolist())
            if completion is not None:
                completions.append(completion)
        return completions

    def _rows(self, ready: list[Slot]) -> tuple[decode.DecodeRows, Sequence[int]]:
        """What the next dispatch runs, and the row of each slot in it."""
        size = self._batch_size(len(ready))
        whole = size == self.config.slots
        places = [slot.index for slot in ready] if whole else range(len(ready))
        rows = decode.DecodeRows.at_rest(size, placed=not whole)
        for row, slot in zip(places, ready, strict=True):
            job = self._job(slot)
            job.decoding = job.decoding or now()
            rows.tokens[row] = slot.tokens[-1]
            rows.positions[row] = slot.filled
            rows.remaining[row] = self.scheduler.limit(job.request) - slot.sampled
            rows.sampling.set(row, job.sampling, job.key)
            if rows.slots is not None:
                rows.slots[row] = slot.index
        return rows, places

    def _batch_size(self, ready: int) -> int:
        """All rows, or just enough of them: the smallest power of two, since each size is a program of its own."""
        return self.scheduler.rows if self._reproducible else min(decode.bucket(ready, 4), self.scheduler.rows)

    def _take(self, slot: Slot, tokens: list[int], logprobs: list[float]) -> tuple[int, Completion] | None:
        """Add what a dispatch has sampled for a slot. Tokens after a stop string go, and their log-probs with them."""
        job = self._job(slot)
        if not all(map(math.isfinite, logprobs)):
            raise FloatingPointError(f"log-probs {logprobs} of {job.request.sequence} at policy version {self.version}")
        kept = self._until_stop_string(slot, job.sampling, tokens)
        stopped = kept is not None or tokens[-1] in self._stop_ids
        tokens = tokens[:kept]
        job.logprobs += logprobs[:kept]
        job.versions += [self.version] * len(tokens)
        self.generated_tokens += len(tokens)
        count("engine_tokens", len(tokens))
        self.scheduler.advance(slot, tokens)
        if not stopped and slot.sampled < self.scheduler.limit(job.request):
            return None
        return job.request.id, self._finish(slot, job, stopped)

    def _finish(self, slot: Slot, job: _Job, stopped: bool) -> Completion:
        full = FinishReason.CONTEXT if len(slot.tokens) == self.config.capacity else FinishReason.LENGTH
        completion = Completion(
            token_ids=tuple(slot.tokens[len(job.request.prompt_ids) :]),
            logprobs=tuple(job.logprobs),
            versions=tuple(job.versions),
            finish_reason=FinishReason.STOP if stopped else full,
        )
        job.record_spans()
        del self._jobs[job.request.id]
        self.scheduler.finish(slot)
        return completion

    def _until_stop_string(self, slot: Slot, sampling: SamplingConfig, tokens: list[int]) -> int | None:
        if not sampling.stop_strings or self._decode_text is None:
            return None
        earlier = slot.tokens[len(slot.tokens) - slot.sampled :]
        return tokens_until_stop(sampling.stop_strings, self._decode_text, earlier, tokens)

    def _job(self, slot: Slot) -> _Job:
        assert slot.request is not None
        return self._jobs[slot.request.id]

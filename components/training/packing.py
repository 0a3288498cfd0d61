"""Trajectories -> samples -> micro-batches: rows of several samples, and flat arrays of the tokens that are trained.

A micro-batch has one shape for its rows (`rows x row_length`) and one of few for its flat arrays, so a run compiles a
handful of programs. For two samples "hi|a" and "yo|ok" (prompt|completion) in a row of 8, each letter a token:

    tokens       h  i  a  y  o  o  k  _        index              1  4  5    the place that PREDICTS the token
    positions    0  1  2  0  1  2  3  0        sampled.sequence   0  1  1    a completion's tokens share one
    segments     1  1  1  2  2  2  2  0        targets            a  o  k    the token itself

Nothing is masked by value: a pad id that equals the end-of-sequence id hides no token.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Annotated, NamedTuple, no_type_check

import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Int
from pydantic import Field

from components.algorithms.sampled import SampledTokens
from components.config import config
from components.errors import ConfigError, Problem
from components.types import Sample, Trajectory

UNSAMPLED_VERSION = -1


@no_type_check  # its leaves may stand for arrays: shapes, shardings, nothing
@struct.dataclass
class Microbatch:
    """One shape of work for the device. Segment 0, weight 0 and sequence -1 are padding.

    `index` points into the rows laid end to end; the hidden state there predicts `targets`. `sampled` is what an
    objective needs.
    """

    tokens: Int[Array, "rows length"]
    positions: Int[Array, "rows length"]
    segments: Int[Array, "rows length"]
    index: Int[Array, "tokens"]
    targets: Int[Array, "tokens"]
    sampled: SampledTokens

    @property
    def fill(self) -> float:
        """Share of the rows' places that hold a token."""
        return float(np.mean(np.asarray(self.segments) > 0))


@config
class PackingConfig:
    """Shape of a micro-batch. `row_length` bounds the tokens of one trajectory, prompts and replies included.

    Attention is over whole rows, so make a row no longer than the longest episode: SmolLM2-135M in bfloat16 on two
    cores took 2.2 ms per token at 8 x 128 and 3.4 ms at 4 x 512, gradients included.
    `capacities` are the allowed sizes of the flat arrays; the smallest that fits is taken. Empty means a quarter, a
    half and all of `rows * row_length`.
    """

    rows: Annotated[int, Field(ge=1)] = 4
    row_length: Annotated[int, Field(ge=2)] = 512
    capacities: tuple[Annotated[int, Field(ge=1)], ...] = ()

    def __post_init__(self) -> None:
        places = self.rows * self.row_length
        if self.capacities and max(self.capacities) < self.row_length - 1:
            raise ConfigError(
                Problem(
                    where="packing.capacities",
                    value=self.capacities,
                    message=f"the largest must hold the sampled tokens of one row, up to {self.row_length - 1}",
                )
            )
        if self.capacities and max(self.capacities) > places:
            raise ConfigError(
                Problem(where="packing.capacities", value=self.capacities, message=f"a micro-batch has {places} places")
            )

    @property
    def sizes(self) -> tuple[int, ...]:
        """Sizes of the flat arrays in use, ascending."""
        places = self.rows * self.row_length
        return tuple(sorted(set(self.capacities or (-(-places // 4), -(-places // 2), places))))


def check_row_length(config: PackingConfig, context_length: int) -> None:
    """Raise ConfigError, naming both numbers, when an episode may grow longer than a row of the trainer."""
    if context_length > config.row_length:
        message = f"an episode may be {context_length} tokens long; raise row_length or lower the episode's limit"
        raise ConfigError(Problem(where="packing.row_length", value=config.row_length, message=message))


def to_sample(trajectory: Trajectory, advantage: float) -> Sample:
    """Lay the turns flat. Only tokens that the policy sampled are marked in the completion mask.

    Raises ValueError when a turn's prompt does not extend what came before it: then something was rendered again
    instead of appended, and the loss would be taken on text that the policy never saw.
    """
    token_ids: list[int] = []
    mask: list[bool] = []
    logprobs: list[float] = []
    versions: list[int] = []
    for number, turn in enumerate(trajectory.turns):
        _check_extension(trajectory, number, token_ids, turn.prompt_ids)
        added = turn.prompt_ids[len(token_ids) :]
        completion = turn.completion
        token_ids += [*added, *completion.token_ids]
        mask += [False] * len(added) + [True] * len(completion.token_ids)
        logprobs += [0.0] * len(added) + list(completion.logprobs)
        versions += [UNSAMPLED_VERSION] * len(added) + list(completion.versions)
    return Sample(
        token_ids=tuple(token_ids),
        completion_mask=tuple(mask),
        logprobs=tuple(logprobs),
        versions=tuple(versions),
        advantage=advantage,
        task_id=trajectory.task.id,
        member=trajectory.member,
    )


def _check_extension(trajectory: Trajectory, number: int, before: list[int], prompt_ids: tuple[int, ...]) -> None:
    where = f"task {trajectory.task.id!r}, member {trajectory.member}, turn {number}"
    if not prompt_ids:
        raise ValueError(f"{where}: the prompt is empty; the first sampled token would have nothing that predicts it")
    for place, (old, new) in enumerate(zip(before, prompt_ids, strict=False)):
        if old != new:
            raise ValueError(
                f"{where}: the prompt has token {new} at position {place} where the policy saw {old}; "
                "a prompt must extend the tokens before it (append ids, never render earlier turns again)"
            )
    if len(prompt_ids) < len(before):
        raise ValueError(
            f"{where}: the prompt has {len(prompt_ids)} tokens, fewer than the {len(before)} that came before it"
        )


class _Placed(NamedTuple):
    sample: Sample
    row: int
    start: int
    segment: int


@dataclass
class _Row:
    """Samples of one row so far; `segments` counts them."""

    used: int = 0
    segments: int = 0


@dataclass
class Packer:
    """Takes samples as they arrive and gives full micro-batches (first fit over the rows of the open one).

    `weight` maps the number of sampled tokens of a sample to the weight of each (`Objective.weight`). Samples without
    sampled tokens are passed over. Not thread-safe.
    """

    config: PackingConfig
    weight: Callable[[int], float]
    _rows: list[_Row] = field(default_factory=list)
    _placed: list[_Placed] = field(default_factory=list)
    _sampled: int = 0

    def add(self, sample: Sample) -> Microbatch | None:
        """Place a sample; the micro-batch that was open comes back when there was no room left in it.

        Raises ValueError when the sample is longer than a row, or its lists differ in length.
        """
        _check_sample(sample, self.config)
        length, sampled = len(sample.token_ids), sum(sample.completion_mask)
        if not sampled:
            return None
        full = None
        row = self._first_fit(length, sampled)
        if row is None:
            full = self.flush()
            row = self._first_fit(length, sampled)
            assert row is not None, "an empty micro-batch holds any sample that is no longer than a row"
        place = self._rows[row]
        place.segments += 1
        self._placed.append(_Placed(sample, row, place.used, place.segments))
        place.used += length
        self._sampled += sampled
        return full

    def add_together(self, samples: Sequence[Sample]) -> Microbatch | None:
        """Place samples of which one micro-batch must hold all, in their order; otherwise as `add`.

        Raises ValueError as `add` does, and when one of them has no sampled token or no micro-batch could hold them.
        """
        for sample in samples:
            _check_sample(sample, self.config)
        sizes = [(len(sample.token_ids), sum(sample.completion_mask)) for sample in samples]
        if not all(sampled for _, sampled in sizes):
            raise ValueError(
                f"sample of task {samples[0].task_id!r}: one that is compared with it has no sampled token"
            )
        full = None
        if not self._holds(sizes):
            full = self.flush()
            if not self._holds(sizes):
                raise ValueError(
                    f"samples of task {samples[0].task_id!r} need a larger micro-batch; raise packing.rows"
                )
        for sample in samples:
            added = self.add(sample)
            assert added is None, "there was room for all of them"
        return full

    def _holds(self, sizes: Iterable[tuple[int, int]]) -> bool:
        """Whether samples of so many tokens, and sampled tokens, all fit what is open now."""
        used, sampled_tokens = [row.used for row in self._rows], self._sampled
        for length, sampled in sizes:
            sampled_tokens += sampled
            row = next((i for i, there in enumerate(used) if there + length <= self.config.row_length), len(used))
            if sampled_tokens > self.config.sizes[-1] or row == self.config.rows:
                return False
            if row == len(used):
                used.append(0)
            used[row] += length
        return True

    def flush(self) -> Microbatch | None:
        """The open micro-batch, padded; None when there is nothing in it."""
        if not self._placed:
            return None
        size = next(size for size in self.config.sizes if size >= self._sampled)
        microbatch = _lay_out(self._placed, self.config, size, self.weight)
        self._rows, self._placed, self._sampled = [], [], 0
        return microbatch

    def pack(self, samples: Iterable[Sample]) -> Iterator[Microbatch]:
        """All micro-batches of `samples`, the padded last one included."""
        for sample in samples:
            if (full := self.add(sample)) is not None:
                yield full
        if (last := self.flush()) is not None:
            yield last

    def _first_fit(self, length: int, sampled: int) -> int | None:
        if self._sampled + sampled > self.config.sizes[-1]:
            return None
        for number, row in enumerate(self._rows):
            if row.used + length <= self.config.row_length:
                return number
        if len(self._rows) == self.config.rows:
            return None
        self._rows.append(_Row())
        return len(self._rows) - 1


def _check_sample(sample: Sample, config: PackingConfig) -> None:
    where = f"sample of task {sample.task_id!r}, member {sample.member}"
    lengths = {len(sample.token_ids), len(sample.completion_mask), len(sample.logprobs), len(sample.versions)}
    if len(lengths) > 1:
        raise ValueError(f"{where}: tokens, mask, log-probs and versions have lengths {sorted(lengths)}, not one")
    if len(sample.token_ids) > config.row_length:
        raise ValueError(
            f"{where} has {len(sample.token_ids)} tokens, more than packing.row_length = {config.row_length}; "
            "raise row_length or lower the episode's limit of tokens"
        )
    if sample.completion_mask and sample.completion_mask[0]:
        raise ValueError(f"{where}: its first token is marked as sampled, but nothing comes before it to predict it")


def _lay_out(placed: list[_Placed], config: PackingConfig, size: int, weight: Callable[[int], float]) -> Microbatch:
    tokens, positions, segments = np.zeros((3, config.rows, config.row_length), dtype=np.int32)
    index, targets = np.zeros((2, size), dtype=np.int32)
    filled = 0
    for sample, row, start, segment in placed:
        end = start + len(sample.token_ids)
        tokens[row, start:end] = sample.token_ids
        positions[row, start:end] = np.arange(end - start)
        segments[row, start:end] = segment
        sampled = np.flatnonzero(sample.completion_mask)
        flat = slice(filled, filled + len(sampled))
        index[flat] = row * config.row_length + start + sampled - 1
        targets[flat] = np.asarray(sample.token_ids)[sampled]
        filled = flat.stop
    return Microbatch(
        tokens=jnp.asarray(tokens),
        positions=jnp.asarray(positions),
        segments=jnp.asarray(segments),
        index=jnp.asarray(index),
        targets=jnp.asarray(targets),
        sampled=_lay_out_sampled([each.sample for each in placed], size, weight),
    )


def _lay_out_sampled(samples: list[Sample], size: int, weight: Callable[[int], float]) -> SampledTokens:
    behavior, advantages, weights = np.zeros((3, size), dtype=np.float32)
    versions, sequence = np.full((2, size), -1, dtype=np.int32)
    filled = 0
    for number, sample in enumerate(samples):
        sampled = np.flatnonzero(sample.completion_mask)
        flat = slice(filled, filled + len(sampled))
        behavior[flat] = np.asarray(sample.logprobs)[sampled]
        versions[flat] = np.asarray(sample.versions)[sampled]
        advantages[flat] = sample.token_advantages or sample.advantage
        weights[flat] = weight(len(sampled))
        sequence[flat] = number
        filled = flat.stop
    return SampledTokens(
        behavior_logprobs=jnp.asarray(behavior),
        advantages=jnp.asarray(advantages),
        weights=jnp.asarray(weights),
        sequence=jnp.asarray(sequence),
        versions=jnp.asarray(versions),
        proximal_logprobs=_laid_flat([sample.proximal_logprobs for sample in samples], size),
        reference_logprobs=_laid_flat([sample.reference_logprobs for sample in samples], size),
        values=_laid_flat([sample.values for sample in samples], size),
        returns=_laid_flat([sample.returns for sample in samples], size),
    )


def _laid_flat(numbers: list[tuple[float, ...]], size: int) -> Array | None:
    """One number per sampled token, zeros at padding; None where samples have none."""
    flat = np.fromiter(itertools.chain.from_iterable(numbers), np.float32)
    return jnp.asarray(np.pad(flat, (0, size - len(flat)))) if len(flat) else None

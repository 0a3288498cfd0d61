"""Rows -> gradients, micro-batch by micro-batch, and one better adapter (or whole base) when the step is full.

The update is that of training: gradients are summed and divided once per optimizer step, and a step whose gradient is
not finite changes nothing. What is trained is an adapter on a frozen base, or, for models that are small enough to be
made in a run, the base itself: one code for both.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from components.algorithms.terms import Reference
from components.model.architecture import Architecture
from components.model.base import Base
from components.model.decoder import forward
from components.model.divergence import Side
from components.model.head import CHUNK, token_scores
from components.model.lockstep import made, program
from components.model.lora import Adapter
from components.model.placement import placement_of
from components.model.remat import Remat
from components.model.weights import Model
from components.telemetry.spans import span
from components.training.optimizer import Optimizer, OptimizerConfig, SkippedInARow
from components.training.packing import Microbatch, Packer, PackingConfig
from components.training.tuning.methods import Loss, Measured, Row, Sums, denominator_of, means
from components.training.update import (
    Apply,
    Score,
    Trained,
    TrainState,
    add_statistics,
    init_state,
    make_apply,
    make_score,
    zero_gradients,
)

Teacher = Base | None
References = Float[Array, "tokens"] | None


@runtime_checkable
class TuneAccumulate(Protocol):
    """One micro-batch more; see `make_accumulate`."""

    def __call__(
        self,
        base: Base | None,
        trained: Trained,
        gradients: Trained,
        microbatch: Microbatch,
        reference: References = None,
        teacher: Teacher = None,
    ) -> tuple[Trained, Sums]:
        """Add the gradient of `microbatch` to `gradients`, which is donated."""
        ...


@runtime_checkable
class Measure(Protocol):
    """The same numbers of a micro-batch without a gradient."""

    def __call__(
        self,
        base: Base | None,
        trained: Trained,
        microbatch: Microbatch,
        reference: References = None,
        teacher: Teacher = None,
    ) -> Sums:
        """The sums of a micro-batch."""
        ...


@dataclass(frozen=True, slots=True)
class Programs:
    """What runs on the device."""

    accumulate: TuneAccumulate
    apply: Apply
    measure: Measure
    score: Score


def make_programs(
    architecture: Architecture,
    loss: Loss,
    optimizer: Optimizer,
    *,
    teacher: Architecture | None = None,
    chunk: int = CHUNK,
    remat: Remat = "full",
) -> Programs:
    """The programs of a method on a model."""
    return Programs(
        accumulate=make_accumulate(architecture, loss, teacher, chunk, remat),
        apply=make_apply(optimizer),
        measure=make_measure(architecture, loss, teacher, chunk),
        score=make_score(architecture, temperature=1.0),
    )


@program
def make_accumulate(
    architecture: Architecture,
    loss: Loss,
    teacher: Architecture | None = None,
    chunk: int = CHUNK,
    remat: Remat = "full",
) -> TuneAccumulate:
    """A jitted (base, trained, gradients, microbatch, ...) -> (gradients, sums), the gradients donated.

    `trained` is an adapter on `base`, or a whole base in its place, `base` then being None. `reference` (log-probs of
    the micro-batch's tokens) and `teacher` (a base) are given where the loss asks for them.
    """

    def lossy(
        trained: Trained, base: Base | None, microbatch: Microbatch, reference: References, of: Teacher
    ) -> tuple[Float[Array, ""], Sums]:
        found = _look(architecture, teacher, base, trained, microbatch, reference, of, chunk=chunk, remat=remat)
        return loss.loss(found)

    def accumulate(
        base: Base | None,
        trained: Trained,
        gradients: Trained,
        microbatch: Microbatch,
        reference: References = None,
        teacher: Teacher = None,
    ) -> tuple[Trained, Sums]:
        added, sums = jax.grad(lossy, has_aux=True)(trained, base, microbatch, reference, teacher)
        return jax.tree.map(jnp.add, gradients, added), sums

    return made(jax.jit(accumulate, donate_argnums=(2,)))


@program
def make_measure(
    architecture: Architecture, loss: Loss, teacher: Architecture | None = None, chunk: int = CHUNK
) -> Measure:
    """A jitted (base, trained, microbatch, ...) -> sums."""

    def measure(
        base: Base | None,
        trained: Trained,
        microbatch: Microbatch,
        reference: References = None,
        of: Teacher = None,
    ) -> Sums:
        return loss.loss(_look(architecture, teacher, base, trained, microbatch, reference, of, chunk=chunk))[1]

    return made(jax.jit(measure))


def _look(
    architecture: Architecture,
    teacher_architecture: Architecture | None,
    base: Base | None,
    trained: Trained,
    microbatch: Microbatch,
    reference: References,
    teacher: Teacher,
    *,
    chunk: int,
    remat: Remat = "full",
) -> Measured:
    """What a loss looks at, of the places that predict a token which an assistant said."""
    whole, adapter = (trained, None) if isinstance(trained, Base) else (base, trained)
    assert whole is not None, "an adapter stands on a base"
    hidden = _predicting(architecture, whole, adapter, microbatch, remat=remat)
    if teacher is None:
        scores = token_scores(architecture, whole, hidden, microbatch.targets, chunk=chunk)
        return Measured(microbatch.sampled, scores=scores, reference=reference)
    assert teacher_architecture is not None, "a teacher has an architecture"
    taught = _predicting(teacher_architecture, teacher, None, microbatch, remat="none")
    sides = Side(architecture, whole, hidden), Side(teacher_architecture, teacher, jax.lax.stop_gradient(taught))
    return Measured(microbatch.sampled, policy=sides[0], teacher=sides[1])


def _predicting(
    architecture: Architecture, base: Base, adapter: Adapter | None, microbatch: Microbatch, *, remat: Remat
) -> Float[Array, "tokens d_model"]:
    hidden = forward(
        architecture, base, adapter, microbatch.tokens, microbatch.positions, microbatch.segments, remat=remat
    )
    return hidden.reshape(-1, hidden.shape[-1])[microbatch.index]


@dataclass
class _OpenStep:
    gradients: Trained
    sums: Sums = field(default_factory=dict)
    microbatches: int = 0


class Tuner:
    """Holds the train state. `learn` makes an optimizer step of rows; more than `max_skipped` in a row stop the run.

    `start` is the adapter that DPO may compare with: the one before the first step, also after a resume.
    """

    def __init__(
        self,
        base: Base | None,
        state: TrainState,
        loss: Loss,
        packing: PackingConfig,
        programs: Programs,
        *,
        start: Adapter | None = None,
        teacher: Model | None = None,
        max_skipped: int = 3,
    ) -> None:
        self.state = state
        self._base = base
        self._loss = loss
        self._packing = packing
        self._programs = programs
        self._reference = start if loss.reference is Reference.START else None
        self._teacher = None if teacher is None else teacher.base
        self._skipped = SkippedInARow(max_skipped, "tune.optimizer.max_skipped", "optimizer steps")
        self._step = _OpenStep(zero_gradients(state.adapter))

    def learn(self, rows: Sequence[Row]) -> dict[str, float]:
        """One optimizer step. Gives the numbers of the loss before it, and what the update did.

        Raises RunStoppedError when too many gradients in a row were not finite.
        """
        for microbatch in self._microbatches(rows):
            with span("microbatch", fill=microbatch.fill):
                self.take(microbatch)
        denominator = denominator_of(self._loss, rows)
        numbers = {name: float(value) for name, value in self.finish(denominator).items()}
        self._skipped.count(bool(numbers["skipped"]) and denominator > 0)
        return numbers | {"rows": len(rows)}

    def measure(self, rows: Sequence[Row]) -> dict[str, float]:
        """The numbers of the loss on these rows; nothing is learnt."""
        sums: Sums = {}
        for microbatch in self._microbatches(rows):
            with span("measure", fill=microbatch.fill):
                split = self._split(microbatch)
                reference = self._referred(split)
                found = self._programs.measure(self._base, self.state.adapter, split, reference, self._teacher)
            sums = add_statistics(sums, found)
        return means({name: float(value) for name, value in sums.items()}, denominator_of(self._loss, rows))

    def take(self, microbatch: Microbatch) -> None:
        """Add a micro-batch to the step that is open."""
        split = self._split(microbatch)
        reference = self._referred(split)
        step = self._step
        step.gradients, sums = self._programs.accumulate(
            self._base, self.state.adapter, step.gradients, split, reference, self._teacher
        )
        step.sums = add_statistics(step.sums, sums)
        step.microbatches += 1

    def finish(self, denominator: int) -> dict[str, Array | float]:
        """End the step. Its numbers are still on the device: reading one waits for it."""
        step = self._step
        self.state, applied = self._programs.apply(self.state, step.gradients, denominator)
        self._step = _OpenStep(zero_gradients(self.state.adapter))
        sums = {name: value / max(denominator, 1) for name, value in step.sums.items()}
        return {**sums, **applied, "microbatches": float(step.microbatches)}

    def _microbatches(self, rows: Iterable[Row]) -> Iterator[Microbatch]:
        packer = Packer(self._packing, _whole_weight)
        for row in rows:
            if (full := packer.add_together(row)) is not None:
                yield full
        if (last := packer.flush()) is not None:
            yield last

    def _split(self, microbatch: Microbatch) -> Microbatch:
        return placement_of(self.state.adapter).split(microbatch)

    def _referred(self, microbatch: Microbatch) -> References:
        if self._loss.reference is None:
            return None
        assert self._base is not None, "only an adapter is compared with a reference"
        return self._programs.score(self._base, self._reference, microbatch)


def make_tuner(
    model: Model,
    start: Adapter,
    loss: Loss,
    optimizer: Optimizer,
    packing: PackingConfig,
    *,
    teacher: Model | None = None,
    max_skipped: int = OptimizerConfig.max_skipped,
    remat: Remat = "full",
) -> Tuner:
    """A tuner of an adapter at step 0, starting from `start`."""
    programs = make_programs(
        model.architecture, loss, optimizer, teacher=None if teacher is None else teacher.architecture, remat=remat
    )
    state = placement_of(start).weights(init_state(start, optimizer))
    return Tuner(model.base, state, loss, packing, programs, start=start, teacher=teacher, max_skipped=max_skipped)


def finite(values: Mapping[str, float]) -> bool:
    """Whether all numbers are."""
    return bool(np.isfinite(list(values.values())).all())


def _whole_weight(length: int) -> float:
    """Tokens are weighed by the loss."""
    return 1.0

"""Groups as they arrive -> gradients at once, and one better adapter when the optimizer step is full.

Synchronous and single-threaded: the loop calls it on a worker thread.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from components.algorithms.advantages import has_signal
from components.algorithms.losses import KlEstimator
from components.algorithms.objective import Objective, Statistics, mean_statistics
from components.algorithms.shaping import kl_charges
from components.algorithms.terms import Reference
from components.errors import RunStoppedError
from components.model.base import Base
from components.model.lora import Adapter
from components.model.placement import placement_of
from components.telemetry.spans import span
from components.training.credit import Earned, batch_samples, earned, group_samples
from components.training.ledger import Fate
from components.training.packing import Microbatch, Packer, PackingConfig, to_sample
from components.training.update import (
    Accumulate,
    Apply,
    Score,
    TrainState,
    add_statistics,
    zero_gradients,
)
from components.types import Group, Sample, Trajectory


@dataclass
class _OpenStep:
    """Sums of the optimizer step that is being filled; `held` waits for the rest of the batch to be compared with."""

    packer: Packer
    gradients: Adapter
    statistics: Statistics = field(default_factory=dict)
    denominator: float = 0.0
    microbatches: int = 0
    groups_without_signal: int = 0
    groups_refused: int = 0
    rewards: list[float] = field(default_factory=list)
    advantages: list[float] = field(default_factory=list)
    charged_kl: list[float] = field(default_factory=list)
    held: list[Earned] = field(default_factory=list)


class Learner:
    """Holds the train state. Between `add` and `finish` lies an optimizer step of any number of groups.

    More than `max_skipped` steps in a row whose gradient is not finite stop the run.
    """

    def __init__(
        self,
        base: Base,
        state: TrainState,
        objective: Objective,
        packing: PackingConfig,
        *,
        accumulate: Accumulate,
        apply: Apply,
        score: Score,
        max_skipped: int = 3,
    ) -> None:
        self.state = state
        self._base = base
        self._objective = objective
        self._packing = packing
        self._accumulate = accumulate
        self._apply = apply
        self._score = score
        self._max_skipped = max_skipped
        self._skipped_in_a_row = 0
        # Never donated, so it is still there when the policy has moved on.
        self._reference = state.adapter if objective.reference is Reference.START else None
        self._step = self._open()

    def refuses(self, group: Group) -> bool:
        """True when another group shall be played in this one's place, because its rewards are all equal.

        Raises RunStoppedError when that happens too often in one optimizer step.
        """
        if not self._objective.dynamic_sampling or has_signal(_rewards(group)):
            return False
        self._step.groups_refused += 1
        limit = self._objective.refill_limit
        if self._step.groups_refused > limit:
            raise RunStoppedError(
                f"step {int(self.state.step) + 1}: {self._step.groups_refused} groups had rewards that are all equal, "
                f"the last {_rewards(group)[0]:g}, more than objective.refill_limit ({limit}); the tasks are too easy "
                "or too hard for this policy. Choose others, raise the limit, or set objective.dynamic_sampling: false"
            )
        return True

    def add(self, group: Group) -> Fate:
        """Turn the group's rewards into advantages and its full micro-batches into gradients. Returns its tokens' fate.

        A sample that pulls on nothing is left out of the forward pass, not of the denominator. Where a whole batch is
        compared, samples wait for `finish`, and count as trained.
        """
        rewards = _rewards(group)
        self._step.rewards += rewards
        self._step.groups_without_signal += not has_signal(rewards)
        members = self._earned([trajectory for trajectory in group.valid if trajectory.generated_tokens])
        if self._objective.compares_batches:
            self._step.held += members
            return Fate.TRAINED if members else Fate.FILTERED
        silent = [each.reward for each in group.valid if each.reward is not None and not each.generated_tokens]
        return self._take(group_samples(self._objective, members, silent))

    def finish(self) -> dict[str, float]:
        """End the optimizer step: apply what was summed, start the next, and return what happened.

        Raises RunStoppedError when too many gradients in a row were not finite; adapter and optimizer are then as they
        were before the first of these steps.
        """
        step = self._step
        if step.held:
            self._take(batch_samples(self._objective, step.held))
        self._train(step.packer.flush())
        with span("apply", step=int(self.state.step)):
            self.state, applied = self._apply(self.state, step.gradients, step.denominator)
            numbers = {key: float(value) for key, value in (step.statistics | applied).items()}
        self._step = self._open()
        self._count_skipped(bool(numbers["skipped"]) and step.denominator > 0)
        statistics = {key: numbers[key] for key in step.statistics}
        charged = {"reference_kl": float(np.mean(step.charged_kl))} if step.charged_kl else {}
        return {
            **mean_statistics(statistics, step.denominator),
            **charged,
            **{key: numbers[key] for key in applied},
            "microbatches": step.microbatches,
            "groups_without_signal": step.groups_without_signal,
            "groups_refused": step.groups_refused,
            **_spread("reward", step.rewards),
            **_spread("advantage", step.advantages),
        }

    def _take(self, samples: Sequence[Sample]) -> Fate:
        fate = Fate.FILTERED
        for sample in samples:
            advantages = sample.token_advantages or (sample.advantage,)
            self._step.advantages += advantages
            self._step.denominator += self._objective.share(sum(sample.completion_mask))
            if any(self._objective.has_gradient(advantage) for advantage in advantages):
                fate = Fate.TRAINED
                self._train(self._step.packer.add(sample))
        return fate

    def _earned(self, trajectories: Sequence[Trajectory]) -> list[Earned]:
        if not self._objective.charges_kl:
            return [earned(self._objective, trajectory, None) for trajectory in trajectories]
        samples = [to_sample(trajectory, 0.0) for trajectory in trajectories]
        references = self._reference_logprobs(samples)
        for sample, reference in zip(samples, references, strict=True):
            behavior = np.asarray(sample.logprobs)[np.asarray(sample.completion_mask)]
            self._step.charged_kl += kl_charges(behavior, reference, KlEstimator.K3).tolist()
        return [
            earned(self._objective, trajectory, reference)
            for trajectory, reference in zip(trajectories, references, strict=True)
        ]

    def _reference_logprobs(self, samples: Sequence[Sample]) -> list[np.ndarray]:
        """Of the sampled tokens of each sample; a packer lays them out in the order of the samples."""
        found = [np.zeros(0)]
        for microbatch in Packer(self._packing, self._objective.weight).pack(samples):
            with span("reference", fill=microbatch.fill):
                split = placement_of(self._base).split(microbatch)
                logprobs = np.asarray(self._score(self._base, self._reference, split), np.float64)
            found.append(logprobs[np.asarray(microbatch.sampled.mask)])
        ends = np.cumsum([sum(sample.completion_mask) for sample in samples])
        return np.split(np.concatenate(found), ends[:-1]) if samples else []

    def _count_skipped(self, skipped: bool) -> None:
        self._skipped_in_a_row = self._skipped_in_a_row + 1 if skipped else 0
        if self._skipped_in_a_row > self._max_skipped:
            raise RunStoppedError(
                f"the gradients of {self._skipped_in_a_row} optimizer steps in a row were not finite, more than "
                f"optimizer.max_skipped ({self._max_skipped}); nothing was changed by them. Lower the learning rate, "
                "or look for a weight of the base that is not finite"
            )

    def _train(self, microbatch: Microbatch | None) -> None:
        if microbatch is None:
            return
        step, adapter = self._step, self.state.adapter
        with span("microbatch", fill=microbatch.fill):
            microbatch = placement_of(self._base).split(microbatch)
            reference = (
                self._score(self._base, self._reference, microbatch) if self._objective.needs_reference else None
            )
            step.gradients, statistics = self._accumulate(
                self._base, adapter, step.gradients, microbatch, reference, self.state.step
            )
            step.statistics = add_statistics(step.statistics, statistics)
            step.microbatches += 1

    def _open(self) -> _OpenStep:
        packer = Packer(self._packing, self._objective.weight)
        return _OpenStep(packer=packer, gradients=zero_gradients(self.state.adapter))


def _rewards(group: Group) -> list[float]:
    return [trajectory.reward for trajectory in group.valid if trajectory.reward is not None]


def _spread(name: str, values: Sequence[float]) -> dict[str, float]:
    """Mean, standard deviation and range; all 0 where there is no value."""
    numbers = np.asarray(values or [0.0], np.float64)
    measures = {"mean": numbers.mean(), "std": numbers.std(), "min": numbers.min(), "max": numbers.max()}
    return {f"{name}_{measure}": float(value) for measure, value in measures.items()}

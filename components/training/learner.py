"""Groups as they arrive -> gradients at once, and one better adapter when the optimizer step is full.

Synchronous and single-threaded: the loop calls it on a worker thread.
"""

from dataclasses import dataclass, field

import numpy as np

from components.algorithms.advantages import ESTIMATORS, has_signal
from components.algorithms.objective import Objective, Statistics, mean_statistics
from components.model.base import Base
from components.model.lora import Adapter
from components.model.placement import placement_of
from components.telemetry.spans import span
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
from components.types import Group


@dataclass
class _OpenStep:
    """Sums of the optimizer step that is being filled."""

    packer: Packer
    gradients: Adapter
    statistics: Statistics = field(default_factory=dict)
    denominator: float = 0.0
    microbatches: int = 0
    groups_without_signal: int = 0
    rewards: list[float] = field(default_factory=list)


class Learner:
    """Holds the train state. Between `add` and `finish` lies an optimizer step of any number of groups."""

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
    ) -> None:
        self.state = state
        self._base = base
        self._objective = objective
        self._packing = packing
        self._accumulate = accumulate
        self._apply = apply
        self._score = score
        self._step = self._open()

    def add(self, group: Group) -> Fate:
        """Turn the group's rewards into advantages and its full micro-batches into gradients. Returns its tokens' fate.

        A sample that pulls on nothing is left out of the forward pass, not of the denominator.
        """
        valid = group.valid
        rewards = [trajectory.reward for trajectory in valid if trajectory.reward is not None]
        self._step.rewards += rewards
        self._step.groups_without_signal += not has_signal(rewards)
        fate = Fate.FILTERED
        for trajectory, advantage in zip(valid, ESTIMATORS[self._objective.advantage](rewards), strict=True):
            if not trajectory.generated_tokens:
                continue
            self._step.denominator += self._objective.share(trajectory.generated_tokens)
            if self._objective.has_gradient(advantage):
                fate = Fate.TRAINED
                self._train(self._step.packer.add(to_sample(trajectory, advantage)))
        return fate

    def finish(self) -> dict[str, float]:
        """End the optimizer step: apply what was summed, start the next, and return what happened."""
        step = self._step
        self._train(step.packer.flush())
        with span("apply", step=int(self.state.step)):
            self.state, applied = self._apply(self.state, step.gradients, step.denominator)
            numbers = {key: float(value) for key, value in (step.statistics | applied).items()}
        self._step = self._open()
        statistics = {key: numbers[key] for key in step.statistics}
        return {
            **mean_statistics(statistics, step.denominator),
            **{key: numbers[key] for key in applied},
            "microbatches": step.microbatches,
            "groups_without_signal": step.groups_without_signal,
            "reward_mean": float(np.mean(step.rewards)),
            "reward_std": float(np.std(step.rewards)),
        }

    def _train(self, microbatch: Microbatch | None) -> None:
        if microbatch is None:
            return
        step, adapter = self._step, self.state.adapter
        with span("microbatch", fill=microbatch.fill):
            microbatch = placement_of(self._base).split(microbatch)
            reference = self._score(self._base, None, microbatch) if self._objective.needs_reference else None
            step.gradients, statistics = self._accumulate(
                self._base, adapter, step.gradients, microbatch, reference, self.state.step
            )
            step.statistics = add_statistics(step.statistics, statistics)
            step.microbatches += 1

    def _open(self) -> _OpenStep:
        packer = Packer(self._packing, self._objective.weight)
        return _OpenStep(packer=packer, gradients=zero_gradients(self.state.adapter))

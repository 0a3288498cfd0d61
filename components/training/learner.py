"""Groups as they arrive -> gradients at once, and one better adapter when the optimizer step is full.

Where a step makes several updates, or a critic has to see the batch first, its samples wait for the last of them; what
no update changes (values and log-probs of the policy at the start, log-probs of the reference) is read as they arrive.

Synchronous and single-threaded: the loop calls it on a worker thread.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from jaxtyping import Array

from components.algorithms.advantages import has_signal
from components.algorithms.losses import KlEstimator
from components.algorithms.objective import Objective, Statistics
from components.algorithms.shaping import kl_charges
from components.algorithms.terms import Reference
from components.algorithms.values import explained_variance
from components.errors import RunStoppedError
from components.model.base import Base
from components.model.lora import Adapter
from components.model.placement import placement_of
from components.model.value_head import Critic
from components.telemetry.spans import count, span
from components.training.credit import Earned, batch_samples, critic_samples, earned, group_samples
from components.training.critic import CriticPrograms
from components.training.ledger import Fate
from components.training.minibatches import minibatches
from components.training.optimizer import SkippedInARow
from components.training.packing import Microbatch, Packer, PackingConfig, to_sample
from components.training.reading import Reading
from components.training.update import (
    LOGPROBS,
    Accumulate,
    Apply,
    Score,
    TrainState,
    add_statistics,
    next_step,
    zero_gradients,
)
from components.training.updates import Update, pass_kl, step_numbers
from components.types import Group, Sample, Trajectory


@dataclass
class _OpenUpdate:
    """Sums of the update that is being filled. `tokens` are those in micro-batches, which a critic's loss is over.

    `logprobs` are those of each micro-batch with its mask, and lie in the order of `samples`.
    """

    packer: Packer
    gradients: Adapter
    critic_gradients: Critic | None
    statistics: Statistics = field(default_factory=dict)
    denominator: float = 0.0
    tokens: int = 0
    microbatches: int = 0
    samples: list[Sample] = field(default_factory=list)
    logprobs: list[tuple[Array, np.ndarray]] = field(default_factory=list)


@dataclass
class _OpenStep:
    """What has come of the optimizer step that is being filled.

    `update` is there where a step makes one update, which begins with the first sample. `held` waits for the rest of
    the batch to be compared with, `samples` for the updates.
    """

    update: _OpenUpdate | None
    values: Reading
    scores: Reading
    held: list[Earned] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    groups_without_signal: int = 0
    groups_refused: int = 0
    rewards: list[float] = field(default_factory=list)
    advantages: list[float] = field(default_factory=list)
    charged_kl: list[float] = field(default_factory=list)
    judged: dict[str, float] = field(default_factory=dict)
    logprobs: dict[tuple[str, int], np.ndarray] = field(default_factory=dict)


class Learner:
    """Holds the train state. Between `add` and `finish` lies an optimizer step of any number of groups.

    `logprobs` are the trainer's of the last step, {(task, member): one for each sampled token}, before its first update
    on them. More than `max_skipped` updates in a row whose gradient is not finite stop the run. `critic` is what trains
    the critic of the state, where the objective needs one; `seed` is the run's, and shuffles minibatches.
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
        critic: CriticPrograms | None = None,
        seed: int = 0,
    ) -> None:
        self.state = state
        self.logprobs: Mapping[tuple[str, int], np.ndarray] = {}
        self._base = base
        self._objective = objective
        self._packing = packing
        self._accumulate = accumulate
        self._apply = apply
        self._score = score
        self._critic = critic
        self._seed = seed
        self._skipped = SkippedInARow(max_skipped, "optimizer.max_skipped", "optimizer steps")
        limit = 0 if critic is None else critic.max_skipped
        self._critic_skipped = SkippedInARow(limit, "critic.optimizer.max_skipped", "updates of the critic")
        self._waits = objective.several_updates or objective.needs_critic
        needed = {"proximal": objective.needs_proximal, "reference": objective.needs_reference}
        self._scores = tuple(name for name, need in needed.items() if need)
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
            if self._objective.needs_critic:
                self._step.values.add([member.sample for member in members])
            return Fate.TRAINED if members else Fate.FILTERED
        silent = [each.reward for each in group.valid if each.reward is not None and not each.generated_tokens]
        return self._take(group_samples(self._objective, members, silent))

    def finish(self) -> dict[str, float]:
        """End the optimizer step: make its updates, start the next step, and return what happened.

        Raises RunStoppedError when too many gradients in a row were not finite; adapter and optimizer are then as they
        were before the first of these steps.
        """
        step = self._step
        if step.held:
            self._take(self._compared(step))
        passes = self._pass_over(self._with_scores(step)) if step.update is None else [[self._end(step.update)]]
        self.logprobs, self._step = step.logprobs, self._open()
        for update in (update for each in passes for update in each):
            self._skipped.count(update.had_no_effect())
            self._critic_skipped.count(update.had_no_effect("critic_skipped"))
        charged = {"reference_kl": float(np.mean(step.charged_kl))} if step.charged_kl else {}
        return {
            **step_numbers(passes),
            **charged,
            **step.judged,
            "groups_without_signal": step.groups_without_signal,
            "groups_refused": step.groups_refused,
            **_spread("reward", step.rewards),
            **_spread("advantage", step.advantages),
        }

    def _compared(self, step: _OpenStep) -> list[Sample]:
        """The samples that were held, with what each token is worth beside the whole batch."""
        if not self._objective.needs_critic:
            return batch_samples(self._objective, step.held)
        values, after = step.values.finish()
        samples = critic_samples(self._objective, step.held, values, after)
        returns = np.concatenate([sample.returns for sample in samples])
        step.judged = {
            "explained_variance": explained_variance(np.concatenate(values), returns),
            "return_mean": float(returns.mean()),
        }
        return samples

    def _take(self, samples: Sequence[Sample]) -> Fate:
        """Train on the samples, or keep them for later."""
        fate, step = Fate.FILTERED, self._step
        for sample in samples:
            step.advantages += _advantages(sample)
        if any(self._pulls(sample) for sample in samples):
            fate = Fate.TRAINED
        if step.update is not None:
            self._fill(step.update, samples)
            return fate
        step.samples += samples
        if self._scores:
            step.scores.add([sample for sample in samples if self._pulls(sample)])
        return fate

    def _pulls(self, sample: Sample) -> bool:
        return any(self._objective.has_gradient(advantage) for advantage in _advantages(sample))

    def _with_scores(self, step: _OpenStep) -> list[Sample]:
        """The samples that were kept; those that pull with the log-probs that were read of them."""
        if not self._scores or not any(map(self._pulls, step.samples)):
            return step.samples
        of_next = zip(*step.scores.finish(), strict=True)

        def scored(sample: Sample) -> Sample:
            pairs = zip(self._scores, next(of_next), strict=True)
            named: dict[str, Any] = {f"{name}_logprobs": tuple(logprobs.tolist()) for name, logprobs in pairs}
            return replace(sample, **named)

        return [scored(sample) if self._pulls(sample) else sample for sample in step.samples]

    def _pass_over(self, samples: Sequence[Sample]) -> list[list[Update]]:
        """All updates of an optimizer step, pass by pass."""
        objective, number = self._objective, int(self.state.step)
        passes: list[list[Update]] = []
        for epoch in range(objective.epochs):
            parts = minibatches(samples, objective.minibatches, seed=self._seed, step=number, epoch=epoch)
            passes.append([self._update_on(part) for part in parts])
            if objective.max_kl is not None and pass_kl(passes[-1]) > objective.max_kl:
                break
        self.state = replace(self.state, step=next_step(self.state.step))
        return passes

    def _update_on(self, samples: Sequence[Sample]) -> Update:
        update = self._open_update()
        self._fill(update, samples)
        return self._end(update, steps=0)

    def _fill(self, update: _OpenUpdate, samples: Sequence[Sample]) -> None:
        for sample in samples:
            update.denominator += self._objective.share(sum(sample.completion_mask))
            if self._pulls(sample):
                update.samples.append(sample)
                self._train(update, update.packer.add(sample))

    def _end(self, update: _OpenUpdate, steps: int = 1) -> Update:
        """Apply what was summed."""
        self._train(update, update.packer.flush())
        critic, policy = self.state.critic, replace(self.state, critic=None)
        with span("apply", step=int(policy.step)):
            moved, applied = self._apply(policy, update.gradients, update.denominator, steps)
            if self._critic is not None and critic is not None:
                gradients, update.critic_gradients = update.critic_gradients, None
                assert gradients is not None, "opened with the critic"
                critic, of_critic = self._critic.apply(critic, gradients, update.tokens, policy.step)
                applied = applied | of_critic
            self.state = replace(moved, critic=critic)
            self._keep_logprobs(update)
            return Update(_floats(update.statistics), update.denominator, _floats(applied), update.microbatches)

    def _keep_logprobs(self, update: _OpenUpdate) -> None:
        """Of each trajectory those of the step's first update on it."""
        if not update.logprobs:
            return
        flat = np.concatenate([np.asarray(logprobs, np.float64)[mask] for logprobs, mask in update.logprobs])
        ends = np.cumsum([sum(sample.completion_mask) for sample in update.samples])[:-1]
        for sample, logprobs in zip(update.samples, np.split(flat, ends), strict=True):
            self._step.logprobs.setdefault((sample.task_id, sample.member), logprobs)

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
        """Of the sampled tokens of each sample."""
        if not samples:
            return []
        reading = Reading(self._packing, lambda microbatch: self._scored(("reference",), microbatch))
        reading.add(samples)
        (logprobs,) = reading.finish()
        return logprobs

    def _scored(self, names: Sequence[str], microbatch: Microbatch) -> list[np.ndarray]:
        """The log-probs by each of these policies."""
        policies = {"proximal": self.state.adapter, "reference": self._reference}
        split, found = placement_of(self._base).split(microbatch), []
        for name in names:
            with span(name, fill=microbatch.fill):
                found.append(np.asarray(self._score(self._base, policies[name], split)))
        return found

    def _judged(self, microbatch: Microbatch) -> tuple[np.ndarray, np.ndarray]:
        assert self._critic is not None, "an objective that needs a critic has one"
        assert self.state.critic is not None, "and so has its state"
        with span("values", fill=microbatch.fill):
            split = placement_of(self._base).split(microbatch)
            before, after = self._critic.judge(self._base, self.state.critic.weights, split)
            return np.asarray(before), np.asarray(after)

    def _train(self, update: _OpenUpdate, microbatch: Microbatch | None) -> None:
        """Add the gradients of a micro-batch: the policy's, and the critic's where there is one."""
        if microbatch is None:
            return
        adapter = self.state.adapter
        with span("microbatch", fill=microbatch.fill, step=int(self.state.step) + 1):
            mask = np.asarray(microbatch.sampled.mask)
            tokens = int(np.sum(mask))
            count("trainer_tokens", round(microbatch.fill * microbatch.tokens.size))
            count("trainer_sampled", tokens)
            microbatch = self._beside_reference(placement_of(self._base).split(microbatch))
            update.gradients, statistics = self._accumulate(
                self._base, adapter, update.gradients, microbatch, self.state.step
            )
            if LOGPROBS in statistics:
                update.logprobs.append((statistics[LOGPROBS], mask))
            update.statistics = add_statistics(update.statistics, statistics | self._fitted(update, microbatch))
            update.tokens += tokens
            update.microbatches += 1

    def _beside_reference(self, microbatch: Microbatch) -> Microbatch:
        """With the reference's log-probs, where they count and were not read before."""
        sampled = microbatch.sampled
        if not self._objective.needs_reference or sampled.reference_logprobs is not None:
            return microbatch
        logprobs = self._score(self._base, self._reference, microbatch)
        return replace(microbatch, sampled=replace(sampled, reference_logprobs=logprobs))

    def _fitted(self, update: _OpenUpdate, microbatch: Microbatch) -> Statistics:
        critic = self.state.critic
        if self._critic is None or critic is None:
            return {}
        assert update.critic_gradients is not None, "opened with the critic"
        update.critic_gradients, statistics = self._critic.fit(
            self._base, critic.weights, update.critic_gradients, microbatch
        )
        return statistics

    def _open(self) -> _OpenStep:
        return _OpenStep(
            update=None if self._waits else self._open_update(),
            values=Reading(self._packing, self._judged),
            scores=Reading(self._packing, lambda microbatch: self._scored(self._scores, microbatch)),
        )

    def _open_update(self) -> _OpenUpdate:
        critic = self.state.critic
        return _OpenUpdate(
            packer=Packer(self._packing, self._objective.weight),
            gradients=zero_gradients(self.state.adapter),
            critic_gradients=None if critic is None else zero_gradients(critic.weights),
        )


def _rewards(group: Group) -> list[float]:
    return [trajectory.reward for trajectory in group.valid if trajectory.reward is not None]


def _advantages(sample: Sample) -> tuple[float, ...]:
    return sample.token_advantages or (sample.advantage,)


def _floats(numbers: Mapping[str, Array]) -> dict[str, float]:
    return {key: float(value) for key, value in numbers.items()}


def _spread(name: str, values: Sequence[float]) -> dict[str, float]:
    """Mean, standard deviation and range; all 0 where there is no value."""
    numbers = np.asarray(values or [0.0], np.float64)
    measures = {"mean": numbers.mean(), "std": numbers.std(), "min": numbers.min(), "max": numbers.max()}
    return {f"{name}_{measure}": float(value) for measure, value in measures.items()}

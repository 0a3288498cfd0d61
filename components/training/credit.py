"""The trajectories of a group -> samples whose tokens know what they are worth.

A trajectory earns its episode's reward, of which the environment may have given parts turn by turn; a penalty for its
length and a charge for each token's distance to the reference come off it. What is left becomes one advantage for the
whole, one for each turn, or, where a batch is compared, what followed each token until the batch is there.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float

from components.algorithms.advantages import ESTIMATORS
from components.algorithms.returns import discounted_returns, generalised_advantages, normalised, turn_advantages
from components.algorithms.shaping import kl_charges, overlong_penalty
from components.algorithms.terms import Credit, Terms
from components.training.packing import to_sample
from components.types import Outcome, Sample, Trajectory


@dataclass(frozen=True)
class Earned:
    """What one trajectory has earned: its sample, its sampled tokens by turn, and its rewards by turn and by token.

    `turn_rewards` are of the turns in which a token was sampled, and add up to the whole less `token_charges`.
    `truncated`: a limit cut the episode, so that the state after its last token was not its end.
    """

    sample: Sample
    turn_lengths: tuple[int, ...]
    turn_rewards: tuple[float, ...]
    token_charges: Float[np.ndarray, " tokens"]
    truncated: bool = False

    @property
    def whole(self) -> float:
        """The reward of the episode, after all that comes off it."""
        return math.fsum(self.turn_rewards) - math.fsum(self.token_charges)

    def per_turn(self) -> list[float]:
        """The same turn by turn."""
        ends = np.cumsum(self.turn_lengths)
        charges = [math.fsum(part) for part in np.split(self.token_charges, ends[:-1])]
        return [reward - charge for reward, charge in zip(self.turn_rewards, charges, strict=True)]

    def per_token(self) -> list[float]:
        """The same token by token: a turn's reward comes with its last token."""
        rewards = -self.token_charges
        for end, reward in zip(np.cumsum(self.turn_lengths), self.turn_rewards, strict=True):
            rewards[end - 1] += reward
        return [float(reward) for reward in rewards]


def earned(terms: Terms, trajectory: Trajectory, reference_logprobs: Float[np.ndarray, " tokens"] | None) -> Earned:
    """What a trajectory with a reward and at least one sampled token has earned.

    `reference_logprobs` are of its sampled tokens, and given exactly when the objective charges the KL.
    """
    assert trajectory.reward is not None, "a failed trajectory is worth nothing, not 0"
    turns = [turn for turn in trajectory.turns if turn.completion.token_ids]
    credited = [turn.reward if terms.credit is Credit.TURN else 0.0 for turn in turns]
    length = trajectory.generated_tokens
    penalty = 0.0
    if terms.overlong_penalty:
        ramp = overlong_penalty(length, limit=terms.overlong_limit, buffer=terms.overlong_buffer)
        penalty = terms.overlong_penalty * ramp
    credited[-1] += trajectory.reward - math.fsum(credited) + penalty
    charges = np.zeros(length)
    if reference_logprobs is not None:
        sampled = np.concatenate([turn.completion.logprobs for turn in turns])
        charges = terms.kl_coefficient * kl_charges(sampled, reference_logprobs, terms.kl_estimator)
    lengths = tuple(len(turn.completion.token_ids) for turn in turns)
    truncated = trajectory.outcome is Outcome.TRUNCATED
    return Earned(to_sample(trajectory, 0.0), lengths, tuple(credited), charges, truncated)


def group_samples(terms: Terms, members: Sequence[Earned], silent_rewards: Sequence[float]) -> list[Sample]:
    """The members with the advantage that each has over its group.

    `silent_rewards` are those of members without a sampled token, which are compared with and not trained on.
    """
    estimator = ESTIMATORS[terms.advantage]
    if terms.credit is Credit.EPISODE:
        advantages = estimator([member.whole for member in members] + list(silent_rewards))
        return [replace(member.sample, advantage=value) for member, value in zip(members, advantages, strict=False)]
    silent = [[reward] for reward in silent_rewards]
    by_turn = turn_advantages([member.per_turn() for member in members] + silent, estimator)
    return [_with_token_advantages(member, values) for member, values in zip(members, by_turn, strict=False)]


def batch_samples(terms: Terms, members: Sequence[Earned]) -> list[Sample]:
    """The members of all groups of an optimizer step, with the advantage that each token has over all others."""
    returns = []
    for member in members:
        rewards = member.per_token()
        returns.append(discounted_returns(rewards, [True] * len(rewards), discount=terms.discount))
    advantages = iter(normalised([value for each in returns for value in each]))
    return [
        replace(member.sample, token_advantages=tuple(next(advantages) for _ in each))
        for member, each in zip(members, returns, strict=True)
    ]


def critic_samples(
    terms: Terms,
    members: Sequence[Earned],
    values: Sequence[np.ndarray],
    values_after: Sequence[np.ndarray],
) -> list[Sample]:
    """The members of an optimizer step, each token with its advantage over what a critic expected, and its return.

    One flat array per member over its sampled tokens: `values` are of the state in which a token was sampled,
    `values_after` of the one after it, which counts behind the last token of a truncated episode, with `bootstrap`.
    """
    judged = []
    for member, before, after in zip(members, values, values_after, strict=True):
        advantages, returns = generalised_advantages(
            member.per_token(),
            before.tolist(),
            [True] * len(before),
            discount=terms.discount,
            decay=terms.decay,
            last_value=float(after[-1]) if member.truncated and terms.bootstrap else 0.0,
        )
        judged.append(
            replace(
                member.sample,
                token_advantages=tuple(advantages),
                values=tuple(before.tolist()),
                returns=tuple(returns),
            )
        )
    if not terms.whiten:
        return judged
    whitened = iter(normalised([advantage for sample in judged for advantage in sample.token_advantages]))
    return [replace(sample, token_advantages=tuple(next(whitened) for _ in sample.values)) for sample in judged]


def _with_token_advantages(member: Earned, by_turn: Sequence[float]) -> Sample:
    values = [value for value, length in zip(by_turn, member.turn_lengths, strict=True) for _ in range(length)]
    return replace(member.sample, token_advantages=tuple(values))

"""Rewards of a group -> how much better than its group each trajectory did.

Plain floats, as no gradient flows through an advantage. A failed member has no reward and never comes here: the caller
leaves it out, so that a broken tool says nothing about the policy. A group that says nothing (fewer than two members,
or all rewards equal) has advantage exactly 0. Equal is decided by max - min: the standard deviation of eight float32
rewards of 0.7 is 6e-8, not 0, and dividing by it would push every sample by a full unit.
"""

import math
from collections.abc import Callable, Hashable, Mapping, Sequence

from components.algorithms.terms import AdvantageKind

STD_EPSILON = 1e-6


def has_signal(rewards: Sequence[float]) -> bool:
    """True when the rewards of a group differ; only then can the group teach anything."""
    return len(rewards) > 1 and max(rewards) - min(rewards) > 0


def grpo(rewards: Sequence[float]) -> list[float]:
    """(reward - mean) / (standard deviation + 1e-6) within one group (arXiv:2402.03300, section 4.1.2).

    The standard deviation is the sample's (n - 1 in the denominator). `[1, 0, 0, 1]` -> `[+0.866, -0.866, ...]`.
    """
    if not has_signal(rewards):
        return [0.0] * len(rewards)
    centred = dr_grpo(rewards)
    deviation = math.sqrt(math.fsum(value * value for value in centred) / (len(rewards) - 1))
    return [value / (deviation + STD_EPSILON) for value in centred]


def dr_grpo(rewards: Sequence[float]) -> list[float]:
    """reward - mean within one group, not divided by the spread (arXiv:2503.20783, section 3.2)."""
    if not has_signal(rewards):
        return [0.0] * len(rewards)
    mean = math.fsum(rewards) / len(rewards)
    return [reward - mean for reward in rewards]


def rloo(rewards: Sequence[float]) -> list[float]:
    """reward - mean of the OTHER members of one group (arXiv:2402.14740, eq. 7). A group of one has none: 0."""
    if not has_signal(rewards):
        return [0.0] * len(rewards)
    others = len(rewards) - 1
    total = math.fsum(rewards)
    return [reward - (total - reward) / others for reward in rewards]


ESTIMATORS: Mapping[AdvantageKind, Callable[[Sequence[float]], list[float]]] = {
    AdvantageKind.GRPO: grpo,
    AdvantageKind.DR_GRPO: dr_grpo,
    AdvantageKind.RLOO: rloo,
}


def by_group(kind: AdvantageKind, rewards: Sequence[float], group_ids: Sequence[Hashable]) -> list[float]:
    """Advantages in the order of `rewards`; members of a group are those with one id, wherever they stand.

    Raises ValueError when a reward is not finite or the two lists differ in length.
    """
    if len(rewards) != len(group_ids):
        raise ValueError(f"{len(rewards)} rewards but {len(group_ids)} group ids; there must be one id per reward")
    members: dict[Hashable, list[int]] = {}
    for row, (reward, group_id) in enumerate(zip(rewards, group_ids, strict=True)):
        if not math.isfinite(reward):
            raise ValueError(f"the reward of row {row} (group {group_id!r}) is {reward}; a reward is a finite number")
        members.setdefault(group_id, []).append(row)
    advantages = [0.0] * len(rewards)
    for rows in members.values():
        for row, advantage in zip(rows, ESTIMATORS[kind]([rewards[row] for row in rows]), strict=True):
            advantages[row] = advantage
    return advantages

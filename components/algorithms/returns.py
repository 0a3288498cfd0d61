"""Rewards in the order in which they came -> what followed each sampled token, and how much better that was.

Lists run over all tokens of a trajectory, with a mask that is true where the policy sampled one. The state after a
turn's last token is the one before the next turn's first token: what the environment wrote in between neither
discounts, nor has a value, nor bootstraps. Results are 0 at those tokens.
"""

import math
from collections.abc import Callable, Sequence

from components.algorithms.advantages import STD_EPSILON


def discounted_returns(rewards: Sequence[float], mask: Sequence[bool], *, discount: float) -> list[float]:
    """At each sampled token its reward and the discounted rewards of all sampled tokens after it."""
    returns, after = [0.0] * len(rewards), 0.0
    for place in reversed(range(len(rewards))):
        if mask[place]:
            after = returns[place] = rewards[place] + discount * after
    return returns


def generalised_advantages(
    rewards: Sequence[float],
    values: Sequence[float],
    mask: Sequence[bool],
    *,
    discount: float = 1.0,
    decay: float = 1.0,
    last_value: float = 0.0,
) -> tuple[list[float], list[float]]:
    """GAE over sampled tokens (arXiv:1506.02438, eq. 16): advantages, and returns (advantage + value) to fit values to.

    `values[t]` is that of the state in which token t was sampled, `decay` is lambda, and `last_value` that of the state
    in which an episode was cut; 0 where it ended.
    """
    advantages, returns = [0.0] * len(rewards), [0.0] * len(rewards)
    next_value, after = last_value, 0.0
    for place in reversed(range(len(rewards))):
        if not mask[place]:
            continue
        surprise = rewards[place] + discount * next_value - values[place]
        after = advantages[place] = surprise + discount * decay * after
        returns[place] = after + values[place]
        next_value = values[place]
    return advantages, returns


def turn_advantages(
    turn_rewards: Sequence[Sequence[float]], estimator: Callable[[Sequence[float]], list[float]]
) -> list[list[float]]:
    """Per member and turn: what was earned from that turn on, against the members of the group that got as far.

    `turn_rewards[member][turn]`; an estimator is one of `advantages.ESTIMATORS`. Where all was earned in the last turn
    and all members have as many, this is the advantage of the whole episode at every turn.
    """
    to_go = [[math.fsum(rewards[turn:]) for turn in range(len(rewards))] for rewards in turn_rewards]
    advantages = [[0.0] * len(rewards) for rewards in turn_rewards]
    for turn in range(max(map(len, to_go), default=0)):
        members = [number for number, rewards in enumerate(to_go) if len(rewards) > turn]
        for number, advantage in zip(members, estimator([to_go[each][turn] for each in members]), strict=True):
            advantages[number][turn] = advantage
    return advantages


def normalised(returns: Sequence[float]) -> list[float]:
    """(return - mean) / (standard deviation, n - 1, + 1e-6) over the tokens of a batch (arXiv:2501.03262, section 3.2).

    The mean is the baseline. Returns that are all equal say nothing: exactly 0, decided by max - min.
    """
    if len(returns) < 2 or max(returns) - min(returns) <= 0:
        return [0.0] * len(returns)
    mean = math.fsum(returns) / len(returns)
    spread = math.sqrt(math.fsum((value - mean) ** 2 for value in returns) / (len(returns) - 1))
    return [(value - mean) / (spread + STD_EPSILON) for value in returns]

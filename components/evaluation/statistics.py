"""Scores of an evaluation -> a number with an interval, and whether two policies differ.

An interval is of 95 % unless told otherwise. Which one is used is decided by the scores alone:

- scores that are all 0 or 1: Wilson's score interval (Wilson 1927, doi:10.1080/01621459.1927.10502953). A bootstrap of
  20 right answers out of 20 would claim certainty, Wilson says 0.84 to 1.
- other scores: the percentile bootstrap of the mean (Efron 1979, doi:10.1214/aos/1176344552), seeded.
- paired 0/1 scores: Newcombe's interval of a paired difference (1998, his method 10,
  doi:10.1002/(SICI)1097-0258(19981130)17:22<2635::AID-SIM954>3.0.CO;2-C); others: bootstrap over pairs.

One score stands for one task. Where a task was sampled several times, give its mean: tasks are what was drawn.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from jaxtyping import Float

from components.errors import DataError, Problem

Scores = Float[np.ndarray, "items"]

RESAMPLES = 10_000
_EXACT_UP_TO = 16  # signs of 16 differences are 65536 cases; beyond that signs are drawn at random
_CHUNK = 4_000_000  # numbers drawn at a time, which bounds the memory


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean with its interval. `count` is the number of scores, `method` how the interval was found."""

    value: float
    low: float
    high: float
    count: int
    method: str
    confidence: float = 0.95

    def __str__(self) -> str:
        return f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}]"


@dataclass(frozen=True, slots=True)
class PairedDifference:
    """After minus before, on the same tasks. `p_value` is two-sided, of "the policies are equally good".

    `better`, `worse` and `equal` count the tasks on which the later policy scored higher, lower and the same.
    """

    difference: Estimate
    p_value: float
    better: int
    worse: int
    equal: int


def mean_interval(
    scores: Sequence[int | float] | np.ndarray, *, confidence: float = 0.95, seed: int = 0, resamples: int = RESAMPLES
) -> Estimate:
    """Mean of all scores with its interval. Raises DataError for no scores or one that is not finite."""
    checked = _checked(scores, "scores")
    if _is_binary(checked):
        value = float(checked.mean())
        low, high = wilson_interval(int(checked.sum()), len(checked), confidence=confidence)
        return Estimate(value, low, high, len(checked), "wilson", confidence)
    return _bootstrap_estimate(checked, confidence, seed, resamples)


def wilson_interval(successes: int, count: int, *, confidence: float = 0.95) -> tuple[float, float]:
    """Wilson's score interval of a proportion (1927). Raises ValueError unless 0 <= successes <= count, count > 0."""
    if not 0 <= successes <= count or count == 0:
        raise ValueError(f"{successes} successes out of {count} are no proportion")
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    share = successes / count
    middle = (share + z**2 / (2 * count)) / (1 + z**2 / count)
    half = z / (1 + z**2 / count) * math.sqrt(share * (1 - share) / count + z**2 / (4 * count**2))
    # At 0 and 1 the formula touches the end exactly; floating point misses it by a hair.
    return (0.0 if successes == 0 else middle - half), (1.0 if successes == count else middle + half)


def bootstrap_interval(
    scores: Scores, *, confidence: float = 0.95, seed: int = 0, resamples: int = RESAMPLES
) -> tuple[float, float]:
    """Percentile bootstrap of the mean: `resamples` means of as many scores drawn with replacement."""
    generator = np.random.default_rng(seed)
    per_chunk = max(1, _CHUNK // len(scores))
    means = [
        scores[generator.integers(0, len(scores), (min(per_chunk, resamples - done), len(scores)))].mean(axis=1)
        for done in range(0, resamples, per_chunk)
    ]
    low, high = np.quantile(np.concatenate(means), [(1 - confidence) / 2, (1 + confidence) / 2])
    return float(low), float(high)


def paired_difference(
    before: Sequence[int | float] | np.ndarray,
    after: Sequence[int | float] | np.ndarray,
    *,
    confidence: float = 0.95,
    seed: int = 0,
    resamples: int = RESAMPLES,
) -> PairedDifference:
    """After minus before, task by task: `before[i]` and `after[i]` are of the same task.

    Raises DataError for no scores, unequal numbers of them, or one that is not finite.
    """
    first, second = _checked(before, "before"), _checked(after, "after")
    if len(first) != len(second):
        where, message = "before, after", "a paired difference needs the scores of the same tasks, in the same order"
        raise DataError(Problem(where=where, value=(len(first), len(second)), message=message))
    change = second - first
    if _is_binary(first) and _is_binary(second):
        low, high = _newcombe_interval(first, second, confidence)
        estimate = Estimate(float(change.mean()), low, high, len(change), "newcombe", confidence)
    else:
        estimate = _bootstrap_estimate(change, confidence, seed, resamples)
    better, worse = int((change > 0).sum()), int((change < 0).sum())
    p_value = sign_flip_p_value(change, seed=seed, resamples=resamples)
    return PairedDifference(estimate, p_value, better, worse, len(change) - better - worse)


def sign_flip_p_value(differences: Scores, *, seed: int = 0, resamples: int = RESAMPLES) -> float:
    """Two-sided permutation test of "each difference could as well have the other sign" (Fisher 1935).

    The share of all assignments of signs whose sum is at least as far from 0 as the one seen. Exact where all
    differences are of one size (then it is the sign test, for 0/1 scores McNemar's) or few; otherwise of `resamples`
    random assignments, the one seen counted among them.
    """
    changes = differences[differences != 0]
    if len(changes) == 0:
        return 1.0
    sizes = np.abs(changes)
    if np.all(sizes == sizes[0]):
        return _sign_test(int((changes > 0).sum()), len(changes))
    seen = abs(float(changes.sum())) * (1 - 1e-12)
    if len(changes) <= _EXACT_UP_TO:
        sums = np.zeros(1)
        for each in sizes:
            sums = np.concatenate([sums + each, sums - each])
        return float(np.mean(np.abs(sums) >= seen))
    generator = np.random.default_rng(seed)
    per_chunk = max(1, _CHUNK // len(sizes))
    extreme = 1
    for done in range(0, resamples, per_chunk):
        signs = generator.choice(np.array([-1.0, 1.0]), (min(per_chunk, resamples - done), len(sizes)))
        extreme += int((np.abs(signs @ sizes) >= seen).sum())
    return extreme / (resamples + 1)


def pass_at_k(correct: int, samples: int, k: int) -> float:
    """Unbiased chance that one of `k` samples is right, from `correct` of `samples` (arXiv:2107.03374, eq. 1).

    Raises ValueError unless 0 <= correct <= samples and 1 <= k <= samples: fewer samples than k say nothing about it.
    """
    if not 0 <= correct <= samples or not 1 <= k <= samples:
        raise ValueError(f"pass@{k} cannot be estimated from {correct} right of {samples} samples")
    return 1.0 - math.comb(samples - correct, k) / math.comb(samples, k)


def _bootstrap_estimate(scores: Scores, confidence: float, seed: int, resamples: int) -> Estimate:
    low, high = bootstrap_interval(scores, confidence=confidence, seed=seed, resamples=resamples)
    return Estimate(float(scores.mean()), low, high, len(scores), "bootstrap", confidence)


def _newcombe_interval(before: Scores, after: Scores, confidence: float) -> tuple[float, float]:
    count = len(before)
    both = int((before * after).sum())
    only_after, only_before = int(after.sum()) - both, int(before.sum()) - both
    neither = count - both - only_after - only_before
    later, earlier = (both + only_after) / count, (both + only_before) / count
    later_low, later_high = wilson_interval(both + only_after, count, confidence=confidence)
    earlier_low, earlier_high = wilson_interval(both + only_before, count, confidence=confidence)
    agreement: float = both * neither - only_after * only_before
    if agreement > 0:
        agreement = max(agreement - count / 2, 0.0)
    spread = math.sqrt(later * (1 - later) * earlier * (1 - earlier)) * count**2
    phi = agreement / spread if spread else 0.0
    return (
        later - earlier - _combined(later - later_low, earlier_high - earlier, phi),
        later - earlier + _combined(later_high - later, earlier - earlier_low, phi),
    )


def _combined(first: float, second: float, correlation: float) -> float:
    return math.sqrt(max(0.0, first**2 - 2 * correlation * first * second + second**2))


def _sign_test(positive: int, count: int) -> float:
    tail = sum(math.comb(count, each) for each in range(max(positive, count - positive), count + 1))
    return min(1.0, 2 * tail / 2**count)


def _is_binary(scores: Scores) -> bool:
    return bool(np.all((scores == 0) | (scores == 1)))


def _checked(scores: Sequence[int | float] | np.ndarray, where: str) -> Scores:
    checked = np.asarray(scores, dtype=np.float64)
    if checked.size == 0:
        raise DataError(Problem(where=where, value=[], message="there are no evaluation rows, so there is no metric"))
    if checked.ndim != 1 or not np.all(np.isfinite(checked)):
        raise DataError(Problem(where=where, value=checked.tolist(), message="must be a list of finite numbers"))
    return checked

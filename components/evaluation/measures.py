"""The scores of two policies on the same tasks -> measures before and after, their paired differences, and tool use."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from components.errors import RunStoppedError
from components.evaluation.statistics import mean_interval, paired_difference
from components.types import Failure, Trajectory

GREEDY_ACCURACY = "greedy accuracy"

TOOL_CATEGORIES = ("solved / called a tool", "not solved / called none")
"""A confusion matrix has one list of names for both sides: rows are read before the stroke, columns after it."""


@dataclasses.dataclass(frozen=True, slots=True)
class Scores:
    """What one policy did: per task its greedy reward (None where the episode failed), and its sampled rewards.

    `called` says per task whether the greedy episode called a tool; `failures` are those of the greedy episodes.
    """

    greedy: list[float | None]
    sampled: list[list[float]]
    called: list[bool] = dataclasses.field(default_factory=list)
    failures: list[Failure] = dataclasses.field(default_factory=list)


def scores_of(greedy: Sequence[Trajectory], sampled: Sequence[Sequence[Trajectory]]) -> Scores:
    """The scores of the episodes of one policy, a greedy one and some sampled ones per task."""
    return Scores(
        greedy=[trajectory.reward for trajectory in greedy],
        sampled=[[member.reward for member in members if member.reward is not None] for members in sampled],
        called=[trajectory.tool_calls > 0 for trajectory in greedy],
        failures=[trajectory.failure for trajectory in greedy if trajectory.failure],
    )


def measure_names(samples: int) -> list[str]:
    """What is measured where each task is sampled so many times, the headline first."""
    sampled = ["sampled accuracy", f"pass@{samples}"] if samples else []
    return [GREEDY_ACCURACY, "greedy reward", *sampled]


def compare(before: Scores, after: Scores, *, solved_at: float, max_failed_share: float) -> list[dict[str, Any]]:
    """Each measure before, after, and their paired difference over the tasks that both policies finished.

    Raises RunStoppedError where more than `max_failed_share` of the tasks failed.
    """
    pairs = [
        (first, second)
        for first, second in zip(before.greedy, after.greedy, strict=True)
        if first is not None and second is not None
    ]
    _refuse_failures(len(before.greedy) - len(pairs), before, after, max_failed_share)
    solved = [(float(first >= solved_at), float(second >= solved_at)) for first, second in pairs]
    measured = [solved, pairs]
    samples = max(map(len, before.sampled + after.sampled), default=0)
    if samples:
        sampled = [(_share(first, solved_at), _share(second, solved_at)) for first, second in _both(before, after)]
        measured += [sampled, [(float(first > 0), float(second > 0)) for first, second in sampled]]
    return [_measure(name, each) for name, each in zip(measure_names(samples), measured, strict=True)]


def tool_matrix(scores: Scores, *, solved_at: float) -> list[list[int]]:
    """How many tasks were solved (first row) or not, by episodes that called a tool (first column) or none."""
    counts = [[0, 0], [0, 0]]
    for reward, called in zip(scores.greedy, scores.called, strict=True):
        if reward is not None:
            counts[int(reward < solved_at)][int(not called)] += 1
    return counts


def _refuse_failures(failed: int, before: Scores, after: Scores, max_failed_share: float) -> None:
    tasks = len(before.greedy)
    if failed <= max_failed_share * tasks:
        return
    last = (before.failures + after.failures)[-1]
    raise RunStoppedError(
        f"{failed} of {tasks} evaluation tasks failed, more than max_failed_share = {max_failed_share:g} allows, so "
        f"that the others are no fair sample; the last failure, of kind {last.kind!r}, said: {last.message}"
    )


def _measure(name: str, pairs: Sequence[tuple[float, float]]) -> dict[str, Any]:
    first, second = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    return {
        "name": name,
        "before": dataclasses.asdict(mean_interval(first)),
        "after": dataclasses.asdict(mean_interval(second)),
        "paired": dataclasses.asdict(paired_difference(first, second)),
    }


def _both(before: Scores, after: Scores) -> list[tuple[list[float], list[float]]]:
    """The samples of the tasks of which both policies finished at least one."""
    return [(first, second) for first, second in zip(before.sampled, after.sampled, strict=True) if first and second]


def _share(rewards: Sequence[float], solved_at: float) -> float:
    return sum(reward >= solved_at for reward in rewards) / len(rewards)

"""A run's measures and what its steps wrote down -> all its numbers under flat names, as a table of runs shows them.

Kubeflow Pipelines fails a step whose metrics hold NaN, an infinity or None, and keeps a number as a double: so only
finite numbers are given, and integers that a double holds exactly.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from components.telemetry.run_files import RunRecord

LARGEST_INTEGER = 2**53
"""The largest up to which a double holds every integer."""


def measure_scalars(measures: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The measures before and after, the interval of each improvement, and what the closing table says of them."""
    scalars: dict[str, Any] = {}
    for measure in measures:
        name = measure["name"].removeprefix("greedy ").replace(" ", "_").replace("@", "_at_")
        change = measure["paired"]["difference"]
        scalars[f"{name}_before"] = measure["before"]["value"]
        scalars[f"{name}_after"] = measure["after"]["value"]
        scalars[f"{name}_after_low"] = measure["after"]["low"]
        scalars[f"{name}_after_high"] = measure["after"]["high"]
        scalars[f"{name}_improvement"] = change["value"]
        scalars[f"{name}_improvement_low"] = change["low"]
        scalars[f"{name}_improvement_high"] = change["high"]
    headline = measures[0]
    scalars["accuracy_after_interval"] = [headline["after"]["low"], headline["after"]["high"]]
    scalars["improvement_p_value"] = headline["paired"]["p_value"]
    scalars["evaluation_tasks"] = headline["after"]["count"]
    return scalars


def run_scalars(run: RunRecord) -> dict[str, int | float]:
    """Every scalar of the run: its measures, and what training cost and did."""
    summary = run.summary
    rewards = run.series("reward_mean")
    sync = summary.get("proofs", {}).get("sync", {})
    last = run.metrics[-1] if run.metrics else {}
    found = {
        **summary,
        **{f"tokens_{fate}": amount for fate, amount in run.tokens.items()},
        "reward_first_step": rewards[0][1] if rewards else None,
        "reward_last_step": rewards[-1][1] if rewards else None,
        "trainer_seconds_total": sum(run.seconds("trainer").values()),
        "sync_worst_canary_difference": sync.get("worst_canary_difference"),
        **{f"{key}_last_step": last.get(key) for key in ("loss", "entropy", "reference_kl", "mismatch_kl")},
    }
    return finite(found)


def finite(values: Mapping[str, Any]) -> dict[str, int | float]:
    """The values that are numbers which a metric can hold; all else is left out. True and False become 1 and 0."""
    kept: dict[str, int | float] = {}
    for name, value in values.items():
        if isinstance(value, int) and abs(value) <= LARGEST_INTEGER:
            kept[name] = int(value)
        elif isinstance(value, float) and math.isfinite(value):
            kept[name] = float(value)
    return kept

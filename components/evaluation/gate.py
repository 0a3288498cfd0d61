"""What a run measured and kept account of -> whether it may be promoted, with every reason.

A run passes when it is better than what it started from by more than `margin`, for certain (the low end of the paired
difference's interval), and when its numbers can be trusted: every token has a fate, each version of the weights was
proven before it served, and nothing that was logged or trained is NaN or infinite. To fail is an answer and no error.
"""

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Annotated, Any

from pydantic import Field

from components import storage
from components.config import config, from_json
from components.telemetry.progress import say
from components.telemetry.run_files import RunRecord, read_run, tokens_unaccounted, update_summary

GATE = "gate.json"
PROMOTE, EXPORT, STOP = "promote", "export", "stop"
"""What happens next: export and promotion, export alone, or neither."""


@config
class GateConfig:
    """`measure` is one of the evaluation's; its paired difference must lie above `margin` with its whole interval.

    A run that is refused is exported all the same, unless `export_refused` is false.
    """

    measure: str = "greedy accuracy"
    margin: Annotated[float, Field(ge=-1, le=1)] = 0.0
    export_refused: bool = True


@dataclass(frozen=True, slots=True)
class Verdict:
    """`decision` is what happens next, `measured` the difference in words; a run without `reasons` has passed."""

    decision: str
    reasons: tuple[str, ...]
    measured: str


def gate(*, section: str, promotion: str, run_folder: str) -> tuple[str, str]:
    """The decision and its reasons in words; both are kept in `gate.json` and the run's summary.

    `promotion` is the section of the recipe that says whether a run that passes is promoted.
    """
    settings = from_json(GateConfig, section, where="gate")
    verdict = judge(read_run(run_folder), settings, promoted=bool(json.loads(promotion).get("enabled", True)))
    storage.write_text(storage.join(run_folder, GATE), json.dumps(asdict(verdict), indent=2) + "\n")
    text = verdict.measured if not verdict.reasons else "; ".join(verdict.reasons)
    values: dict[str, Any] = {"gate": asdict(verdict)}
    if verdict.decision != PROMOTE:
        values["promotion"] = f"not promoted: {text if verdict.reasons else 'promote.enabled is false'}"
    update_summary(run_folder, values)
    say(f"{'passed' if not verdict.reasons else 'refused'}: {text}")
    return verdict.decision, text


def judge(run: RunRecord, settings: GateConfig, *, promoted: bool = True) -> Verdict:
    """The verdict on what a run has written down; `promoted` is whether one that passes is to be promoted."""
    reasons = (*_no_improvement(run, settings), *_unsafe(run))
    measured = _in_words(_paired(run, settings.measure), settings.measure)
    if reasons:
        return Verdict(EXPORT if settings.export_refused else STOP, reasons, measured)
    return Verdict(PROMOTE if promoted else EXPORT, (), measured)


def _no_improvement(run: RunRecord, settings: GateConfig) -> Iterator[str]:
    paired = _paired(run, settings.measure)
    if paired is None:
        names = ", ".join(str(each["name"]) for each in run.measures) or "nothing"
        yield f"the evaluation has no paired difference of {settings.measure!r}; it measured {names}"
    elif not paired["difference"]["low"] > settings.margin:
        yield f"{_in_words(paired, settings.measure)}, which is not surely above the margin of {settings.margin:g}"


def _unsafe(run: RunRecord) -> Iterator[str]:
    """Every reason not to trust the run's numbers. What was never written down counts as wrong."""
    stages = run.summary.get("stages", ["train"])
    if "train" in stages:
        yield from _unsafe_training(run)
    if "tune" in stages and not run.summary.get("tuning", {}).get("steps"):
        yield "the run has no account of its tuning"
    for lines in (run.tuning, run.metrics):
        if found := next((line for line in lines if line.get("not_finite")), None):
            yield f"{', '.join(found['not_finite'])} was not finite at step {found['step']}"
    if not run.summary.get("adapter_is_finite"):
        yield "the trained adapter holds a number that is not finite, or was not looked at"


def _unsafe_training(run: RunRecord) -> Iterator[str]:
    """Tokens and versions of what was played and learnt from."""
    if not run.tokens.get("generated"):
        yield "the run has no account of its tokens"
    elif missing := tokens_unaccounted(run.tokens):
        yield f"{missing} generated tokens have no fate"
    sync = run.summary.get("proofs", {}).get("sync", {})
    if not sync.get("versions"):
        yield "no version of the weights was proven between trainer and engine"
    elif not math.isfinite(sync["worst_canary_difference"]):
        yield f"a canary differs by {sync['worst_canary_difference']} between trainer and engine"


def _paired(run: RunRecord, measure: str) -> Mapping[str, Any] | None:
    return next((each.get("paired") for each in run.measures if each["name"] == measure), None)


def _in_words(paired: Mapping[str, Any] | None, measure: str) -> str:
    if paired is None:
        return f"{measure} was not compared"
    difference = paired["difference"]
    return (
        f"{measure} changed by {difference['value']:+.3f} "
        f"({difference['low']:+.3f} to {difference['high']:+.3f}, {difference['count']} tasks)"
    )

"""What may be promoted: better for certain, and numbers that can be trusted."""

import json
from pathlib import Path
from typing import Any

import pytest

from components.evaluation.gate import GateConfig, gate, judge
from components.evaluation.statistics import paired_difference
from components.telemetry.run_files import RunRecord, read_run

SUMMARY: dict[str, Any] = {
    "tokens": {"generated": 10, "trained": 8, "stale": 0, "filtered": 2, "failed": 0, "surplus": 0, "in_flight": 0},
    "proofs": {"sync": {"versions": 3, "worst_canary_difference": 1e-6}},
    "adapter_is_finite": True,
}
BETTER = ([0.0] * 20, [1.0] * 20)
"""Solved before and after, task by task."""


def run(before: list[float], after: list[float], *metrics: dict[str, Any], **summary: Any) -> RunRecord:
    difference = paired_difference(before, after)
    from dataclasses import asdict

    measure = {"name": "greedy accuracy", "paired": asdict(difference)}
    return RunRecord(summary=SUMMARY | summary, metrics=metrics, measures=[measure])


def test_a_run_that_is_better_for_certain_is_promoted() -> None:
    verdict = judge(run(*BETTER), GateConfig())
    assert (verdict.decision, verdict.reasons) == ("promote", ())
    assert verdict.measured == "greedy accuracy changed by +1.000 (+0.772 to +1.000, 20 tasks)"


def test_a_difference_that_may_be_chance_is_refused_and_the_reason_says_its_interval() -> None:
    verdict = judge(run([0.0] * 8, [1.0, *[0.0] * 7]), GateConfig())
    assert verdict.decision == "export"
    (reason,) = verdict.reasons
    assert reason.startswith("greedy accuracy changed by +0.125 (-0.")
    assert reason.endswith("which is not surely above the margin of 0")


def test_the_whole_interval_must_lie_above_the_margin() -> None:
    record = run(*BETTER)
    low = record.measures[0]["paired"]["difference"]["low"]
    assert judge(record, GateConfig(margin=low - 1e-9)).decision == "promote"
    assert judge(record, GateConfig(margin=low)).decision == "export"


def test_whether_a_refused_run_is_exported_and_a_good_one_promoted_is_a_setting() -> None:
    worse = run([1.0] * 20, [0.0] * 20)
    assert judge(worse, GateConfig(export_refused=False)).decision == "stop"
    assert judge(run(*BETTER), GateConfig(export_refused=False), promoted=False).decision == "export"


@pytest.mark.parametrize(
    ("summary", "reason"),
    [
        ({"tokens": {}}, "the run has no account of its tokens"),
        ({"tokens": SUMMARY["tokens"] | {"trained": 7}}, "1 generated tokens have no fate"),
        ({"proofs": {}}, "no version of the weights was proven"),
        ({"proofs": {"sync": {"versions": 1, "worst_canary_difference": float("nan")}}}, "a canary differs by nan"),
        ({"adapter_is_finite": False}, "the trained adapter holds a number that is not finite"),
    ],
)
def test_numbers_that_cannot_be_trusted_are_never_promoted(summary: dict[str, Any], reason: str) -> None:
    verdict = judge(run(*BETTER, **summary), GateConfig())
    assert verdict.decision == "export"
    assert [each[: len(reason)] for each in verdict.reasons] == [reason]


def test_a_metric_that_was_not_finite_is_named_with_its_step() -> None:
    verdict = judge(run(*BETTER, {"step": 1}, {"step": 2, "not_finite": ["loss"]}), GateConfig())
    assert verdict.reasons == ("loss was not finite at step 2",)


def test_what_was_not_measured_is_no_improvement() -> None:
    verdict = judge(RunRecord(summary=SUMMARY), GateConfig())
    assert verdict.reasons == ("the evaluation has no paired difference of 'greedy accuracy'; it measured nothing",)


def test_the_step_writes_decision_and_reasons_down(tmp_path: Path) -> None:
    record = run([0.0], [0.0])
    (tmp_path / "summary.json").write_text(json.dumps(record.summary))
    (tmp_path / "evaluation.json").write_text(json.dumps({"measures": record.measures}))
    decision, reasons = gate(section="{}", promotion="{}", run_folder=str(tmp_path))
    assert decision == "export"
    summary = read_run(str(tmp_path)).summary
    assert summary["gate"] == json.loads((tmp_path / "gate.json").read_text())
    assert summary["gate"]["reasons"] == [reasons]
    assert summary["promotion"] == f"not promoted: {reasons}"

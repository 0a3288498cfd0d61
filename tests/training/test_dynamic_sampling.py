"""DAPO from disk to disk: refused groups are replaced until the batch is whole, and their tokens are filtered."""

import json

import pytest

from components.errors import RunStoppedError
from components.telemetry.metrics import read_metrics
from components.telemetry.run_files import read_run
from components.training.run import train
from tests.audit import audit
from tests.tiny_run import ENVIRONMENT, TRAIN
from tests.training.test_run import arguments


def objective(**values) -> dict[str, object]:
    return {"preset": "dapo", "overlong_limit": 8, "overlong_buffer": 2, **values}


def test_every_step_has_its_whole_batch_and_refused_groups_are_filtered(tiny_inputs, tmp_path):
    train(**arguments(tiny_inputs, tmp_path, objective=objective()))
    lines = read_metrics(str(tmp_path / "run" / "metrics.jsonl"))
    refused = sum(line["groups_refused"] for line in lines)
    assert refused > 0
    rollout = TRAIN["rollout"]
    assert {line["episodes"] for line in lines} == {rollout["tasks_per_step"] * rollout["group_size"]}
    assert {line["groups_without_signal"] for line in lines} == {0}
    tokens = read_run(str(tmp_path / "run")).summary["tokens"]
    assert tokens["filtered"] > 0
    assert tokens["generated"] == sum(tokens[fate] for fate in tokens if fate != "generated")
    assert {name: count for name, count in audit(tmp_path / "run").items() if count} == {"steps": TRAIN["steps"]}
    journal = [json.loads(line) for line in (tmp_path / "run" / "journal.jsonl").read_text().splitlines()]
    assert sum(event["event"] == "rejected" for event in journal) == refused


def test_a_policy_that_never_gives_a_mix_ends_the_run_with_clear_words(tiny_inputs, tmp_path):
    call = arguments(tiny_inputs, tmp_path, objective=objective(refill_limit=5))
    call["environment"] = json.dumps(ENVIRONMENT | {"use": "tests.training.no_mix:NoMix"})
    with pytest.raises(RunStoppedError, match=r"6 groups had rewards that are all equal.*refill_limit \(5\)"):
        train(**call)

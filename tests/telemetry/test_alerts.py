import pytest

from components.telemetry.alerts import AlertConfig, Alerts, heartbeat

WELL = {
    "effective_sample_size": 0.98,
    "mismatch_kl": 1e-5,
    "episodes": 100,
    "failures": {},
    "groups": 10,
    "groups_without_signal": 3,
    "trainer_seconds": {"busy": 9.0, "waiting for tools": 1.0, "starting": 100.0},
    "tool_calls": 2.0,
    "malformed_calls": 0.1,
}
ILL = {
    "effective_sample_size": {"effective_sample_size": 0.3},
    "mismatch": {"mismatch_kl": 1e-3},
    "failures": {"failures": {"tool": 2, "grader": 1}},
    "silent_groups": {"groups_without_signal": 7},
    "trainer_idle": {"trainer_seconds": {"busy": 7.0, "waiting for tools": 3.0}},
    "malformed_calls": {"malformed_calls": 3.0},
}


def rules(alerts: Alerts, numbers: dict[str, object], steps: range) -> list[str]:
    return [alert.rule for step in steps for alert in alerts.look(step, numbers)]


def test_a_run_that_is_well_raises_nothing():
    assert rules(Alerts(AlertConfig()), WELL, range(20)) == []


@pytest.mark.parametrize("rule", ILL)
def test_each_rule_tells_once_what_to_look_at_and_again_after_it_was_well(rule):
    alerts = Alerts(AlertConfig(window=2))
    assert rules(alerts, WELL, range(1, 6)) == []
    assert rules(alerts, WELL | ILL[rule], range(6, 12)) == [rule]
    assert alerts.standing == {rule}
    assert rules(alerts, WELL, range(12, 15)) == []
    assert rules(alerts, WELL | ILL[rule], range(15, 18)) == [rule]
    assert len(alerts.told[0].text) > 60


def test_one_odd_step_is_no_alarm():
    alerts = Alerts(AlertConfig(window=5))
    assert rules(alerts, WELL, range(1, 6)) == []
    assert rules(alerts, WELL | {"groups_without_signal": 10}, range(6, 7)) == []


@pytest.mark.parametrize(
    ("rule", "key"),
    [
        ("effective_sample_size", "min_effective_sample_size"),
        ("mismatch", "max_mismatch_growth"),
        ("failures", "max_failure_share"),
        ("silent_groups", "max_silent_groups"),
        ("trainer_idle", "max_trainer_idle"),
        ("malformed_calls", "max_malformed_share"),
    ],
)
def test_a_rule_that_is_null_is_off(rule, key):
    alerts = Alerts(AlertConfig(window=1, **{key: None}))
    rules(alerts, WELL, range(1, 6))
    assert rules(alerts, WELL | ILL[rule], range(6, 9)) == []


def test_a_small_sample_at_the_trainers_own_version_is_a_fault_of_arithmetic():
    alerts = Alerts(AlertConfig(window=1))
    (apart,) = alerts.look(1, WELL | {"effective_sample_size": 0.2, "same_version_share": 1.0})
    assert "compare their dtypes" in apart.text
    (stale,) = Alerts(AlertConfig(window=1)).look(1, WELL | {"effective_sample_size": 0.2, "same_version_share": 0.4})
    assert "0.20, below 0.5" in stale.text
    assert "max_staleness" in stale.text


def test_an_empty_step_raises_nothing():
    assert rules(Alerts(AlertConfig(window=1)), {"loss": 0.0}, range(3)) == []


def test_an_old_heartbeat_is_told_and_a_young_one_is_not():
    assert heartbeat(AlertConfig(), 599.0) is None
    assert "--resume" in heartbeat(AlertConfig(), 900.0)
    assert heartbeat(AlertConfig(max_heartbeat_seconds=None), 1e6) is None

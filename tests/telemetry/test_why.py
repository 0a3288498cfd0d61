from components.telemetry.run_files import RunRecord
from components.telemetry.why import explained, losses, unaccounted_share


def run(*steps: dict[str, float]) -> RunRecord:
    lines = [
        {"step": number, "seconds": sum(states.values()), "trainer_seconds": states}
        for number, states in enumerate(steps, start=1)
    ]
    return RunRecord(metrics=lines)


def test_the_largest_loss_comes_first_with_what_to_do():
    found = losses(run({"busy": 6.0, "waiting for tools": 3.0, "waiting for graders": 1.0}))
    assert [(loss.cause, loss.seconds, loss.share) for loss in found] == [("tools", 3.0, 0.3), ("graders", 1.0, 0.1)]
    assert "max_concurrency" in found[0].advice


def test_compiling_at_first_is_no_fault_and_compiling_for_ever_is_one():
    well = run({"compiling": 9.0, "busy": 1.0}, {"busy": 2.0}, {"busy": 2.0}, {"busy": 2.0})
    assert "as they must" in explained(well)
    assert "shapes differ" not in explained(well)
    ill = run(*({"compiling": 3.0, "busy": 1.0} for _ in range(5)))
    assert "shapes differ from step to step" in explained(ill)


def test_seconds_without_a_name_are_told():
    record = RunRecord(metrics=[{"step": 1, "seconds": 10.0, "trainer_seconds": {"busy": 9.0}}])
    assert unaccounted_share(record) == 0.1


def test_a_run_without_steps_has_nothing_to_explain():
    assert "no step yet" in explained(RunRecord())

from components.telemetry.tool_calls import quantile, tool_numbers


def test_each_tool_has_its_calls_errors_and_quantiles():
    calls = [("search", "ok", seconds / 100) for seconds in range(1, 100)] + [("search", "timeout", 5.0)]
    told = tool_numbers([*calls, ("sql", "raised", 0.5)])
    assert told["search"] == {
        "calls": 100,
        "errors": {"timeout": 1},
        "p50": 0.5,
        "p95": 0.95,
        "p99": 0.99,
        "max": 5.0,
    }
    assert told["sql"] == {"calls": 1, "errors": {"raised": 1}, "p50": 0.5, "p95": 0.5, "p99": 0.5, "max": 0.5}


def test_a_quantile_is_a_value_that_was_measured():
    assert [quantile([1.0, 2.0, 3.0, 4.0], share) for share in (0.0, 0.25, 0.5, 0.51, 1.0)] == [1.0, 1.0, 2.0, 3.0, 4.0]

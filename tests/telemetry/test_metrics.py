import json
import math

import jax.numpy as jnp
import numpy as np
import pytest

from components.errors import DataError
from components.telemetry.metrics import MetricsLog, read_metrics


@pytest.fixture
def uri(tmp_path):
    return str(tmp_path / "run" / "metrics.jsonl")


def test_steps_are_read_back_in_order(uri):
    log = MetricsLog(uri)
    log.write(1, {"loss": 0.5, "preset": "grpo", "tokens": {"trained": 3}, "histogram": [1, 2], "best": None})
    log.write(2, {"loss": 0.25})
    assert read_metrics(uri) == [
        {"step": 1, "loss": 0.5, "preset": "grpo", "tokens": {"trained": 3}, "histogram": [1, 2], "best": None},
        {"step": 2, "loss": 0.25},
    ]


def test_numbers_that_are_not_finite_are_null_and_named(uri):
    MetricsLog(uri).write(1, {"loss": math.nan, "kl": np.float32(np.inf), "deep": {"a": [0.0, -math.inf]}, "ok": 1.0})
    with open(uri) as file:
        line = json.loads(file.read(), parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))
    assert line["loss"] is None
    assert line["kl"] is None
    assert line["deep"] == {"a": [0.0, None]}
    assert line["not_finite"] == ["loss", "kl", "deep.a.1"]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (np.float32(0.5), 0.5),
        (np.int64(3), 3),
        (np.bool_(True), True),
        (np.array([1.0, 2.0]), [1.0, 2.0]),
        (jnp.float32(0.5), 0.5),
        (jnp.int32(3), 3),
        (jnp.bfloat16(0.5), 0.5),
        (jnp.array([1, 2]), [1, 2]),
        (jnp.array([0.5], jnp.bfloat16), [0.5]),
    ],
)
def test_scalars_and_arrays_of_array_libraries_are_plain_numbers(uri, value, expected):
    MetricsLog(uri).write(1, {"value": value})
    assert read_metrics(uri) == [{"step": 1, "value": expected}]


def test_another_value_is_refused_by_name(uri):
    with pytest.raises(TypeError, match=r"deep\.thing: object"):
        MetricsLog(uri).write(1, {"deep": {"thing": object()}})
    assert read_metrics(uri) == []


def test_a_line_cut_by_a_crash_is_ignored_and_the_next_run_writes_on(uri):
    MetricsLog(uri).write(1, {"loss": 1.0})
    with open(uri, "a") as file:
        file.write('{"step": 2, "lo')
    assert read_metrics(uri) == [{"step": 1, "loss": 1.0}]
    MetricsLog(uri).write(2, {"loss": 0.5})
    assert read_metrics(uri) == [{"step": 1, "loss": 1.0}, {"step": 2, "loss": 0.5}]


def test_a_resume_takes_back_the_steps_after_its_checkpoint(uri):
    first = MetricsLog(uri)
    for step in (1, 2, 3, 4):
        first.write(step, {"loss": float(step)})
    resumed = MetricsLog(uri, resumed_after=2)
    assert [line["step"] for line in read_metrics(uri)] == [1, 2]
    resumed.write(3, {"loss": 30.0})
    assert read_metrics(uri)[2:] == [{"step": 3, "loss": 30.0}]


def test_a_step_written_twice_counts_once(uri):
    log = MetricsLog(uri)
    log.write(1, {"loss": 1.0})
    log.write(1, {"loss": 2.0})
    assert read_metrics(uri) == [{"step": 1, "loss": 2.0}]


def test_a_damaged_line_is_named(uri):
    MetricsLog(uri).write(1, {"loss": 1.0})
    with open(uri, "a") as file:
        file.write("not json\n")
    with pytest.raises(DataError, match=r"metrics\.jsonl:2"):
        read_metrics(uri)


def test_no_log_is_no_steps(uri):
    assert read_metrics(uri) == []

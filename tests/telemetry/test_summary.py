import pytest

from components.telemetry import formatting
from components.telemetry.summary import format_table

SUMMARY = {
    "steps": 12,
    "wall_seconds": 168.4,
    "reward_before": 0.0625,
    "reward_after": 1.0,
    "accuracy_before": 0.07,
    "accuracy_after": 0.97,
    "accuracy_after_interval": [0.915, 0.99],
    "tokens": {"generated": 52349, "trained": 44000, "filtered": 8000, "in_flight": 349},
    "trainer_idle_share": 0.29,
    "engine_idle_share": 0.11,
    "trainer_seconds": {"busy": 65.0, "waiting for generation": 29.2, "waiting for weights": 0.0},
    "engine_seconds": {"decode": 88.0, "waiting for tools": 3.9, "waiting for admission": 12.0},
    "report_html": "runs/quickstart/report.html",
}


def test_the_table_says_what_a_person_wants_to_know_at_the_end_of_a_run():
    assert format_table(SUMMARY).splitlines() == [
        "Result",
        "  reward                   0.0625 -> 1",
        "  accuracy                 7 % -> 97 %  (95 % interval 92 % to 99 %)",
        "Tokens",
        "  generated                52 349   100 %",
        "  trained                  44 000    84 %",
        "  stale                         0     0 %",
        "  filtered                  8 000    15 %",
        "  failed                        0     0 %",
        "  surplus                       0     0 %",
        "  in flight                   349   0.7 %",
        "Waiting",
        "  trainer idle             29 %",
        "  trainer, for generation  29 s",
        "  engine idle              11 %",
        "  engine, for admission    12 s",
        "  engine, for tools        3.9 s",
        "Run",
        "  time                     12 steps in 2 min 48 s",
        "  report                   runs/quickstart/report.html",
    ]


def test_tokens_without_a_fate_are_shouted():
    table = format_table({"tokens": {"generated": 10, "trained": 8}})
    assert "NOT ACCOUNTED FOR  2" in table


def test_an_empty_summary_is_an_empty_table():
    assert format_table({}) == ""


@pytest.mark.parametrize(
    ("share", "text"),
    [(0.0, "0 %"), (0.034, "3.4 %"), (0.07, "7 %"), (0.0996, "10 %"), (0.955, "96 %"), (1.0, "100 %"), (None, "–")],
)
def test_percentages(share, text):
    assert formatting.percent(share).replace("\u202f", " ") == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0 s"), (0.0042, "4.2 ms"), (0.42, "0.42 s"), (9.96, "10 s"), (119, "119 s"), (168.4, "2 min 48 s")],
)
def test_times(value, text):
    assert formatting.seconds(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(12480, "12 480"), (0.0672, "0.0672"), (-0.5, "−0.5"), (3.66e-6, "3.66 × 10⁻⁶"), (float("nan"), "–")],
)
def test_numbers(value, text):
    assert formatting.number(value).replace("\u202f", " ") == text


def test_what_came_of_the_gate_is_a_result() -> None:
    text = format_table({"promotion": "not promoted: no gain"})
    assert text == "Result\n  promotion  not promoted: no gain"

"""Several runs side by side: what differs, what came of each, and the page."""

import re
from pathlib import Path
from typing import Any

import pytest

from components import storage
from components.telemetry.comparison import (
    ComparedRun,
    differing_parameters,
    flattened,
    intervals,
    made_of,
    render_comparison,
    scalar_metrics,
    write_comparison,
)
from components.telemetry.run_files import RunRecord, read_run
from tests.telemetry.synthetic import HOSTILE, write_run


def run(name: str, summary: dict[str, Any] | None = None, *, whole: bool = True, **parameters: Any) -> ComparedRun:
    return ComparedRun(name, RunRecord(summary=summary or {}), parameters=parameters, whole=whole)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> list[ComparedRun]:
    folders = [str(tmp_path_factory.mktemp("runs") / name) for name in ("first", "second")]
    for seed, folder in enumerate(folders):
        write_run(folder, steps=6, trajectories=2, seed=seed)
    return [ComparedRun(folder, read_run(folder), {"seed": seed}) for seed, folder in enumerate(folders)]


@pytest.fixture(scope="module")
def page(pair: list[ComparedRun]) -> str:
    return render_comparison(pair)


def test_nested_settings_are_compared_by_their_paths_and_lists_as_values() -> None:
    assert flattened({"a": {"b": 1, "c": [1, 2]}, "d": {}}) == {"a.b": 1, "a.c": [1, 2]}


def test_only_what_differs_is_told_and_a_missing_value_is_none() -> None:
    runs = [run("a", lr=1e-4, steps=10, same=[1]), run("b", lr=2e-4, same=[1])]
    assert differing_parameters(runs) == {"lr": {"a": 1e-4, "b": 2e-4}, "steps": {"a": 10, "b": None}}


def test_a_run_of_which_only_the_sent_parameters_are_known_does_not_differ_by_its_silence() -> None:
    runs = [run("a", lr=1e-4, steps=10), run("b", whole=False, lr=2e-4)]
    assert differing_parameters(runs) == {"lr": {"a": 1e-4, "b": 2e-4}}


def test_metrics_are_the_finite_numbers_of_the_summaries_with_the_tokens_by_fate() -> None:
    first = run("a", {"accuracy_after": 0.5, "recipe": "x", "flag": True, "bad": float("nan")})
    second = run("b", {"accuracy_after": 0.75, "tokens": {"generated": 10, "trained": 8}})
    assert scalar_metrics([first, second]) == {
        "accuracy_after": {"a": 0.5, "b": 0.75},
        "tokens_generated": {"a": None, "b": 10},
        "tokens_trained": {"a": None, "b": 8},
    }


def test_the_page_stands_alone_and_shows_both_runs(page: str) -> None:
    assert "<script" not in page
    assert not re.search(r"(?:src|href)=\"(?!#|data:)", page)
    assert page.count("<svg") >= 3
    assert ">first<" in page.replace("</i>", "<")
    assert "96\u202f%" in page or "97\u202f%" in page
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert len(ids) == len(set(ids))


def test_the_better_number_is_marked_and_a_setting_is_not(pair: list[ComparedRun]) -> None:
    faster = ComparedRun("fast", RunRecord(summary={"wall_seconds": 10, "reward_after": 0.5, "steps": 5}))
    slower = ComparedRun("slow", RunRecord(summary={"wall_seconds": 20, "reward_after": 0.9, "steps": 6}))
    page = render_comparison([faster, slower])
    rows = {row.split("</th>")[0].rpartition(">")[2]: row for row in page.split("<tr>") if 'scope="row"' in row}
    assert "<strong>10 s</strong>" in rows["wall time"]
    assert "<strong>0.9</strong>" in rows["reward after"]
    assert "<strong>" not in rows["steps"]


def test_a_share_is_told_in_percent_and_an_amount_is_not() -> None:
    summary = {"accuracy_after": 0.5, "tokens": {"generated": 1200}}
    page = render_comparison([run("a", summary), run("b", summary)])
    assert page.count("50\u202f%") == 2
    assert page.count("1\u202f200<") == 2


def test_what_a_run_is_called_cannot_write_into_the_page() -> None:
    page = render_comparison([run(HOSTILE, {"recipe": HOSTILE}, note=HOSTILE), run("b", note="x")])
    assert "<script" not in page
    assert "&lt;script&gt;" in page


def test_runs_of_which_nothing_is_known_still_make_a_page() -> None:
    page = render_comparison([run("a"), run("b")])
    assert "No parameters are known" in page


def test_intervals_come_from_bounds_or_from_pairs() -> None:
    first = run("a", {"accuracy_after": 0.5, "accuracy_after_interval": [0.4, 0.6], "reward_after_low": 0.1})
    second = run("b", {"reward_after": 0.2, "reward_after_low": 0.1, "reward_after_high": 0.3})
    assert intervals([first, second]) == {
        "accuracy_after": {"a": [0.4, 0.6], "b": None},
        "reward_after": {"a": None, "b": [0.1, 0.3]},
    }
    page = render_comparison([first, second])
    assert "<small>40\u202f% to 60\u202f%</small>" in page
    assert "<small>0.1 to 0.3</small>" in page


def test_what_runs_were_made_of_is_told_also_where_it_is_the_same() -> None:
    runs = [
        ComparedRun(name, RunRecord(), parameters={"image": "i", "data.sha256": data, "train.steps": 3})
        for name, data in (("a", "x"), ("b", "y"))
    ]
    assert made_of(runs) == {"image": {"a": "i", "b": "i"}, "data.sha256": {"a": "x", "b": "y"}}
    assert "the same" in render_comparison(runs).partition("What they were made of")[2]


def test_a_run_knows_how_far_it_was_in_steps_tokens_and_seconds() -> None:
    lines = [
        {"step": 1, "tokens": {"generated": 10}, "seconds": 2.0},
        {"step": 2, "tokens": {"generated": 30}, "trainer_seconds": {"busy": 1.0, "waiting for tools": 0.5}},
    ]
    record = RunRecord(metrics=lines)
    assert [record.across(axis) for axis in ("steps", "tokens", "seconds")] == [
        {1: 1, 2: 2},
        {1: 10, 2: 40},
        {1: 2.0, 2: 3.5},
    ]
    told = RunRecord(metrics=[{"step": 5, "tokens_generated_so_far": 99}])
    assert told.across("tokens") == {5: 99}
    assert told.across("seconds") == {}


def test_curves_are_drawn_over_each_axis_and_one_is_shown_at_first(page: str) -> None:
    for axis in ("steps", "tokens", "seconds"):
        assert page.count(f'id="axis-{axis}"') == 1
        assert f'for="axis-{axis}"' in page
        assert f"Mean reward of every run over its {axis}" in page
    assert page.count(" checked>") == 1


def test_the_page_is_written_whole(tmp_path: Path) -> None:
    uri = str(tmp_path / "page.html")
    assert write_comparison([run("a", lr=1), run("b", lr=2)], uri) == uri
    assert storage.read_text(uri).rstrip().endswith("</html>")

import base64
import hashlib
import json
import re
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser

import numpy as np
import pytest

from components import storage
from components.errors import DataError
from components.telemetry import busy, health, palette, plots
from components.telemetry.metrics import MetricsLog, read_metrics
from components.telemetry.report import alerts, choose_examples, render_report, write_report
from components.telemetry.run_files import FATES, RunRecord, read_run, tokens_unaccounted
from components.telemetry.timeline import REWARD, STEP
from components.telemetry.tool_calls import environment_numbers
from tests.telemetry.synthetic import HOSTILE, write_run


class Page(HTMLParser):
    """Tags, attributes and text of a page; fails on tags that are closed in the wrong order."""

    VOID = frozenset({"meta", "link", "br", "img", "input"})

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self._open: list[str] = []
        self.feed(html)
        assert self._open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self._open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = str(tmp_path_factory.mktemp("run"))
    write_run(folder, steps=12)
    return folder


@pytest.fixture(scope="module")
def html(folder):
    return storage.read_text(write_report(folder))


def test_the_page_is_well_formed_and_asks_for_nothing_from_outside(html):
    page = Page(html)
    tags = {tag for tag, _ in page.tags}
    assert not tags & {"link", "iframe", "object", "embed"}
    for _, attributes in page.tags:
        assert not set(attributes) & {"src", "onload", "onclick"}
        assert (attributes.get("href") or attributes.get("xlink:href") or "#").startswith("#")
    assert not re.search(r"url\((?!#)|@import", html)


def test_the_one_script_that_may_run_is_the_page_s_own(html):
    scripts = re.findall(r"<script([^>]*)>(.*?)</script>", html, re.DOTALL)
    assert [attributes for attributes, _ in scripts] == [' type="application/json" id="trajectories-data"', ""]
    digest = base64.b64encode(hashlib.sha256(scripts[1][1].encode()).digest()).decode()
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', html)[1]
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["script-src"] == f"'sha256-{digest}'"
    assert rules["default-src"] == "'none'"
    for use in ("localStorage", "cookie", "fetch(", "XMLHttpRequest", "innerHTML", "eval(", "document.write"):
        assert use not in scripts[1][1]
    assert scripts[1][1].count("\n") < 300


def test_what_a_model_wrote_is_shown_and_never_run(folder):
    run = read_run(folder)
    hostile = {
        "step": 1,
        "task_id": HOSTILE,
        "reward": 0.5,
        "reward_parts": {HOSTILE: 1.0},
        "outcome": HOSTILE,
        "failure": {"kind": HOSTILE, "message": HOSTILE},
        "messages": [
            {"role": "user", "content": HOSTILE},
            {
                "role": "assistant",
                "content": HOSTILE,
                "tool_calls": [{"name": HOSTILE, "arguments": {HOSTILE: HOSTILE}}],
                "malformed_calls": [{"text": HOSTILE, "reason": HOSTILE}],
            },
            {"role": "tool", "name": HOSTILE, "content": f'"></div>{HOSTILE}'},
        ],
    }
    summary = {**run.summary, "alerts": [HOSTILE], "recipe": HOSTILE, "facts": {HOSTILE: HOSTILE}, "objective": HOSTILE}
    measures = [{**run.measures[0], "name": HOSTILE}, *run.measures[1:]]
    seconds = {"trainer_seconds": {HOSTILE: 1.0, f'waiting "{HOSTILE}': 1.0}}
    html = render_report(RunRecord(summary | seconds, run.metrics, measures, [hostile]))
    page = Page(html)
    assert [tag for tag, _ in page.tags].count("script") == 2
    assert HOSTILE not in html
    assert "</script" not in html.replace("</script>", "", 2)
    assert "".join(page.text).count(HOSTILE) >= 12


def test_the_headline_says_before_after_and_how_sure(html):
    text = " ".join("".join(Page(html).text).replace("\u202f", " ").split())
    assert "7 %→97 %" in text
    assert "+90 points 95 % interval +82 to +94.5, p < 0.001" in text
    assert "better on 90 tasks, worse on 0, equal on 10" in text


def test_the_page_stays_small_for_a_long_run_with_long_talk(tmp_path):
    folder = str(tmp_path)
    write_run(folder, steps=200, trajectories=60)
    run = read_run(folder)
    endless = {"step": 1, "messages": [{"role": "assistant", "content": "word " * 200_000}] * 500}
    html = render_report(RunRecord(run.summary, run.metrics, run.measures, [endless] * 50))
    assert "more messages are not shown" in html
    assert len(html.encode()) < 3_000_000


def test_a_run_of_which_nothing_is_known_still_has_a_page(tmp_path):
    page = Page(storage.read_text(write_report(str(tmp_path))))
    assert "section" not in {tag for tag, _ in page.tags}


def test_without_an_evaluation_the_headline_is_the_reward(tmp_path):
    log = MetricsLog(str(tmp_path / "metrics.jsonl"))
    log.write(1, {"reward_mean": 0.125})
    log.write(2, {"reward_mean": 0.75})
    text = "".join("".join(Page(storage.read_text(write_report(str(tmp_path)))).text).split())
    assert "0.125→0.75" in text


def test_an_evaluation_without_a_before_is_shown(tmp_path):
    after = {"value": 0.5, "low": 0.4, "high": 0.6, "count": 80}
    html = render_report(RunRecord(measures=[{"name": "accuracy", "after": after}]))
    assert "50\u202f%" in html
    assert "80 tasks" in html


def test_a_reward_beyond_one_is_shown_as_a_number(tmp_path):
    after = {"value": 3.5, "low": -1.0, "high": 6.0, "count": 80}
    html = render_report(RunRecord(measures=[{"name": "score", "before": after, "after": after}]))
    assert "−1 to 6" in html
    assert 'class="ranges"' not in html


def test_tokens_without_a_fate_are_an_alert():
    run = RunRecord(summary={"tokens": {"generated": 10, "trained": 7, "in_flight": 1}})
    assert tokens_unaccounted(run.tokens) == 2
    assert alerts(run) == ["2 generated tokens have no fate: the books do not balance."]


def test_metrics_that_were_not_finite_are_an_alert():
    lines = [{"step": step, "loss": None, "not_finite": ["loss"]} for step in range(1, 13)]
    assert alerts(RunRecord(metrics=lines)) == ["loss was not finite at steps 1, 2, 3, 4, 5, 6, 7, 8 and 4 more."]


def test_totals_are_sums_of_steps_except_what_is_in_flight():
    lines = [
        {"step": 1, "tokens": {"generated": 10, "trained": 4, "in_flight": 6}, "engine_seconds": {"decode": 1.5}},
        {"step": 2, "tokens": {"generated": 10, "trained": 13, "in_flight": 3}, "engine_seconds": {"decode": 2.0}},
    ]
    run = RunRecord(metrics=lines)
    assert run.tokens == {"generated": 20, "trained": 17, "in_flight": 3}
    assert tokens_unaccounted(run.tokens) == 0
    assert run.seconds("engine") == {"decode": 3.5}


def test_tokens_of_a_version_are_summed_over_environments():
    table = {"maths": {"10": {"trained": 5}, "9": {"trained": 1, "stale": 2}}, "search": {"9": {"trained": 3}}}
    run = RunRecord(summary={"tokens_by_version": table})
    assert run.tokens_by_version == {9: {"trained": 4, "stale": 2}, 10: {"trained": 5}}
    assert list(run.tokens_by_version) == [9, 10]
    assert RunRecord().tokens_by_version == {}


def test_fates_by_version_selection_and_sample_size_are_shown_where_they_are_known(html, folder):
    titles = ("Tokens by fate of each policy version", "Trained against played", "Effective sample size")
    for title in titles:
        assert f"<title>{title}</title>" in html
    run = read_run(folder)
    summary = {key: value for key, value in run.summary.items() if key != "tokens_by_version"}
    metrics = [{"step": 1, "reward_mean": 0.5, "selection": {"tokens": {}}, "effective_sample_size": None}]
    without = render_report(RunRecord(summary, metrics))
    assert not any(title in without for title in titles)


def test_environments_tell_how_long_each_act_took_and_what_broke():
    told = [
        {"step": 1, "environments": {"sql": environment_numbers({STEP: [0.004] * 3, REWARD: [2.0]}, {None: 3})}},
        {"step": 2, "environments": {"sql": environment_numbers({STEP: [0.004, 9.0]}, {"grader": 1})}},
    ]
    found = health.environments(RunRecord(metrics=told))
    assert [(row["act"], row["calls"], row["times"][-1]) for row in found["acts"]] == [
        ("step", "5", "9 s"),
        ("grade", "1", "2 s"),
    ]
    assert found["endings"] == [{"name": "sql", "episodes": "4", "failed": "25\u202f%", "kinds": "grader 1"}]
    page = render_report(RunRecord(metrics=told))
    assert "sql: 4 episodes ended, 25\u202f% of them broke (grader 1)." in page


def test_bars_and_legends_give_every_fate_its_own_colour():
    colors = palette.fate_colors()
    assert list(colors) == list(FATES)
    assert len(set(colors.values())) == len(FATES)


def test_neighbours_share_a_bar_when_there_are_many():
    amounts = [(version, {"trained": float(version), "stale": 10.0}) for version in range(96)]
    figure = plots.stacked_bars(amounts, {"trained": "#000000", "stale": "#ff0000"}, unit="tokens")
    trained, stale = (patch.get_path() for patch in figure.axes[0].patches)
    assert len(trained.to_polygons()) == 48
    assert [bar[:, 1].max() for bar in trained.to_polygons()][:2] == [0.5, 2.5]
    first = stale.to_polygons()[0]
    assert (first[:, 1].min(), first[:, 1].max()) == (0.5, 10.5)


def test_examples_are_spread_over_the_run_with_both_ends():
    trajectories = [{"step": step, "messages": []} for step in range(100, 0, -1)]
    chosen = [each["step"] for each in choose_examples(trajectories, 5)]
    assert chosen[0] == 1
    assert chosen[-1] == 100
    assert chosen == sorted(chosen)
    assert len(chosen) == 5


def test_pictures_take_their_colours_from_the_page_in_both_modes(folder):
    figure = plots.learning_curve(read_metrics(storage.join(folder, "metrics.jsonl")), palette=palette.PAGE)
    svg = plots.page_svg(figure, title="Reward", name="curve")
    ElementTree.fromstring(svg)
    used = set(re.findall(r"var\((--[a-z0-9-]+)\)", svg))
    assert {"--accent", "--accent-soft", "--muted", "--grid"} <= used
    for colors in (palette.LIGHT, palette.DARK):
        assert all(f"{name}: #" in palette.css_variables(colors) for name in used)
    assert "#0102" not in svg


def test_a_picture_is_the_same_every_time(folder):
    metrics = read_metrics(storage.join(folder, "metrics.jsonl"))
    first, second = (
        plots.page_svg(plots.learning_curve(metrics, palette=palette.PAGE), title="t", name="n") for _ in range(2)
    )
    assert first == second


def test_ids_of_a_page_are_unique(html):
    ids = [attributes["id"] for _, attributes in Page(html).tags if attributes.get("id")]
    assert len(ids) == len(set(ids))


def test_a_step_that_stands_out_is_a_link_to_its_trajectories():
    metrics = [{"step": step, "reward_mean": 0.5 + 0.01 * (step % 3), "mismatch_kl": 1e-6} for step in range(1, 41)]
    metrics[17]["mismatch_kl"] = 4e-3
    html = render_report(RunRecord(metrics=metrics))
    links = [attributes for tag, attributes in Page(html).tags if tag == "a" and attributes["href"] == "#step-18"]
    assert [each["aria-label"] for each in links] == ["step 18: mismatch KL 0.004"]
    assert "#step-17" not in html


def test_every_state_is_a_bar_that_begins_where_the_one_above_ends():
    seconds = {"waiting for graders": 2.0, "starting": 1.0, "busy": 6.0, "compiling": 1.0, "waiting for tools": 10.0}
    (role,) = busy.roles(RunRecord(summary={"trainer_seconds": seconds}))
    rows = [(each["name"], each["left"], each["width"]) for each in role["states"]]
    assert rows == [
        ("starting", 0.0, 5.0),
        ("busy", 5.0, 30.0),
        ("compiling", 35.0, 5.0),
        ("waiting for tools", 40.0, 50.0),
        ("waiting for graders", 90.0, 10.0),
    ]
    assert len({str(each["color"]) for each in role["states"]}) == 5


def test_tools_of_steps_are_gathered_and_those_of_the_summary_come_first():
    lines = [
        {"step": 1, "tools": {"search": {"calls": 30, "errors": {"timeout": 1}, "p50": 1.0, "p95": 2.0, "max": 3.0}}},
        {"step": 2, "tools": {"search": {"calls": 10, "errors": {"timeout": 1, "refused": 2}, "p50": 5.0, "max": 9.0}}},
        {"step": 3, "tools": None},
    ]
    expected = {"calls": 40, "errors": {"timeout": 2, "refused": 2}, "p50": 2.0, "p95": 2.0, "p99": None, "max": 9.0}
    assert busy.tool_totals(RunRecord(metrics=lines)) == {"search": expected}
    told = {"search": {"calls": 40, "p50": 1.5}}
    assert busy.tool_totals(RunRecord(summary={"tools": told}, metrics=lines)) == told
    row = busy.tools(RunRecord(metrics=lines))["rows"][0]
    assert (row["errors"], row["kinds"]) == ("10\u202f%", "refused 2, timeout 2")
    assert busy.tools(RunRecord(metrics=[{"step": 1}])) is None


def test_sections_answer_their_questions(html):
    sections = [attributes.get("id") for tag, attributes in Page(html).tags if tag == "section"]
    asked = ["learning", "correct", "busy", "ledger", "environments", "outliers", "trajectories"]
    assert [each for each in sections if each] == asked
    links = {attributes["href"] for tag, attributes in Page(html).tags if tag == "a"}
    assert {f"#{name}" for name in asked} - {"#outliers"} <= links


def test_a_folder_of_an_older_version_still_has_a_report(tmp_path):
    write_run(str(tmp_path), steps=3, trajectories=0)
    old = {
        "step": 1,
        "task_id": "7",
        "reward": 1.0,
        "outcome": "finished",
        "messages": [{"role": "user", "content": "?"}],
    }
    (tmp_path / "trajectories.jsonl").write_text(json.dumps(old) + "\n")
    html = storage.read_text(write_report(str(tmp_path)))
    assert "1 of the 1 that were written down" in html
    assert 'value="tokens"' not in html


def test_the_learning_curve_can_be_saved_as_a_picture(folder, tmp_path):
    figure = plots.learning_curve(read_metrics(storage.join(folder, "metrics.jsonl")))
    figure.savefig(tmp_path / "curve.png")
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")


def test_smoothing_keeps_a_constant_and_halves_between_two_plateaus():
    assert plots.smoothed(np.full(9, 0.3), np.arange(9.0)) == pytest.approx(0.3)
    stair = np.array([0.0] * 10 + [1.0] * 10)
    assert plots.smoothed(stair, np.array([9.5])) == pytest.approx(0.5)


def test_work_and_waiting_never_share_a_colour():
    colors = palette.state_colors(["starting", "busy", "waiting for tools", "sync", "waiting for room", "a", "b", "c"])
    work = {colors[state] for state in ("busy", "sync", "a", "b", "c")}
    waiting = {colors["waiting for tools"], colors["waiting for room"]}
    assert not work & waiting
    assert len(waiting) == 2
    assert colors["starting"] not in work | waiting


def test_a_damaged_file_is_named(tmp_path):
    (tmp_path / "summary.json").write_text(json.dumps([1]))
    with pytest.raises(DataError, match=r"summary\.json"):
        read_run(str(tmp_path))

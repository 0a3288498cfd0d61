"""The report as a person meets it: in a real browser, with keys, on a phone, in the dark, and in a sandboxed frame."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from components import storage
from components.telemetry.report import write_report
from tests.telemetry.chromium import Browser, Page, chromium, executable
from tests.telemetry.synthetic import HOSTILE, write_run

pytestmark = pytest.mark.skipif(executable() is None, reason="Chromium is not installed")

CHOSEN = "document.querySelector('[aria-selected=true] .prompt').textContent"
FOCUS = "document.activeElement.id || document.activeElement.name"
TALK = "document.getElementById('viewer-talk').textContent"
COUNT = "document.getElementById('viewer-count').textContent"
BACKGROUND = "(each) => getComputedStyle(each).backgroundColor"
SPEND = "<img src=x onerror=\"alert('image')\"><svg onload=alert(1)>"


@pytest.fixture(scope="module")
def browser(tmp_path_factory) -> Iterator[Browser]:
    with chromium(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.fixture(scope="module")
def file(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    write_run(str(folder), steps=30, trajectories=40)
    hostile = {
        "step": 31,
        "task_id": HOSTILE,
        "reward": -2.0,
        "outcome": "failed",
        "failure": {"kind": "tool", "message": SPEND},
        "messages": [{"role": "user", "content": HOSTILE}, {"role": "tool", "name": SPEND, "content": SPEND}],
        "turns": [
            {
                "prompt": SPEND,
                "tokens": [HOSTILE, SPEND, "é"],
                "logprobs": [-0.5, -4.0, 0],
                "versions": [[3, 2], [4, 1]],
            }
        ],
    }
    log = storage.LineLog(str(folder / "trajectories.jsonl"))
    log.append(json.dumps(hostile))
    log.sync()
    return Path(write_report(str(folder)))


@pytest.fixture
def page(browser: Browser, file: Path) -> Iterator[Page]:
    browser.complaints.clear()
    opened = browser.page(file.as_uri())
    opened.resize(1280, 900)
    yield opened
    assert browser.complaints == []


def choose(page: Page, name: str, value: str) -> None:
    """As a person picks something in the form."""
    field = f"document.querySelector('#viewer-filter [name={name}]')"
    page.run(f"{field}.value = {json.dumps(value)}; {field}.dispatchEvent(new Event('input', {{ bubbles: true }}))")


def test_the_viewer_is_there_and_nothing_complains(page: Page):
    assert page.run("document.getElementById('viewer').hidden") is False
    assert page.run(COUNT) == "41 of 41 shown"
    assert page.run("document.querySelector('noscript').getClientRects().length") == 0


def test_what_a_model_wrote_is_text(page: Page):
    choose(page, "text", "alert('image')")
    assert page.run(COUNT) == "1 of 41 shown"
    assert HOSTILE in page.run(TALK)
    assert SPEND in page.run(TALK)
    choose(page, "view", "tokens")
    assert page.run("[...document.querySelectorAll('.t')].map((each) => each.textContent)") == [HOSTILE, SPEND, "é"]
    assert page.run("document.querySelectorAll('main script, main img, #viewer-talk svg, [onerror]').length") == 0


def test_only_tokens_of_the_trainers_version_count_as_mismatch(page: Page):
    choose(page, "text", "arithmetic-20")
    choose(page, "view", "tokens")
    choose(page, "colour", "gap")
    legend = page.run("document.getElementById('viewer-legend').textContent")
    assert "nats, of one version: arithmetic" in legend
    assert "nats, sampled by an older one: learning, too" in legend
    hues = "[...document.querySelectorAll('.t')].map((each) => each.style.background.match(/--\\w+/)[0])"
    hues = page.run(hues)
    assert hues == sorted(hues, reverse=True), "the older half comes first"
    assert set(hues) == {"--surplus", "--second"}
    page.run("document.querySelector('.t').click()")
    assert "the trainer 1 version later differs by" in page.run("document.getElementById('viewer-token').textContent")


def test_a_script_that_gets_in_is_not_run(browser: Browser, file: Path, tmp_path: Path):
    forged = tmp_path / "forged.html"
    forged.write_text(file.read_text().replace("</main>", "</main><script>document.title = 'ours'</script>"))
    page = browser.page(forged.as_uri())
    assert page.run("document.title") != "ours"
    assert page.run(COUNT) == "41 of 41 shown"
    assert any("Content Security Policy" in each for each in browser.complaints)
    browser.complaints.clear()


def test_the_keyboard_goes_everywhere(page: Page):
    page.run("document.getElementById('viewer-filter').elements.text.focus()")
    names = []
    while names[-1:] != ["viewer-list"]:
        page.press("Tab")
        names.append(page.run(FOCUS))
        assert len(names) < 20
        outline = page.run("getComputedStyle(document.activeElement).outlineStyle")
        assert outline != "none", f"the focus is not seen on {names[-1]}"
    assert {"outcome", "low", "high", "step", "order", "errors", "view", "colour"} <= set(names)
    page.press("Home")
    first = page.run(CHOSEN)
    page.press("ArrowDown", "ArrowDown", "ArrowUp")
    assert page.run("document.querySelector('[aria-selected=true]').id") == "option-1"
    assert page.run("document.getElementById('viewer-list').getAttribute('aria-activedescendant')") == "option-1"
    page.press("End")
    assert page.run(CHOSEN) != first
    page.press("Enter")
    assert page.run(FOCUS) == "viewer-talk"
    page.press("Escape")
    assert page.run(FOCUS) == "viewer-list"


def test_tokens_tell_their_numbers_under_the_arrow_keys(page: Page):
    choose(page, "text", "alert('image')")
    choose(page, "view", "tokens")
    page.run("document.getElementById('viewer-talk').focus()")
    page.press("ArrowRight", "ArrowRight", "ArrowRight")
    said = page.run("document.getElementById('viewer-token').textContent")
    assert said == 'token 3 of 3: "é", log-prob 0, version 4'
    colors = {}
    for by in ("mask", "logprob", "version"):
        choose(page, "colour", by)
        colors[by] = page.run(
            "[...document.querySelectorAll('.t')].map((each) => getComputedStyle(each).backgroundColor)"
        )
    assert len(set(colors["mask"])) == 1
    assert len(set(colors["logprob"])) == 3
    assert colors["version"][0] == colors["version"][1] != colors["version"][2]
    legend = page.run("document.getElementById('viewer-legend').textContent")
    assert legend == "version 3version 4"


def test_filters_narrow_the_list(page: Page):
    choose(page, "outcome", "failed: tool")
    assert page.run(COUNT) == "1 of 41 shown"
    choose(page, "outcome", "")
    choose(page, "low", "1")
    rewards = page.run("[...document.querySelectorAll('.option .reward')].map((each) => each.textContent)")
    assert rewards
    assert set(rewards) == {"1"}
    choose(page, "low", "")
    choose(page, "order", "worst")
    assert page.run("document.querySelector('.option .reward').textContent") == "−2"
    choose(page, "text", "no model wrote this")
    assert page.run(TALK) == "No trajectory is like that."


@pytest.mark.parametrize("way", ["click", "Enter"])
def test_a_point_of_a_plot_leads_to_its_trajectory(page: Page, way: str):
    point = "document.querySelector('#outliers svg a[aria-label*=\"reward −2\"]')"
    at = page.run(f"{point}.getAttribute('href')").removeprefix("#trajectory-")
    if way == "click":
        page.run(f"{point}.dispatchEvent(new MouseEvent('click', {{ bubbles: true, cancelable: true }}))")
    else:
        page.run(f"{point}.focus()")
        page.press("Enter")
    assert page.run("document.querySelector('[aria-selected=true]').id") == f"option-{at}"
    assert page.run(FOCUS) == "viewer-talk"
    assert HOSTILE in page.run(TALK)


def test_a_chart_is_one_stop_of_the_tab_key_and_arrows_go_from_point_to_point(page: Page):
    assert page.run("document.querySelectorAll('#outliers svg').length") == page.run(
        "document.querySelectorAll('#outliers svg a[tabindex=\"0\"]').length"
    )
    page.run("document.querySelector('#outliers svg a').focus()")
    page.press("ArrowRight")
    assert page.run("[...document.querySelectorAll('#outliers svg a')].indexOf(document.activeElement)") == 1


def test_a_link_from_outside_opens_its_trajectory(browser: Browser, file: Path):
    browser.complaints.clear()
    page = browser.page(f"{file.as_uri()}#trajectory-5")
    assert page.run("document.querySelector('[aria-selected=true]').id") == "option-5"
    page = browser.page(f"{file.as_uri()}#step-31")
    assert page.run(COUNT) == "1 of 41 shown"
    assert browser.complaints == []


@pytest.mark.parametrize("dark", [False, True])
def test_it_fits_a_phone_in_light_and_in_dark(page: Page, tmp_path: Path, dark: bool):
    page.resize(390, 844, dark=dark)
    assert page.run("document.documentElement.scrollWidth") <= 390
    ink, back = (
        page.run(f"getComputedStyle(document.querySelector('{place}')).{key}.match(/\\d+/g).map(Number)")
        for place, key in (("h2", "color"), ("section", "backgroundColor"))
    )
    assert (sum(ink) > sum(back)) == dark
    assert abs(sum(ink) - sum(back)) > 450, "it can be read"
    page.picture(tmp_path / "phone.png")
    assert (tmp_path / "phone.png").stat().st_size > 10_000


def test_it_works_in_a_sandboxed_frame_made_of_a_text(browser: Browser, file: Path, tmp_path: Path):
    """As the user interface of Kubeflow Pipelines shows an HTML artifact."""
    browser.complaints.clear()
    outer = tmp_path / "outer.html"
    text = json.dumps(file.read_text()).replace("</", "<\\/")
    outer.write_text(
        "<!doctype html><title>outer</title><iframe sandbox='allow-scripts' style='width:1000px;height:700px'></iframe>"
        f"<script>document.querySelector('iframe').srcdoc = {text}</script>"
    )
    around = browser.page(outer.as_uri())
    attached = browser.event("Target.attachedToTarget")
    while attached["params"]["targetInfo"]["type"] != "iframe":
        attached = browser.event("Target.attachedToTarget")
    frame = Page(browser, attached["params"]["sessionId"])
    frame.listen()
    frame.run("document.readyState === 'complete' || new Promise((done) => addEventListener('load', done))")
    assert frame.run("self.origin") == "null"
    assert frame.run(COUNT) == "41 of 41 shown"
    frame.run("document.querySelector('.links a[href^=\"#trajectory\"]').click()")
    assert frame.run(FOCUS) == "viewer-talk"
    frame.run("document.querySelector('.places a').click()")
    assert frame.run("location.href") == "about:srcdoc", "a link to a place in the page stays in the frame"
    assert around.run("location.href") == outer.as_uri()
    assert browser.complaints == []

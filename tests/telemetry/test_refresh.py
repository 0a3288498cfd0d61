"""The report of a run that goes on: when it is made anew, and that nobody waits for it."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from components.telemetry.refresh import Refresher
from tests.telemetry.synthetic import write_run

MARK = "import pathlib, sys; pathlib.Path(sys.argv[1], 'made').open('a').write('x')"
FAIL = "raise SystemExit('no room on the disk')"
SLEEP = "import time; time.sleep(600)"


class Clock:
    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def refresher(folder: Path, clock: Clock, code: str = MARK) -> Refresher:
    return Refresher(str(folder), every=30.0, command=(sys.executable, "-S", "-c", code), clock=clock)


def wait(reports: Refresher) -> None:
    process = reports._process
    assert process is not None
    process.wait(timeout=60)


def test_a_short_run_makes_none_and_a_long_one_at_most_one_at_a_time(tmp_path: Path) -> None:
    clock = Clock()
    reports = refresher(tmp_path, clock)
    clock.seconds = 29
    reports.step()
    assert reports._process is None
    clock.seconds = 30
    reports.step()
    first = reports._process
    clock.seconds = 200
    wait(reports)
    reports.step()
    assert reports._process is None
    assert first is not None
    assert (tmp_path / "made").read_text() == "x"
    reports.close()


def test_it_is_made_for_a_hundredth_of_the_time_at_most(tmp_path: Path) -> None:
    clock = Clock()
    reports = refresher(tmp_path, clock)
    clock.seconds = 30
    reports.step()
    wait(reports)
    clock.seconds = 34  # it took 4 s
    reports.step()
    clock.seconds = 433
    reports.step()
    assert reports._process is None
    clock.seconds = 434
    reports.step()
    wait(reports)
    assert (tmp_path / "made").read_text() == "xx"
    reports.close()


def test_a_failure_is_told_once_and_the_run_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    reports = refresher(tmp_path, clock, FAIL)
    for _ in range(3):
        clock.seconds += 30
        reports.step()
        wait(reports)
        reports.step()
    assert capsys.readouterr().err.count("no room on the disk") == 1


def test_closing_ends_what_is_in_the_making(tmp_path: Path) -> None:
    clock = Clock()
    reports = refresher(tmp_path, clock, SLEEP)
    clock.seconds = 30
    started = time.monotonic()
    reports.step()
    process = reports._process
    reports.close()
    assert process is not None
    assert process.returncode == -9
    assert time.monotonic() - started < 60


def test_its_own_command_makes_the_report(tmp_path: Path) -> None:
    write_run(str(tmp_path), steps=2, trajectories=1)
    subprocess.run([sys.executable, "-m", "components.telemetry.refresh", str(tmp_path)], check=True)
    assert "</html>" in (tmp_path / "report.html").read_text()

"""A run's folder that is followed in a terminal or through a pipe, whatever becomes of the run."""

import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rich.console import Console

from components import storage
from components.errors import ConfigError
from components.telemetry.metrics import MetricsLog
from pipeline.cli import main
from pipeline.following import Lines, State, follow, look, shares, state_text
from pipeline.following_view import on_screen, picture, sparkline
from pipeline.run_folders import make_run_folder
from tests.telemetry.synthetic import write_run

MANIFEST = {"exact": {"train": {"steps": 4}}}


def step(number: int, **more) -> dict:
    seconds = {"busy": 3.0, "waiting for tools": 1.0}
    return {"reward_mean": 0.25 * number, "seconds": 4.0, "trainer_seconds": seconds} | more


def run_folder(folder: Path, steps: int, *, summary: dict | None = None) -> Path:
    (folder / "manifest.json").write_text(json.dumps(MANIFEST))
    log = MetricsLog(str(folder / "metrics.jsonl"))
    for number in range(1, steps + 1):
        log.write(number, step(number))
    (folder / "summary.json").write_text(json.dumps({"recipe": "maths"} | (summary or {})))
    return folder


def test_a_run_is_alive_while_its_process_holds_the_lock_and_dead_without(tmp_path: Path) -> None:
    folder = run_folder(tmp_path, 2)
    with storage.sole_process(folder / "train.lock", patience=0.0, on_wait=print):
        seen = look(str(folder))
        assert (seen.state, seen.step, seen.planned, seen.seconds_left) == (State.RUNNING, 2, 4, 8.0)
    assert look(str(folder)).state is State.DEAD
    assert "--resume" in state_text(look(str(folder)))


def test_before_its_first_step_a_run_is_starting(tmp_path: Path) -> None:
    with storage.sole_process(tmp_path / "run.lock", patience=0.0, on_wait=print):
        seen = look(str(tmp_path))
    assert (seen.state, seen.step, seen.planned, seen.age) == (State.STARTING, 0, None, None)


def test_a_run_that_tunes_is_running_and_each_step_of_it_is_told_once(tmp_path: Path) -> None:
    log = MetricsLog(str(tmp_path / "tuning.jsonl"))
    log.write(0, {"held_out": {"loss": 2.5, "token_accuracy": 0.25}})
    said: list[str] = []
    lines = Lines(said.append)
    with storage.sole_process(tmp_path / "tune.lock", patience=0.0, on_wait=print):
        lines.show(look(str(tmp_path)))
        log.write(1, {"loss": 2.25})
        seen = look(str(tmp_path))
        lines.show(seen)
    assert said[0] == "tuning step 0  held out: loss 2.5, token accuracy 0.25"
    assert said[1].startswith("run: running, step 0 of tuning, last heard of ")
    assert said[2:] == ["tuning step 1  loss 2.25"]
    console = Console(file=io.StringIO(), width=100)
    console.print(picture(seen))
    shown = console.file.getvalue()
    assert "step 1 of tuning" in shown
    assert "loss 2.25" in shown


def test_a_run_that_has_ended_is_finished(tmp_path: Path) -> None:
    folder = run_folder(tmp_path, 4, summary={"wall_seconds": 20.0})
    assert look(str(folder)).state is State.FINISHED
    assert state_text(look(str(folder))) == "maths: finished, step 4 of 4"


def test_a_run_that_has_failed_says_so_and_of_what(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    failure = {"step": "export", "message": "ProofError: they differ\nby much"}
    folder = run_folder(tmp_path, 2, summary={"failure": failure})
    assert look(str(folder)).state is State.FAILED
    told = f"maths: failed, step 2 of 4; export: ProofError: they differ; go on with --resume {folder}"
    assert state_text(look(str(folder))) == told
    stopped = f"stopped; the same command with --resume {folder} goes on from there"
    run_folder(folder, 0, summary={"failure": {"step": "", "message": stopped}})
    assert state_text(look(str(folder))) == f"maths: failed, step 2 of 4; {stopped}"
    run_folder(folder, 0, summary={"failure": failure})
    assert main(["report", str(folder)]) == 0
    assert "this run has failed: export: ProofError: they differ\n" in capsys.readouterr().err
    assert "by much" in (folder / "report.html").read_text()
    with storage.sole_process(folder / "run.lock", patience=0.0, on_wait=print):
        assert look(str(folder)).state is State.RUNNING, "it goes on"


def test_the_age_is_that_of_the_newest_sign_of_life(tmp_path: Path) -> None:
    folder = run_folder(tmp_path, 1)
    (folder / "journal.jsonl").write_text("{}\n")
    os.utime(folder / "metrics.jsonl", (1_000_000, 1_000_000))
    os.utime(folder / "journal.jsonl", (1_000_060, 1_000_060))
    assert look(str(folder), now=lambda: 1_000_100.0).age == 40.0


def test_what_is_no_folder_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ConfigError, match="neither a run's folder nor a run's id"):
        look(str(tmp_path / "nothing"))
    (tmp_path / "shop.yaml").write_text("name: shop\n")
    make_run_folder(tmp_path / "runs", "shop")
    for other in ("nothing", "shop.yaml", "runs", ""):
        assert main(["watch", str(tmp_path / other)]) == 2, other
        assert "neither a run's folder nor a run's id" in capsys.readouterr().err


def test_a_run_that_has_only_its_folder_is_starting(tmp_path: Path, gcs: str) -> None:
    begun = make_run_folder(tmp_path, "begun")
    assert look(str(begun)).state is State.DEAD  # nobody holds its lock
    with storage.sole_process(begun / "run.lock", patience=0.0, on_wait=print):
        assert look(str(begun)).state is State.STARTING
    claimed = f"{gcs}/{tmp_path.name}/begun"
    storage.claim_folder(claimed, "run 1")
    assert look(claimed).state is State.STARTING
    with pytest.raises(ConfigError, match="neither a run's folder"):
        look(f"{gcs}/{tmp_path.name}")


def test_each_step_is_told_once_until_the_end(tmp_path: Path) -> None:
    folder = run_folder(tmp_path, 1)
    told: list[str] = []
    log = MetricsLog(str(folder / "metrics.jsonl"))

    def more(seconds: float) -> None:
        assert seconds == 2.0
        number = look(str(folder)).step + 1
        log.write(number, step(number, failures={"tool": 2} if number == 3 else {}))
        if number == 4:
            storage.write_text(str(folder / "summary.json"), json.dumps({"recipe": "maths", "wall_seconds": 16.0}))

    with storage.sole_process(folder / "train.lock", patience=0.0, on_wait=print):
        lines = Lines(told.append)
        looks = iter(range(3))

        def show(seen) -> None:
            lines.show(seen)
            if next(looks, None) is None:
                raise KeyboardInterrupt  # the lock says that the run goes on

        with pytest.raises(KeyboardInterrupt):
            follow(str(folder), show=show, sleep=more)
    lines.show(look(str(folder)))
    assert [line.split("  ")[0] for line in told if line.startswith("step")] == [f"step {n}/4" for n in (1, 2, 3, 4)]
    assert "step 3/4  reward 0.75  4 s  trainer waiting 25 %  2 failed" in told
    assert told[-1] == "maths: finished, step 4 of 4"


def test_steps_that_a_resumed_run_takes_back_are_told_again(tmp_path: Path) -> None:
    folder = run_folder(tmp_path, 3)
    told: list[str] = []
    lines = Lines(told.append)
    lines.show(look(str(folder)))
    MetricsLog(str(folder / "metrics.jsonl"), resumed_after=1)
    lines.show(look(str(folder)))
    MetricsLog(str(folder / "metrics.jsonl")).write(2, step(2))
    lines.show(look(str(folder)))
    assert [line[:6] for line in told if line.startswith("step")] == ["step 1", "step 2", "step 3", "step 2"]


def test_through_a_pipe_come_plain_lines_and_the_exit_code_says_how_it_ended(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = run_folder(tmp_path, 2)
    assert main(["watch", str(folder)]) == 1
    said = capsys.readouterr().err
    assert said.splitlines()[0] == "step 1/4  reward 0.25  4 s  trainer waiting 25 %"
    assert "maths: dead, step 2 of 4" in said
    assert "\x1b" not in said
    storage.write_text(str(folder / "summary.json"), json.dumps({"wall_seconds": 1.0}))
    assert main(["watch", str(folder)]) == 0


def heed_ctrl_c() -> None:
    """Tests that run in the background inherit that it is ignored."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_ctrl_c_leaves_quietly(tmp_path: Path) -> None:
    folder = run_folder(tmp_path, 2)
    with storage.sole_process(folder / "train.lock", patience=0.0, on_wait=print):
        line = [sys.executable, "-m", "pipeline.cli", "watch", str(folder), "--every", "60"]
        with subprocess.Popen(line, stderr=subprocess.PIPE, text=True, preexec_fn=heed_ctrl_c) as watching:
            assert watching.stderr is not None
            try:
                assert watching.stderr.readline().startswith("step 1/4")
                while "running" not in watching.stderr.readline():
                    pass
                watching.send_signal(signal.SIGINT)
                assert watching.wait(timeout=60) == 0
                assert watching.stderr.read() == ""
            finally:
                watching.kill()


def test_the_screen_shows_the_state_the_steps_and_where_time_goes(tmp_path: Path) -> None:
    write_run(str(tmp_path), steps=12, trajectories=0)
    out = io.StringIO()
    console = Console(file=out, width=110, force_terminal=True, legacy_windows=False, color_system=None)
    with on_screen(console) as screen:
        screen.show(look(str(tmp_path)))
        screen.show(look(str(tmp_path)))
    text = out.getvalue().rpartition("╭")[2]
    for part in ("finished", "step 12", "waiting for generation", "generated", "quickstart", "mismatch KL"):
        assert part in text
    assert len([row for row in text.splitlines() if row.strip("│ ").startswith("11 ")]) == 1


def test_a_run_that_works_and_is_silent_is_an_alert_with_the_recipes_own_limit(tmp_path: Path) -> None:
    folder = run_folder(tmp_path, 2)

    def later(seconds: float) -> str | None:
        return look(str(folder), now=lambda: time.time() + seconds).alert

    assert later(3600.0) is None  # dead, which is told otherwise
    with storage.sole_process(folder / "train.lock", patience=0.0, on_wait=print):
        assert later(60.0) is None
        assert "more than 600 s" in str(later(3600.0))
        manifest = {"exact": {"train": {"steps": 4, "telemetry": {"alerts": {"max_heartbeat_seconds": 30.0}}}}}
        storage.write_text(str(folder / "manifest.json"), json.dumps(manifest))
        assert "more than 30 s" in str(later(60.0))


def test_a_name_is_no_markup_of_the_terminal(tmp_path: Path) -> None:
    run_folder(tmp_path, 1, summary={"recipe": "[bold]x[/]", "alerts": ["[red]look[/red] here"]})
    console = Console(file=io.StringIO(), width=120, color_system=None)
    with console.capture() as seen:
        console.print(picture(look(str(tmp_path))))
    assert "[bold]x[/]" in seen.get()
    assert "! [red]look[/red] here" in seen.get()


def test_a_folder_in_a_bucket_is_followed_too(tmp_path: Path, gcs: str) -> None:
    folder = f"{gcs}/{tmp_path.name}/watched"
    MetricsLog(f"{folder}/metrics.jsonl").write(1, step(1))
    seen = look(folder)
    assert (seen.state, seen.step) == (State.RUNNING, 1)
    if seen.age is not None:
        assert look(folder, now=lambda: time.time() + 3600).state is State.SILENT
    storage.write_text(f"{folder}/summary.json", json.dumps({"recipe": "maths", "wall_seconds": 3.0}))
    assert look(folder).state is State.FINISHED


def test_a_sparkline_goes_from_the_lowest_to_the_highest() -> None:
    assert sparkline([0.0, 0.5, 1.0]) == "▁▅█" or sparkline([0.0, 0.5, 1.0]) == "▁▄█"
    assert sparkline([2.0, 2.0]) == "▁▁"
    assert len(sparkline(list(map(float, range(1000))))) == 48


def test_shares_are_of_the_last_steps_without_the_start() -> None:
    lines = [{"trainer_seconds": {"busy": 100.0}}] + [
        {"trainer_seconds": {"busy": 3.0, "waiting for tools": 1.0, "starting": 5.0}}
    ] * 10
    assert shares(lines, "trainer") == [("busy", 0.75), ("waiting for tools", 0.25)]

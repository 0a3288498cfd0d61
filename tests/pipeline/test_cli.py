"""The command line: results on standard output, exit codes that scripts can rely on."""

import json
import os
from pathlib import Path

import pytest

from components.config import dump
from pipeline.cli import main
from pipeline.commands.compiling import COMPILED
from pipeline.local import StepFailedError
from pipeline.recipe import load_recipe
from pipeline.run_folders import make_run_folder


def test_doctor_prints_one_object_with_the_keys_of_the_contract(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "smoke", "--json"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    diagnosis = json.loads(line)
    assert list(diagnosis) == ["valid", "problems", "objective", "memory_plan", "isolation", "warnings"]


def test_doctor_lists_what_is_wrong_and_ends_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "smoke", "--json", "--set", "train.optimizer.warmup_steps=99"]) == 2
    diagnosis = json.loads(capsys.readouterr().out)
    assert diagnosis["valid"] is False
    (problem,) = diagnosis["problems"]
    assert problem["where"] == "train.optimizer.warmup_steps"
    assert problem["value"] == 99


def test_doctor_reads_what_is_no_recipe(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty.yaml").write_text("")
    assert main(["doctor", str(tmp_path / "empty.yaml")]) == 2
    assert "1 problem" in capsys.readouterr().out


def test_doctor_says_it_to_people_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "smoke"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("valid\n")
    assert "ratio = exp(logprob - behavior logprob" in said
    assert "GiB" in said


def test_compile_writes_the_committed_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "pipeline.yaml"
    assert main(["compile", "post_training", "-o", str(target)]) == 0
    assert capsys.readouterr().out == f"{target}\n"
    assert target.read_bytes() == COMPILED.read_bytes()


def test_a_run_that_fails_ends_with_1_and_says_what_the_step_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object, **keywords: object) -> None:
        raise StepFailedError("train", "ProofError: they differ", tmp_path)

    monkeypatch.setattr("pipeline.local.run_locally", fail)
    assert main(["run", "smoke"]) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.splitlines()[0] == "headrace: ProofError: they differ"
    assert "--resume" not in printed.err
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n')
    assert main(["run", "smoke"]) == 1
    assert "Optimizer steps are kept: the same command with --resume" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--runs", ""], "--runs: is empty"),
        (["--runs", "gs://bucket/runs"], "--runs: is no folder of this machine"),
        (["--resume", ""], "--resume: is empty"),
        (["--resume", "gs://bucket/run"], "--resume: is no folder of this machine"),
        (["--seed", "-5"], "seed: Input should be greater than or equal to 0 (got -5)"),
        (["--seed", "-1"], "seed: Input should be greater than or equal to 0 (got -1)"),
        (["--set", "train.engine.slots=100000000"], "train.engine.slots: cannot fit"),
    ],
)
def test_a_run_that_cannot_work_makes_no_folder(
    arguments: list[str], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["run", "smoke", *arguments]) == 2
    assert told in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["eval", "smoke", "nowhere", "--tasks", "0"], "evaluate.tasks: Input should be greater than or equal to 1"),
        (["eval", "smoke", "nowhere", "--tasks", "-1"], "evaluate.tasks: Input should be greater than or equal to 1"),
        (["eval", "smoke", str(Path(__file__).parent)], "adapter_config.json: does not exist; a PEFT adapter holds it"),
        (["eval", "smoke", "latest-promoted"], "ADAPTER: nothing is promoted at "),
        (["sweep", "smoke", "--trial", "a"], "--trial: write it as KEY=VALUE"),
        (["sweep", "smoke", "--trial", "{bad"], "--trial: is no JSON: "),
        (["sweep", "smoke", "--trial", "seed=1", "--trial", "seed=1"], "--trial: stands twice"),
        (
            ["env", "try", "arithmetic", "--option", "low"],
            "--option: write it as KEY=VALUE, for example train_",
        ),
        (["env", "try", "arithmetic", "--tokenizer", "nowhere"], "no tokenizer at nowhere"),
    ],
)
def test_what_is_not_there_or_ill_written_is_bad_input_and_nothing_is_made(
    arguments: list[str], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    assert told in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_pipe_that_is_closed_ends_a_command_quietly(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as out:
        monkeypatch.setattr("sys.stdout", out)
        assert main(["env", "list"]) == 141
    assert capsys.readouterr().err == ""


def test_an_unknown_command_is_bad_input(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["fly"])
    assert caught.value.code == 2
    assert "invalid choice: 'fly'" in capsys.readouterr().err


@pytest.mark.parametrize(
    "command",
    [
        ["report"],
        ["report", "--why"],
        ["replay"],
        ["rerun"],
        ["profile", "--steps=1:2"],
        ["promote"],
        ["watch"],
        ["compare", "x"],
        ["eval", "smoke"],
        ["run", "smoke", "--resume"],
    ],
    ids=" ".join,
)
def test_a_place_that_is_not_there_is_bad_input(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([*command, str(tmp_path / "nothing")]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert "nothing" in told.err or "(got 'x')" in told.err
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_has_not_trained_cannot_be_made_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "summary.json").write_text("{}")
    for command in (["replay"], ["rerun"], ["profile", "--steps=1:2"]):
        assert main([*command, str(tmp_path)]) == 2
        assert "the run has not come so far" in capsys.readouterr().err


def test_a_place_for_promotions_that_is_mistyped_is_not_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "run" / "adapter").mkdir(parents=True)
    (tmp_path / "run" / "summary.json").write_text("{}")
    assert main(["promote", str(tmp_path / "run"), "--root", str(tmp_path / "no" / "such")]) == 2
    assert "--root: lies in no folder that there is" in capsys.readouterr().err
    assert not (tmp_path / "no").exists()


def test_a_report_is_written_anew_from_a_run_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "summary.json").write_text(json.dumps({"recipe": "mine"}))
    assert main(["report", str(tmp_path)]) == 0
    assert capsys.readouterr().out.strip() == str(tmp_path / "report.html")
    assert "mine" in (tmp_path / "report.html").read_text()


def test_a_resume_with_other_settings_names_them_and_changes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = make_run_folder(tmp_path, "smoke")
    record = json.dumps({"recipe": dump(load_recipe("smoke"))})
    (folder / "manifest.json").write_text(record)
    assert main(["run", "smoke", "--resume", str(folder), "--set", "train.packing.rows=9"]) == 2
    said = capsys.readouterr().err
    assert "train.packing.rows: the run was started with 64" in said
    assert "Traceback" not in said
    (folder / "metrics.jsonl").write_text('{"step": 7}\n')
    assert main(["run", "smoke", "--resume", str(folder), "--set", "train.steps=6"]) == 2
    assert "train.steps: the run has already made 7 steps; give so many or more (got 6)" in capsys.readouterr().err
    assert (folder / "manifest.json").read_text() == record


def test_a_report_of_what_is_no_run_is_refused_and_nothing_is_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", str(tmp_path / "nowhere")]) == 2
    assert "is no run's folder" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_path_that_cannot_be_written_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compile", "sweep", "-o", str(tmp_path / "missing" / "x.yaml")]) == 2
    assert "No such file or directory" in capsys.readouterr().err

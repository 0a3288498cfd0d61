"""The tune step on a tiny model: a stop changes no bit, and what cannot work is told first."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from safetensors.numpy import load_file

from components.config import load
from components.errors import CheckpointError, ConfigError, DataError, RunStoppedError
from components.rollout.tokenizer import CharacterTokenizer
from components.telemetry.run_files import read_run
from components.training.tuning import loop as loops
from components.training.tuning.run import tune
from components.training.tuning.settings import TuneConfig
from tests import tiny_run

WORLD = json.dumps(tiny_run.ENVIRONMENT)
PACKING = {"rows": 16, "row_length": 24, "capacities": [384]}
LEARNING = {"rows_per_step": 16, "epochs": 3, "optimizer": {"learning_rate": 2e-2}, "packing": PACKING}


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Sums whose calls are right, and what is preferred to them: never the answer at once."""
    path = tmp_path_factory.mktemp("rows") / "rows.jsonl"
    lines = [
        {"prompt": f"{a}+{b}", "chosen": call, "completion": call["content"] or f"[{a}+{b}]", "rejected": f"{a + b}"}
        for a in range(10, 18)
        for b in range(10, 18)
        for call in [{"role": "assistant", "content": "", "tool_calls": [calculator(a, b)]}]
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(path)


def calculator(a: int, b: int) -> dict[str, object]:
    return {"name": "calculator", "arguments": {"expression": f"{a}+{b}"}}


def arguments(inputs: dict[str, str], run_folder: str, tuned: Path, **section: object) -> dict[str, object]:
    whole = json.dumps({**LEARNING, **section})
    return {"section": whole, "environment": WORLD, "seed": 3, "run_folder": run_folder, "tuned": str(tuned), **inputs}


def run(folder: Path, inputs: dict[str, str], name: str = "tuned", **section: object) -> dict[str, object]:
    return tune(**arguments(inputs, str(folder / "run"), folder / name, **section))


def weights(folder: Path, name: str = "tuned") -> dict[str, bytes]:
    return {key: value.tobytes() for key, value in load_file(folder / name / "adapter_model.safetensors").items()}


def stopping(patch: pytest.MonkeyPatch, step: int) -> None:
    """This process is told to stop when it has made the step."""
    learn = loops.TuningLoop._one_step

    def one_step(self: loops.TuningLoop) -> None:
        learn(self)
        if self.progress.step == step:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0.1)  # until the event loop has heard it

    patch.setattr(loops.TuningLoop, "_one_step", one_step)


DIES_IN_ITS_SECOND_CHECKPOINT = """
import os, signal
from components.training.checkpoint import _Manifest
calls, text = iter((1, 2)), _Manifest.to_json
_Manifest.to_json = lambda self: os.kill(os.getpid(), signal.SIGKILL) if next(calls) == 2 else text(self)
"""


def started(call: dict[str, object], before: str = "") -> "subprocess.Popen[str]":
    program = f"{before}\nfrom components.training.tuning.run import tune\ntune(**{call!r})"
    return subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.PIPE, text=True)


def lines_of(run_folder: str) -> list[dict[str, object]]:
    return [{**line, "seconds": 0} for line in read_run(run_folder).tuning]


def section_of(rows: str) -> dict[str, object]:
    return {"method": "sft", "rows": {"files": [rows]}, "checkpoint_every": 2, "epochs": 2}


@pytest.fixture(scope="module")
def whole(tiny_inputs: dict[str, str], rows: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of 8 steps that nothing disturbs."""
    folder = tmp_path_factory.mktemp("whole")
    facts = run(folder, tiny_inputs, **section_of(rows))
    assert facts["held_out"]["after"]["loss"] < facts["held_out"]["before"]["loss"]
    lines = lines_of(str(folder / "run"))
    assert lines[0]["held_out"] == facts["held_out"]["before"]
    assert lines[-1]["position"] == facts["rows_seen"] == 2 * facts["rows"]
    return folder


def test_a_run_that_is_killed_and_then_stopped_ends_with_the_bits_of_one_that_is_not(
    tiny_inputs: dict[str, str], rows: str, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    section = section_of(rows)
    call = arguments(tiny_inputs, str(tmp_path / "run"), tmp_path / "tuned", **section)
    with started(call, DIES_IN_ITS_SECOND_CHECKPOINT) as process:
        told = process.stderr.read()
    assert process.returncode == -signal.SIGKILL, told[-2000:]
    # Steps 3 and 4 were made and told, and no checkpoint that counts has them.
    folders = (tmp_path / "run/tuning/checkpoints").iterdir()
    assert {path.name: (path / "checkpoint.json").is_file() for path in folders} == {"2": True, "4": False}
    assert lines_of(str(tmp_path / "run"))[-1]["step"] == 4
    with monkeypatch.context() as patch:
        stopping(patch, 5)
        with pytest.raises(RunStoppedError, match="SIGTERM: stopped after step 5 of 8"):
            tune(**call)
    tune(**call)
    assert weights(tmp_path) == weights(whole)
    assert lines_of(str(tmp_path / "run")) == lines_of(str(whole / "run"))
    found, wanted = (read_run(str(folder / "run")).summary for folder in (tmp_path, whole))
    assert found["tuning"] == wanted["tuning"]
    # Once more, with all steps made: nothing changes.
    run(tmp_path, tiny_inputs, "again", **section)
    assert weights(tmp_path, "again") == weights(whole)
    with pytest.raises(ConfigError, match=r"tune.packing.rows.*was started with 16"):
        run(tmp_path, tiny_inputs, **section, packing={"rows": 8, "row_length": 24})
    lines = Path(rows).read_text()
    Path(rows).write_text(lines.replace("10+11", "10+12"))
    with pytest.raises(CheckpointError, match="made with rows"):
        run(tmp_path, tiny_inputs, **section)
    Path(rows).write_text(lines)


@pytest.mark.long
def test_a_run_on_a_bucket_that_is_killed_at_any_moment_goes_on_from_there(
    tiny_inputs: dict[str, str], rows: str, whole: Path, gcs: str, tmp_path: Path
) -> None:
    call = arguments(tiny_inputs, f"{gcs}/{tmp_path.name}/run", tmp_path / "tuned", **section_of(rows))
    with started(call) as process:
        for line in process.stderr:
            if line.startswith("step 3/8"):
                process.kill()
    assert process.returncode == -signal.SIGKILL
    tune(**call)
    assert weights(tmp_path) == weights(whole)
    assert lines_of(call["run_folder"]) == lines_of(str(whole / "run"))


def test_what_cannot_work_is_told_before_any_work(tiny_inputs: dict[str, str], rows: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="longer, rendered, than"):
        run(tmp_path, tiny_inputs, method="sft", rows={"files": [rows]}, packing={"rows": 4, "row_length": 8})
    other = tmp_path / "teacher"
    shutil.copytree(tiny_inputs["base"], other)
    CharacterTokenizer("9876543210+-*=[]\n").save(other)
    teaching = {"distill": {"teacher": {"source": str(other)}}}
    with pytest.raises(ConfigError, match=r"token 1 is '9' there and '0' for the policy"):
        run(tmp_path, tiny_inputs, method="distill", rows={"files": [rows]}, **teaching)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"method": "sft", "dpo": {"beta": 0.1}}, "changes nothing with method: sft"),
        ({"method": "distill"}, "must name a teacher"),
        ({"method": "dpo", "packing": {"rows": 1}}, "too small for two answers"),
        ({"method": "dpo", "rows": {"demonstrations": {}}}, "compares two"),
        ({"method": "dpo", "dpo": {"loss": "ipo", "label_smoothing": 0.1}}, "changes nothing with loss: ipo"),
        ({"method": "sft", "rows": {}}, "give either files or demonstrations"),
        ({"method": "sft", "measure_every": 5, "rows": {"files": ["a"], "held_out": 0}}, "held_out is 0"),
    ],
)
def test_a_key_that_would_change_nothing_is_an_error(section: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load(TuneConfig, {"rows": {"files": ["a.jsonl"]}, **section})


def test_an_epoch_is_as_many_steps_as_its_rows_give() -> None:
    """OD03: 7473 rows, 8 a step: 934 without the partial step and 935 with it; 100 where the steps are bounded."""
    settings = {"method": "sft", "rows": {"files": ["a.jsonl"]}, "rows_per_step": 8}
    assert load(TuneConfig, {**settings, "drop_last": True}).total_steps(7473) == 934
    assert load(TuneConfig, settings).total_steps(7473) == 935
    assert load(TuneConfig, {**settings, "rows_per_step": 16}).total_steps(7473) == 468
    assert load(TuneConfig, {**settings, "epochs": 3, "steps": 100}).total_steps(7473) == 100
    with pytest.raises(ConfigError, match="more than all"):
        load(TuneConfig, {**settings, "drop_last": True}).total_steps(7)

"""A recipe -> a finished run on this machine: the same pipeline as on a cluster, its steps as processes one by one."""

import contextlib
import json
import os
import resource
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import kfp.local
from kfp.components import load_component_from_text
from kfp.dsl.yaml_component import YamlComponent

from components import storage
from components.config import dump
from components.errors import ConfigError, HeadraceError, Problem, RunStoppedError
from components.telemetry.progress import say
from components.telemetry.report import write_report
from components.telemetry.run_files import REPORT, update_summary
from components.training.resumable import refuse_changes
from pipeline.compiling import pipeline_yaml, without_retries
from pipeline.processes import ended_together
from pipeline.progress import Progress
from pipeline.recipe import check_parameter_sizes, load_recipe

OUTPUTS = ("adapter", "merged")
"""What the export step writes, linked at the top of the run folder."""

FIGURES = (
    "run_dir",
    "wall_seconds",
    "peak_memory_gib",
    "steps",
    "accuracy_before",
    "accuracy_after",
    "accuracy_after_interval",
    "tokens",
    "trainer_idle_share",
    "engine_idle_share",
    "report_html",
    "adapter_dir",
    "merged_dir",
)


LOG = "log.txt"

RECIPE = "recipe.json"
"""What the first step wrote down of the recipe."""


RUN_LOCK = "run.lock"

STOP_SECONDS = 30.0
"""How long the steps of a run that is stopped may take to save (the train step: its `grace_seconds`)."""


class StepFailedError(HeadraceError):
    """A step of the pipeline ended with an error. `message` is the step's own."""

    def __init__(self, step: str, message: str, folder: Path) -> None:
        super().__init__(
            f"{message}\n\nThe step {step} failed; its whole output is in {folder / LOG}. What is done is kept: "
            f"the same command with --resume {folder} goes on from there"
        )
        self.step = step


@dataclass(frozen=True, slots=True)
class LocalRun:
    """A run that ended well: its folder, all that its steps wrote down, and the keys of `headrace run --json`."""

    folder: Path
    summary: dict[str, Any]
    figures: dict[str, Any]


def run_locally(
    recipe: str,
    *,
    name: str,
    runs: Path,
    overrides: Mapping[str, Any] | None = None,
    seed: int = -1,
    resume: Path | None = None,
    pipeline: str | None = None,
) -> LocalRun:
    """Run every step and gather the figures; progress goes to standard error.

    `recipe` is what `load_recipe` takes; `resume` is the folder of a run that was stopped, and training goes on from
    its newest checkpoint; `pipeline` is a compiled pipeline (default: this version's own). The current folder is on the
    import path of every step. Raises StepFailedError with the failed step's own message.
    """
    arguments = {"recipe": recipe, "overrides": json.dumps(dict(overrides or {}))}
    check_parameter_sizes(arguments)
    _refuse_shadowing(Path.cwd())
    if resume is None:
        folder = make_run_folder(runs, name)
    else:
        given = dict(overrides or {}) | ({"seed": seed} if seed >= 0 else {})
        folder = old_run_folder(resume, dump(load_recipe(recipe, given)))
    pipeline_component = load_component_from_text(without_retries(pipeline or pipeline_yaml()))
    started = time.monotonic()
    with storage.sole_process(folder / RUN_LOCK, patience=STOP_SECONDS, on_wait=say), _step_environment(Path.cwd()):
        say(f"run folder: {folder}")
        _run(pipeline_component, {**arguments, "seed": seed, "run_root": str(folder)}, folder)
    _link_outputs(folder)
    summary = update_summary(
        str(folder),
        {
            "run_dir": str(folder),
            "wall_seconds": round(time.monotonic() - started, 2),
            "peak_memory_gib": round(peak_memory_gib(), 3),
            "report_html": str(folder / REPORT),
            **{f"{name}_dir": str(folder / name) for name in OUTPUTS},
        },
    )
    write_report(str(folder))
    return LocalRun(folder, summary, _figures(summary))


def make_run_folder(runs: Path, name: str) -> Path:
    """Make `runs/<name>-<UTC time>-<n>`; of several runs that start in one second each gets its own."""
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    runs.mkdir(parents=True, exist_ok=True)
    for number in range(1, 1000):
        folder = runs.resolve() / f"{name}-{stamp}-{number}"
        try:
            folder.mkdir()
        except FileExistsError:
            continue
        storage.claim_folder(folder, f"process {os.getpid()}, started {stamp}")
        return folder
    raise ConfigError(Problem("runs", str(runs), f"already holds 999 runs of {name} that started at {stamp}"))


def old_run_folder(folder: Path, recipe: Mapping[str, Any]) -> Path:
    """The folder of a run that was made here by this recipe (`dump` of it).

    Raises ConfigError for any other folder, and for each key that must not change, before anything is written.
    """
    if not (folder / storage.OWN_MARKER).is_file():
        raise ConfigError(Problem("--resume", str(folder), "is no run's folder; name one that `headrace run` made"))
    record = folder / RECIPE
    if record.is_file():
        refuse_changes(json.loads(record.read_text())["recipe"], recipe)
    return folder.resolve()


def _figures(summary: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a run's summary that `headrace run --json` prints; a key that no step wrote is None."""
    proofs = summary.get("proofs", {})
    return {key: summary.get(key) for key in FIGURES} | {
        "proofs": {"sync": proofs.get("sync"), "export": proofs.get("export")}
    }


def peak_memory_gib() -> float:
    """The most that this process and the largest of its steps held at once, at worst: the sum of their peaks."""
    steps = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    # Linux counts in KiB, macOS in bytes.
    return float((_own_peak() + steps) / (2**30 if sys.platform == "darwin" else 2**20))


def _own_peak() -> int:
    """The peak of this process, in the unit of getrusage, which on Linux would count who started it, too."""
    status = Path("/proc/self/status")
    if status.is_file():
        (line,) = (line for line in status.read_text().splitlines() if line.startswith("VmHWM:"))
        return int(line.split()[1])
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _run(pipeline: YamlComponent, arguments: dict[str, Any], folder: Path) -> None:
    with (folder / LOG).open("a", encoding="utf-8") as log:
        progress = Progress(_show, log)
        kfp.local.init(kfp.local.SubprocessRunner(use_venv=False), pipeline_root=str(folder / "steps"))
        try:
            with contextlib.redirect_stdout(progress), ended_together(STOP_SECONDS):
                pipeline(**arguments)
        except RuntimeError as error:
            if progress.failed_step is None:
                raise
            raise StepFailedError(progress.failed_step, progress.error_of_failed_step(), folder) from error
        except KeyboardInterrupt:
            raise RunStoppedError(f"stopped; the same command with --resume {folder} goes on from there") from None


def _show(line: str) -> None:
    """Not `print`: while a step runs, kfp has put one in its place that also writes to standard output."""
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


@contextlib.contextmanager
def _step_environment(folder: Path) -> Iterator[None]:
    """Let the steps, and the processes that they start, import modules of `folder` and be heard line by line."""
    before = {name: os.environ.get(name) for name in ("PYTHONPATH", "PYTHONUNBUFFERED")}
    known = [before["PYTHONPATH"]] if before["PYTHONPATH"] else []
    os.environ.update(PYTHONPATH=os.pathsep.join([str(folder), *known]), PYTHONUNBUFFERED="1")
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value


def _refuse_shadowing(folder: Path) -> None:
    """A step runs with the current folder first on its import path."""
    own = Path(__file__).resolve().parents[1]
    for package in ("components", "pipeline"):
        if folder.resolve() != own and any((folder / name).exists() for name in (package, f"{package}.py")):
            message = f"holds something named {package}, which hides Headrace's own package; run from another folder"
            raise ConfigError(Problem("current folder", str(folder), message))


def _link_outputs(folder: Path) -> None:
    """Put the outputs that a person looks for at the top of the run folder; kfp keeps them by pipeline and step."""
    for name in OUTPUTS:
        found = sorted((folder / "steps").glob(f"*/export/{name}"))
        if found:
            (folder / name).unlink(missing_ok=True)
            (folder / name).symlink_to(found[-1].relative_to(folder))

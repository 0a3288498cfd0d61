"""A pipeline and its parameters -> a finished run on this machine: the same steps as on a cluster, as processes."""

import contextlib
import json
import os
import resource
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import kfp.local
from kfp.components import load_component_from_text
from kfp.dsl.yaml_component import YamlComponent

from components import storage
from components.config import dump
from components.errors import ConfigError, HeadraceError, Problem, RunStoppedError
from components.telemetry.failure import note_failure
from components.telemetry.progress import say
from components.telemetry.run_files import REPORT, read_run, update_summary
from pipeline.closing import close_run
from pipeline.compiling import for_this_machine, pipeline_yaml
from pipeline.processes import ended_together
from pipeline.progress import Progress
from pipeline.recipe import check_parameter_sizes, load_recipe
from pipeline.run_folders import has_steps, how_to_go_on, is_finished, make_run_folder, old_run_folder, reopen

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
RUN_LOCK = "run.lock"

STOP_SECONDS = 30.0
"""How long the steps of a run that is stopped may take to save (the train step: its `grace_seconds`)."""


class StepFailedError(HeadraceError):
    """A step of the pipeline ended with an error, `reason`, which is the step's own. `resumable` says whether the
    command can go on with the run; that is told where there are optimizer steps to go on from.
    """

    def __init__(self, step: str, reason: str, folder: Path, *, resumable: bool = True) -> None:
        kept = (
            f". Optimizer steps are kept: the same command with --resume {folder} goes on from them, and makes again "
            "what comes before"
        )
        where = f"The step {step} failed; its whole output is in {folder / LOG}"
        super().__init__(f"{reason}\n\n{where}{kept if resumable and has_steps(folder) else ''}")
        self.step, self.reason = step, reason


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
    seed: int | None = None,
    resume: Path | None = None,
    pipeline: str | None = None,
) -> LocalRun:
    """Run every step of the post-training pipeline and gather the figures; progress goes to standard error.

    `recipe` is what `load_recipe` takes; `seed` is in place of the recipe's own; `resume` is the folder of a run that
    was stopped: training goes on from its newest checkpoint, and one that is finished is left as it is. `pipeline` is a
    compiled pipeline (default: the shipped one with the recipe's steps). The current folder is on the import path of
    every step. Raises StepFailedError with the failed step's own message.
    """
    arguments = {"recipe": recipe, "overrides": json.dumps(dict(overrides or {})), "seed": -1 if seed is None else seed}
    given = dict(overrides or {}) | ({} if seed is None else {"seed": seed})
    loaded = load_recipe(recipe, given)
    old = old_run_folder(resume, dump(loaded)) if resume else None
    if old is not None and is_finished(old, dump(loaded)):
        say(f"{old}: the run is finished; nothing to do. {how_to_go_on(old, dump(loaded))}")
        summary = dict(read_run(str(old), trajectories=False).summary)
        return LocalRun(old, summary, _figures(summary))
    folder, summary = run_pipeline(
        pipeline or pipeline_yaml(loaded.pipeline), arguments, name=name, runs=runs, folder=old, resumable=True
    )
    made = {f"{name}_dir": str(folder / name) if _link_output(folder, name) else None for name in OUTPUTS}
    summary = update_summary(str(folder), {**summary, "report_html": str(folder / REPORT), **made})
    close_run(str(folder))
    return LocalRun(folder, summary, _figures(summary))


def run_pipeline(
    pipeline: str,
    arguments: Mapping[str, Any],
    *,
    name: str,
    runs: Path,
    folder: Path | None = None,
    resumable: bool = False,
) -> tuple[Path, dict[str, Any]]:
    """Run a compiled pipeline with these parameters; gives the run's folder and what it cost.

    A new folder is made below `runs`, named after `name`, unless `folder` is given. `resumable` says whether the
    command that is told of a failure can go on with the folder. Raises StepFailedError.
    """
    check_parameter_sizes({key: value for key, value in arguments.items() if isinstance(value, str)})
    _refuse_shadowing(Path.cwd())
    folder = folder or make_run_folder(runs, name)
    component = load_component_from_text(for_this_machine(pipeline))
    started = time.monotonic()
    with storage.sole_process(folder / RUN_LOCK, patience=STOP_SECONDS, on_wait=say), _step_environment(Path.cwd()):
        say(f"run folder: {folder}")
        reopen(folder)
        try:
            _run(component, {**arguments, "run_root": str(folder)}, folder, resumable)
        except (StepFailedError, RunStoppedError) as error:
            _close_failed(folder, error)
            raise
    return folder, {
        "run_dir": str(folder),
        "wall_seconds": round(time.monotonic() - started, 2),
        "peak_memory_gib": round(peak_memory_gib(), 3),
    }


def _close_failed(folder: Path, error: StepFailedError | RunStoppedError) -> None:
    """The last report says what happened. It must not hide it, whatever becomes of the report."""
    step, reason = (error.step, error.reason) if isinstance(error, StepFailedError) else ("", str(error))
    with contextlib.suppress(OSError, HeadraceError):
        # One that was killed has noted nothing, and the exit step knows less than what was seen here.
        note_failure(str(folder), step, reason)
        close_run(str(folder), error=reason)


def output_of(folder: Path, step: str, name: str) -> Path | None:
    """Where the newest try of a step has put an output; None where it never ran."""
    found = sorted((folder / "steps").glob(f"*/{step}/{name}"))
    return found[-1] if found else None


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


def _run(pipeline: YamlComponent, arguments: dict[str, Any], folder: Path, resumable: bool) -> None:
    with (folder / LOG).open("a", encoding="utf-8") as log:
        progress = Progress(_show, log)
        kfp.local.init(kfp.local.SubprocessRunner(use_venv=False), pipeline_root=str(folder / "steps"))
        try:
            with contextlib.redirect_stdout(progress), ended_together(STOP_SECONDS):
                pipeline(**arguments)
        except RuntimeError as error:
            if progress.failed_step is None:
                raise
            message = progress.error_of_failed_step()
            raise StepFailedError(progress.failed_step, message, folder, resumable=resumable) from error
        except KeyboardInterrupt:
            hint = (
                f"; the same command with --resume {folder} goes on from there"
                if resumable and has_steps(folder)
                else ""
            )
            raise RunStoppedError(f"stopped{hint}") from None


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


def _link_output(folder: Path, name: str) -> bool:
    """Put an output that a person looks for at the top of the run folder; kfp keeps them by pipeline and step."""
    found = output_of(folder, "export", name)
    if found is not None:
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(found.relative_to(folder))
    return found is not None

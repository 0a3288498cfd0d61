"""A run's journal -> the same optimizer steps again, each compared with the one that was made.

Nothing is generated: groups are trained on in the order in which the run consumed them, however asynchronous it was. So
a faulty step can be looked at as often as needed, and a run can prove that its adapter came from its trajectories.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from components import storage
from components.config import load
from components.errors import CheckpointError, ProofError
from components.model import platform
from components.model.base_artifact import read_base
from components.model.peft import load_adapter, read_config, save_adapter
from components.model.weights import load as load_model
from components.rollout.prepare import read_tasks
from components.storage import read_lines
from components.training.history import History, Opened, Step, steps_of
from components.training.journal import JOURNAL, read_journal
from components.training.journal_lines import from_line
from components.training.learner import Learner
from components.training.profiling import Profiler, StepRange
from components.training.resume import recompute
from components.training.run import TrainConfig, make_learner
from components.training.weight_sync import fingerprint


@dataclass(frozen=True, slots=True)
class Replay:
    """What came out: optimizer steps that were made again, and the fingerprint of the last adapter."""

    steps: int
    fingerprint: str


def replay(
    run_folder: str,
    *,
    adapter: Path | None = None,
    profile: StepRange | None = None,
    on_step: Callable[[Step], None] = lambda step: None,
) -> Replay:
    """Make every optimizer step of a run again, from the adapter that it started from; write the last to `adapter`.

    With `profile` a device timeline is taken of those steps, and no later one is made.

    Raises CheckpointError where there is no journal or an input is gone, ProofError naming the first step whose adapter
    is not the run's, bit for bit. Bits are those of the machine's kind: compare on the hardware that the run was on.
    """
    opened = _opened(run_folder)
    tasks = {task.id: task for task in read_tasks(opened.inputs["tasks"], "train")}
    learner = _learner(opened)
    history, profiler = History(), Profiler(run_folder, profile)
    for step in steps_of(read_journal(run_folder, tasks), history):
        profiler.before(step.version)
        recompute(learner, step)
        found = fingerprint(learner.state.adapter)
        if found != step.fingerprint:
            raise ProofError(
                f"step {step.version} gives adapter {found} and gave {step.fingerprint} in the run; "
                "the steps before it are the same"
            )
        profiler.after(step.version)
        on_step(step)
        if profile is not None and step.version == profile.last:
            break
    profiler.close()
    if adapter is not None:
        start = Path(opened.inputs["adapter"])
        save_adapter(adapter, learner.state.adapter, read_config(start), base_name=opened.inputs["base"])
    return Replay(history.version, fingerprint(learner.state.adapter))


def _opened(run_folder: str) -> Opened:
    uri = storage.join(run_folder, JOURNAL)
    lines = read_lines(uri)
    first = from_line(lines[0], {}) if lines else None
    if not isinstance(first, Opened):
        raise CheckpointError(f"{uri} holds no run to replay; name the folder of a run that has trained")
    return first


def _learner(opened: Opened) -> Learner:
    """A learner as the run had it at its first step."""
    for name, folder in opened.inputs.items():
        if not Path(folder).is_dir():
            raise CheckpointError(f"the run's {name} are gone from {folder}; a replay needs what the run started from")
    platform.use_compilation_cache()
    artifact = read_base(Path(opened.inputs["base"]))
    settings = load(TrainConfig, opened.settings["train"], where="train")
    trainer = settings.sides().trainer
    model = load_model(artifact.source, dtype=artifact.dtype, quantise=artifact.quantise, placement=trainer)
    start = load_adapter(Path(opened.inputs["adapter"]), model.architecture)
    return make_learner(model, trainer.weights(start), settings, opened.settings["seed"])

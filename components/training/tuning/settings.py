"""What the `tune` section of a recipe may say: a method, its rows, and how they become optimizer steps."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import Field

from components.algorithms.preference import PreferenceLoss
from components.algorithms.terms import Reference
from components.config import config
from components.errors import ConfigError, Problem
from components.model.placement import MeshConfig
from components.model.quantise import Kind
from components.model.remat import Remat
from components.training.optimizer import OptimizerConfig, optimizer_steps
from components.training.packing import PackingConfig

FREE = ("tune.checkpoint_every", "tune.checkpoints_kept", "tune.grace_seconds", "tune.measure_every", "tune.mesh")
"""Settings that a resumed run may change."""
FREE_AT_A_CONSTANT_RATE = ("tune.steps", "tune.epochs", "tune.rows_per_step")
"""And these, where the learning rate does not depend on how many steps there are."""


class Method(StrEnum):
    """What is learnt from a row: its answers, which of two answers is better, or a teacher's view of its answers."""

    SFT = "sft"
    DPO = "dpo"
    ORPO = "orpo"
    DISTILL = "distill"

    @property
    def compares(self) -> bool:
        """Whether a row holds two answers."""
        return self in (Method.DPO, Method.ORPO)


@config
class DemonstrationConfig:
    """The environment's own demonstrations of its training tasks; `tool_share` of them call the tool."""

    tool_share: Annotated[float, Field(ge=0, le=1)] = 1.0


@config
class RowsConfig:
    """Where rows come from: `files` (JSONL or Parquet, local or gs://) or `demonstrations`, one of both.

    bad_rows: "refuse" stops before any work and lists every bad row with its line and field; "skip" leaves them out and
        counts them.
    too_long: what becomes of rows that are longer, rendered, than a row of the packing: refused with all others, or
        dropped and counted.
    min_reward: of rows that have a `reward`, such as those of a run's trajectories.jsonl, only those from this on.
    held_out: the share of rows that is never trained on, but measured before and after.
    """

    files: tuple[str, ...] = ()
    demonstrations: DemonstrationConfig | None = None
    bad_rows: Literal["refuse", "skip"] = "refuse"
    too_long: Literal["refuse", "drop"] = "refuse"
    min_reward: float | None = None
    held_out: Annotated[float, Field(ge=0, lt=1)] = 0.1

    def __post_init__(self) -> None:
        if bool(self.files) == (self.demonstrations is not None):
            given = "both" if self.files else "neither"
            raise ConfigError(Problem("tune.rows", given, "give either files or demonstrations"))
        if self.demonstrations is not None and self.min_reward is not None:
            raise ConfigError(
                Problem("tune.rows.min_reward", self.min_reward, "changes nothing: demonstrations have none")
            )


@config
class DpoConfig:
    """`reference` is what the policy is compared with: the bare base, or the adapter that tuning starts from."""

    beta: Annotated[float, Field(gt=0)] = 0.1
    label_smoothing: Annotated[float, Field(ge=0, lt=0.5)] = 0.0
    loss: PreferenceLoss = PreferenceLoss.SIGMOID
    reference: Reference = Reference.START

    def __post_init__(self) -> None:
        if self.loss is PreferenceLoss.IPO and self.label_smoothing:
            message = "changes nothing with loss: ipo, which is not made of probabilities"
            raise ConfigError(Problem("tune.dpo.label_smoothing", self.label_smoothing, message))


@config
class OrpoConfig:
    """`weight` is that of the odds ratio beside the likelihood of the chosen answer (lambda in the paper)."""

    weight: Annotated[float, Field(gt=0)] = 0.1


@config
class TeacherConfig:
    """A model with the policy's vocabulary: a Hugging Face folder, a .gguf file or `package:NAME`."""

    source: str
    dtype: Literal["float32", "bfloat16"] = "float32"
    quantise: Kind = "none"


@config
class DistillConfig:
    """KL(teacher || policy) and KL(policy || teacher): the second weighs `reverse`, the first the rest.

    Both are of softmax(logits / temperature), and times temperature ** 2, so that gradients keep their size.
    """

    teacher: TeacherConfig
    reverse: Annotated[float, Field(ge=0, le=1)] = 0.0
    temperature: Annotated[float, Field(gt=0)] = 1.0


@config
class TuneConfig:
    """How the adapter is tuned before it is trained, or in place of that.

    A step takes `rows_per_step` rows. There are as many steps as the rows give in `epochs`, and no more than `steps`;
    with `drop_last` a last step of fewer rows is left out. Held-out rows are measured before the first step, every
    `measure_every` steps and after the last. `grace_seconds` is the time to save of a process that is told to
    stop. `remat` is what the backward pass keeps of the forward pass: `full` the least.
    """

    method: Method
    rows: RowsConfig
    dpo: DpoConfig | None = None
    orpo: OrpoConfig | None = None
    distill: DistillConfig | None = None
    rows_per_step: Annotated[int, Field(ge=1)] = 16
    epochs: Annotated[int, Field(ge=1)] = 1
    steps: Annotated[int, Field(ge=1)] | None = None
    drop_last: bool = False
    optimizer: OptimizerConfig = OptimizerConfig(learning_rate=1e-4)
    packing: PackingConfig = PackingConfig()
    remat: Remat = "full"
    measure_every: Annotated[int, Field(ge=1)] | None = None
    checkpoint_every: Annotated[int, Field(ge=1)] = 50
    checkpoints_kept: Annotated[int, Field(ge=1)] = 2
    grace_seconds: Annotated[float, Field(ge=0)] = 10.0
    mesh: MeshConfig | None = None

    def __post_init__(self) -> None:
        problems = [
            Problem(f"tune.{name}", given, f"changes nothing with method: {self.method}")
            for name, given in (("dpo", self.dpo), ("orpo", self.orpo), ("distill", self.distill))
            if given is not None and name != self.method
        ]
        if self.method is Method.DISTILL and self.distill is None:
            problems.append(Problem("tune.distill", None, "must name a teacher: {teacher: {source: ...}}"))
        if self.method.compares:
            problems += self._pair_problems()
        if self.measure_every is not None and not self.rows.held_out:
            problems.append(Problem("tune.measure_every", self.measure_every, "changes nothing: rows.held_out is 0"))
        if problems:
            raise ConfigError(problems)

    def total_steps(self, rows: int) -> int:
        """Optimizer steps over so many rows. Raises ConfigError when there would be none."""
        steps = optimizer_steps(rows, self.rows_per_step, self.epochs, self.steps, self.drop_last)
        if not steps:
            message = f"is more than all of the {rows} rows in {self.epochs} epochs, and drop_last leaves out the rest"
            raise ConfigError(Problem("tune.rows_per_step", self.rows_per_step, message))
        return steps

    def _pair_problems(self) -> list[Problem]:
        problems = []
        if self.rows.demonstrations is not None:
            message = f"show one answer to each task; method {self.method} compares two, so give files"
            problems.append(Problem("tune.rows.demonstrations", "given", message))
        packing = self.packing
        if packing.rows < 2 or packing.sizes[-1] < 2 * (packing.row_length - 1):
            message = "is too small for two answers that fill a row each; both must be in one micro-batch"
            problems.append(Problem("tune.packing", {"rows": packing.rows, "capacities": packing.capacities}, message))
        return problems


def free_to_change(*sections: Mapping[str, Any]) -> tuple[str, ...]:
    """The settings that a resumed run may change, from what the section was and is, as `dump` gives it."""
    constant = all(section["optimizer"]["schedule"] == "constant" for section in sections)
    return (*FREE, *(FREE_AT_A_CONSTANT_RATE if constant else ()))

"""Examples in an order -> optimizer steps, each written down, measured and saved when it is due.

The position in the data is kept in rows, beside the train state, in the same checkpoint: a killed run that is started
again sees every row as often as one that was not, and ends with the same bits.
"""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from components import storage
from components.errors import RunStoppedError
from components.telemetry.metrics import MetricsLog
from components.telemetry.progress import say
from components.telemetry.spans import span
from components.training.tuning.examples import Example
from components.training.tuning.order import RowOrder
from components.training.tuning.settings import TuneConfig
from components.training.tuning.tuner import Tuner

Numbers = dict[str, float]


@dataclass
class Progress:
    """How far a run has come: steps made, rows taken, and what was measured of held-out rows."""

    step: int = 0
    position: int = 0
    held_out: dict[str, Numbers] = field(default_factory=dict)

    def facts(self) -> dict[str, Any]:
        """As a checkpoint keeps it beside the train state."""
        return {"position": self.position, "held_out": self.held_out}

    @classmethod
    def of(cls, step: int, facts: Mapping[str, Any]) -> "Progress":
        """What `facts` gave at that step."""
        return cls(step, facts["position"], dict(facts["held_out"]))


Save = Callable[[Progress], None]


class TuningLoop:
    """From `progress` to the last row or step. `save` writes a checkpoint of the tuner's state and the progress."""

    def __init__(
        self,
        tuner: Tuner,
        examples: Sequence[Example],
        order: RowOrder,
        held_out: Sequence[int],
        settings: TuneConfig,
        progress: Progress,
        records: MetricsLog,
        *,
        save: Save,
    ) -> None:
        self.progress = progress
        self._tuner = tuner
        self._examples = examples
        self._order = order
        self._held_out = held_out
        self._settings = settings
        self._records = records
        self._save = save
        self._saved = progress.step
        self._stop_reason = ""
        self._end = len(order.training) * settings.epochs
        self._last = progress.step + self._steps_left()

    async def run(self) -> None:
        """Make the steps that are left. Raises RunStoppedError when it was stopped before the last."""
        if "before" not in self.progress.held_out:
            self.progress.held_out["before"] = await asyncio.to_thread(self._measure)
            self._records.write(0, self._with_held_out({}, "before"))
        while self.progress.step < self._last and not self._stop_reason:
            await asyncio.to_thread(self._one_step)
        if self.progress.step < self._last:
            await asyncio.to_thread(self._checkpoint)
            raise RunStoppedError(
                f"{self._stop_reason}: stopped after step {self.progress.step} of {self._last}; nothing is lost, and "
                "the same command goes on from here"
            )
        if self._saved < self._last:
            await asyncio.to_thread(self._checkpoint)

    def stop(self, reason: str) -> None:
        """End after the step that is being made."""
        storage.hurry(self._settings.grace_seconds)
        say(f"{reason}: saving what is done, up to step {self.progress.step}")
        self._stop_reason = reason

    def _one_step(self) -> None:
        started = time.perf_counter()
        progress, settings = self.progress, self._settings
        rows = self._order.take(progress.position, settings.rows_per_step, self._end)
        with span("tune", step=progress.step + 1):
            numbers = self._tuner.learn([self._examples[row].row() for row in rows])
        progress.step += 1
        progress.position += len(rows)
        line: dict[str, Any] = {
            **numbers,
            "position": progress.position,
            "epoch": (progress.position - 1) // len(self._order.training),
            "seconds": time.perf_counter() - started,
        }
        if progress.step == self._last:
            progress.held_out["after"] = self._measure()
            line = self._with_held_out(line, "after")
        elif settings.measure_every is not None and progress.step % settings.measure_every == 0:
            line["held_out"] = self._measure()
        self._records.write(progress.step, line)
        say(_said(progress.step, self._last, line))
        if progress.step % settings.checkpoint_every == 0 or progress.step == self._last:
            self._checkpoint()

    def _checkpoint(self) -> None:
        self._save(self.progress)
        self._saved = self.progress.step

    def _measure(self) -> Numbers:
        if not self._held_out:
            return {}
        return self._tuner.measure([self._examples[row].row() for row in self._held_out])

    def _with_held_out(self, line: dict[str, Any], when: str) -> dict[str, Any]:
        measured = self.progress.held_out[when]
        if not measured:
            return line
        say(f"held out, {when} tuning: {_listed(measured)}")
        return {**line, "held_out": measured}

    def _steps_left(self) -> int:
        """By rows per step as they are now: a resumed run may have more of them, or fewer, than before."""
        rows, each = self._end - self.progress.position, self._settings.rows_per_step
        left = max(rows // each if self._settings.drop_last else -(-rows // each), 0)
        most = self._settings.steps
        return left if most is None else min(left, max(most - self.progress.step, 0))


def _said(step: int, steps: int, line: Mapping[str, Any]) -> str:
    shown = {
        name: line[name] for name in ("loss", "token_accuracy", "preference_accuracy", "forward_kl") if name in line
    }
    return f"step {step:>{len(str(steps))}}/{steps}  {_listed(shown)}  {line['seconds']:.1f} s"


def _listed(numbers: Mapping[str, float]) -> str:
    return "  ".join(f"{name.replace('_', ' ')} {value:.4g}" for name, value in numbers.items())

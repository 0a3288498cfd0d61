"""What happened in an optimizer step -> lines in the run folder that people and reports read."""

import functools
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, ParamSpec

import numpy as np

from components import storage
from components.rollout.tokenizer import Tokenizer
from components.telemetry.alerts import Alerts
from components.telemetry.metrics import MetricsLog
from components.telemetry.outlets.outlet import Outlet
from components.telemetry.progress import say
from components.telemetry.refresh import Refresher
from components.telemetry.run_files import METRICS, TRAJECTORIES, update_summary
from components.telemetry.tool_calls import tool_numbers
from components.training.trajectory_lines import Logprobs, TrajectoryLines
from components.types import Group, Outcome, Trajectory

P = ParamSpec("P")


class RunRecords:
    """Appends to `metrics.jsonl` (every step) and `trajectories.jsonl` (a sample of each group, and every failure).

    With a tokenizer the trajectories are written token by token, too; `alerts` look at every step, and `outlets` and
    `reports` are told of it. A resumed run takes back the lines of steps after `resumed_after`. Nobody waits for the
    storage but who calls `flush`, and who leaves the block that the records were entered for: a thread of its own
    writes. What it fails of is raised by the next call.
    """

    def __init__(
        self,
        run_folder: str,
        *,
        resumed_after: int | None = None,
        tokenizer: Tokenizer | None = None,
        reports: Refresher | None = None,
        alerts: Alerts | None = None,
        outlets: Outlet | None = None,
    ) -> None:
        self._run_folder = run_folder
        self._metrics = MetricsLog(storage.join(run_folder, METRICS), resumed_after=resumed_after)
        self._trajectories = storage.LineLog(storage.join(run_folder, TRAJECTORIES))
        self._lines = TrajectoryLines(tokenizer)
        self._reports = reports
        self._alerts = alerts
        self._outlets = outlets
        self._step = resumed_after or 0
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="records")
        self._unfinished: deque[Future[None]] = deque()
        self._sound = True

    def __enter__(self) -> "RunRecords":
        return self

    def __exit__(self, kind: type[BaseException] | None, *others: object) -> None:
        self._writer.shutdown()
        if self._outlets is not None:
            self._outlets.close()
        if self._reports is not None:
            self._reports.close()
        if kind is None:
            self.flush()

    def step(
        self, step: int, numbers: Mapping[str, Any], groups: Sequence[Group], logprobs: Logprobs | None = None
    ) -> None:
        """Write one optimizer step down; `logprobs` are the trainer's, where they are known."""
        self._step = step
        self._later(self._write, step, numbers, groups, logprobs)

    def failed(self, trajectory: Trajectory) -> None:
        """Write a failed attempt down, with what the boundary said."""
        self._later(self._write_failed, self._step, trajectory)

    def flush(self) -> None:
        """Wait until everything so far is on the storage. May be called on any thread."""
        for each in tuple(self._unfinished):
            each.result()

    def _write(self, step: int, numbers: Mapping[str, Any], groups: Sequence[Group], logprobs: Logprobs | None) -> None:
        numbers = {**numbers, "alerts": self._raised(step, numbers)}
        self._metrics.write(step, numbers)
        for line in self._lines.step(step, groups, logprobs):
            self._trajectories.append(line)
        self._trajectories.sync()
        if self._outlets is not None:
            self._outlets.step(step, numbers)
        if self._reports is not None:
            self._reports.step()

    def _raised(self, step: int, numbers: Mapping[str, Any]) -> list[str]:
        """The rules that this step breaks for the first time; a person is told, and the run's summary keeps them."""
        raised = self._alerts.look(step, numbers) if self._alerts else []
        for alert in raised:
            say(f"alert: {alert}")
        if raised and self._alerts:
            update_summary(self._run_folder, {"alerts": [str(alert) for alert in self._alerts.told]})
        return [alert.rule for alert in raised]

    def _write_failed(self, step: int, trajectory: Trajectory) -> None:
        self._trajectories.append(self._lines.failed(step, trajectory))

    def _later(self, work: Callable[P, None], *arguments: P.args, **keywords: P.kwargs) -> None:
        while self._unfinished and self._unfinished[0].done():
            self._unfinished[0].result()
            self._unfinished.popleft()
        self._unfinished.append(
            self._writer.submit(self._unless_failed, functools.partial(work, *arguments, **keywords))
        )

    def _unless_failed(self, work: Callable[[], None]) -> None:
        """After a failure nothing more is written, so that nothing has a gap, and nobody waits once more."""
        if self._sound:
            self._sound = False
            work()
            self._sound = True


def episode_numbers(trajectories: Sequence[Trajectory]) -> dict[str, Any]:
    """Means over the episodes of a step, failures by kind; the parts of the reward each on its own."""
    outcomes = Counter(trajectory.outcome for trajectory in trajectories)
    calls = sum(trajectory.tool_calls for trajectory in trajectories)
    parts: dict[str, list[float]] = {}
    for trajectory in trajectories:
        for name, value in trajectory.reward_parts.items():
            parts.setdefault(name, []).append(value)
    return {
        "episodes": len(trajectories),
        "truncated_share": outcomes[Outcome.TRUNCATED] / len(trajectories),
        "failures": Counter(trajectory.failure.kind for trajectory in trajectories if trajectory.failure),
        "turns": _mean(len(trajectory.turns) for trajectory in trajectories),
        "completion_tokens": _mean(trajectory.generated_tokens for trajectory in trajectories),
        "episode_seconds": _mean(trajectory.seconds for trajectory in trajectories),
        "tool_seconds": _mean(trajectory.tool_seconds for trajectory in trajectories),
        "tool_calls": _mean(trajectory.tool_calls for trajectory in trajectories),
        "tool_error_rate": sum(trajectory.tool_errors for trajectory in trajectories) / calls if calls else 0.0,
        "tools": tool_numbers(call for trajectory in trajectories for turn in trajectory.turns for call in turn.calls),
        "malformed_calls": _mean(trajectory.malformed_calls for trajectory in trajectories),
        **_malformed_shares(trajectories),
        "reward_parts": {name: _mean(values) for name, values in parts.items()},
    }


def _malformed_shares(trajectories: Sequence[Trajectory]) -> dict[str, Any]:
    """Of all calls that the policy wrote, the share that could not be understood, whole and by the reason's kind."""
    kinds = Counter(
        call.kind for trajectory in trajectories for message in trajectory.messages for call in message.malformed_calls
    )
    tried = kinds.total() + sum(trajectory.tool_calls for trajectory in trajectories)
    shares = {kind: count / tried for kind, count in kinds.items()}
    return {
        "malformed_share": kinds.total() / tried if tried else 0.0,
        "malformed_by_kind": shares,
    }


def version_numbers(groups: Sequence[Group], version: int) -> dict[str, Any]:
    """Staleness, the version at the update minus that of a trajectory's oldest token, and how many have which."""
    staleness = [version - trajectory.oldest_version for group in groups for trajectory in group.valid]
    return {
        "staleness_mean": _mean(staleness),
        "staleness_max": max(staleness, default=0),
        "staleness": {str(each): amount for each, amount in sorted(Counter(staleness).items())},
    }


def _mean(values: Any) -> float:
    numbers = list(values)
    return float(np.mean(numbers)) if numbers else 0.0

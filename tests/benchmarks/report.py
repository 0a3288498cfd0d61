"""Seconds that the report of a long run takes to build, and its size.

The run is made up: 200 steps of 64 trajectories of three turns with two tools, written by the code that writes those of
real runs. `report_seconds` is wall time in a process of its own, as a run starts one to refresh its report, less the
`import_seconds` of matplotlib; `read_bytes` is what the trajectories' file holds.

    python -m tests.benchmarks.report --json [--quick]
"""

import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from components import storage
from components.rollout.tokenizer import CharacterTokenizer
from components.telemetry.run_files import EVALUATION, METRICS, SUMMARY, TRAJECTORIES
from components.training.trajectory_lines import TrajectoryLines
from components.types import (
    Completion,
    Failure,
    FinishReason,
    Group,
    Message,
    Outcome,
    Role,
    Task,
    ToolCall,
    Trajectory,
    Turn,
)
from tests.benchmarks.timing import arguments, print_figures
from tests.telemetry.synthetic import write_run

REPOSITORY = Path(__file__).resolve().parents[2]
GROUP = 8
ALPHABET = CharacterTokenizer("abcdefghijklmnopqrstuvwxyz ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789*=()?.,:-_{}\"'\n")


def synthetic_run(folder: str, steps: int = 200, trajectories: int = 64, *, seed: int = 0) -> None:
    """Write the run folder of a run of `steps` optimizer steps with so many trajectories each, in groups of 8."""
    write_run(folder, steps=steps, trajectories=0, seed=seed)
    chance = random.Random(seed)
    lines = TrajectoryLines(ALPHABET)
    log = storage.LineLog(storage.join(folder, TRAJECTORIES))
    for step in range(1, steps + 1):
        for line in _step(step, steps, trajectories, lines, chance):
            log.append(line)
        log.sync()


def measure(folder: str, repeats: int = 3) -> dict[str, float]:
    """Build the report of a run folder in processes of their own."""
    found = [json.loads(_once(folder)) for _ in range(repeats)]
    return {key: statistics.median(each[key] for each in found) for key in found[0]}


def main() -> None:
    """Measure and print, or be the process that builds."""
    if sys.argv[1:2] == ["--folder"]:
        build(sys.argv[2])
        return
    options = arguments("Seconds and bytes of the report of a long run")
    with tempfile.TemporaryDirectory() as folder:
        synthetic_run(folder)
        files = (METRICS, TRAJECTORIES, SUMMARY, EVALUATION)
        print({name: Path(folder, name).stat().st_size for name in files}, file=sys.stderr)
        print_figures(measure(folder, 1 if options.quick else 3), options)


def build(folder: str) -> None:
    """Build one report and say what it took."""
    started = time.perf_counter()
    from components.telemetry.report import write_report

    imported, spent = time.perf_counter(), time.process_time()
    file = write_report(folder)
    figures = {
        "report_seconds": time.perf_counter() - imported,
        "report_cpu_seconds": time.process_time() - spent,
        "import_seconds": imported - started,
        "report_bytes": Path(file).stat().st_size,
        "read_bytes": Path(folder, TRAJECTORIES).stat().st_size,
    }
    print(json.dumps(figures))


def _once(folder: str) -> str:
    line = [sys.executable, "-m", "tests.benchmarks.report", "--folder", folder]
    found = subprocess.run(line, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True, check=True)
    return found.stdout.splitlines()[-1]


def _step(step: int, steps: int, count: int, lines: TrajectoryLines, chance: random.Random) -> list[str]:
    members = [_trajectory(step, at, step / steps, chance) for at in range(count)]
    broken = [each for each in members if each.failure]
    groups = [Group(members[at].task, tuple(members[at : at + GROUP])) for at in range(0, count, GROUP)]
    return [lines.failed(step - 1, each) for each in broken] + lines.step(step, groups)


def _trajectory(step: int, at: int, progress: float, chance: random.Random) -> Trajectory:
    """Asks a tool twice and answers; now and then the tool breaks."""
    left, right = chance.randrange(100, 1000), chance.randrange(100, 1000)
    prompt = f"You can call tools.\nWhat is {left} * {right}? Think step by step, and use the calculator."
    said = [
        f"First I need the product of {left} and {right}, so I call the calculator with it. " * 2,
        f"Now I check it once more, the other way around: {right} times {left}. " * 2,
        f"The answer is {left * right}.",
    ]
    messages = [Message(Role.USER, prompt)]
    turns: list[Turn] = []
    seen: tuple[int, ...] = tuple(ALPHABET.encode(prompt))
    for text in said:
        reply = f"\ncalculator: {left * right}\n"
        ids = tuple(ALPHABET.encode(text))
        logprobs = tuple(-chance.expovariate(3) for _ in ids)
        versions = tuple(max(0, step - 1 - (chance.random() < 0.1)) for _ in ids)
        turns.append(Turn(seen, Completion(ids, logprobs, versions, FinishReason.STOP)))
        call = ToolCall("calculator", {"expression": f"{left} * {right}"})
        messages += [Message(Role.ASSISTANT, text, tool_calls=(call,)), Message(Role.TOOL, reply, name="calculator")]
        seen = (*seen, *ids, *ALPHABET.encode(reply))
    is_broken = chance.random() < 0.005
    return Trajectory(
        task=Task(f"problem-{step}-{at // GROUP}", prompt),
        turns=tuple(turns),
        messages=tuple(messages[:-1]),
        outcome=Outcome.FAILED if is_broken else Outcome.FINISHED,
        reward=None if is_broken else float(chance.random() < progress),
        failure=Failure("tool", "the sandbox did not answer") if is_broken else None,
        member=at % GROUP,
        tool_calls=2,
        tool_errors=int(chance.random() < 0.02),
        seconds=2.0 + chance.random(),
        tool_seconds=chance.random(),
    )


if __name__ == "__main__":
    main()

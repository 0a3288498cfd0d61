"""How many small executions a second, and does anything get out?

Executions are one after another in as many workers as there are processors, each with a fresh process that is forked
from a warm one. Escapes are the programs of tests/environments/escapes.py: all of them in the sandbox; where this
machine has none, those that `isolation: process` claims to stop.

    python -m tests.benchmarks.sandbox --json [--quick]
"""

import asyncio
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from components.environments.sandbox.detection import reason_against
from components.environments.sandbox.limits import Isolation
from components.environments.sandbox.pool import Sandbox
from components.environments.unit_tests import UnitTests
from tests.benchmarks.timing import arguments, print_figures
from tests.environments.escapes import ALL, NOT_STOPPED_BY_PROCESS
from tests.environments.outside import outside, try_all

CODE = "total = 0\nfor number in range({number}):\n    total += number\nprint(total)\ntotal"
PROGRAM = "def add(a, b):\n    return a + b\n"
TESTS = [f"assert add({number}, 1) == {number + 1}" for number in range(5)]


async def executions_per_second(sandbox: Sandbox, count: int) -> float:
    """Small programs, all asked for at once."""
    started = time.perf_counter()
    found = await asyncio.gather(*(sandbox.run(CODE.format(number=number)) for number in range(count)))
    seconds = time.perf_counter() - started
    assert [each.value for each in found] == [str(sum(range(number))) for number in range(count)]
    return count / seconds


async def grades_per_second(grader: UnitTests, count: int) -> float:
    """Programs that are graded by five asserts, in two executions each."""
    started = time.perf_counter()
    grades = await asyncio.gather(*(grader.grade_asserts(PROGRAM, TESTS) for _ in range(count)))
    seconds = time.perf_counter() - started
    assert {grade.reward for grade in grades} == {1.0}
    return count / seconds


def measure(isolation: Isolation, *, quick: bool) -> dict[str, Any]:
    """The figures of one isolation; rates are medians. Processor time is of this process and of all below it."""
    count, repeats = (100, 3) if quick else (400, 5)
    not_stopped = {name for names in NOT_STOPPED_BY_PROCESS.values() for name in names}
    escapes = [each for each in ALL if isolation == "sandbox" or each.name not in not_stopped]
    before = sum(os.times()[:4])
    with Sandbox(isolation) as sandbox:
        asyncio.run(sandbox.run("'warm'"))
        rates = [asyncio.run(executions_per_second(sandbox, count)) for _ in range(repeats)]
    cpu_seconds = sum(os.times()[:4]) - before
    grader = UnitTests(isolation)
    asyncio.run(grades_per_second(grader, 4))
    grades = [asyncio.run(grades_per_second(grader, count // 4)) for _ in range(repeats)]
    with (
        tempfile.TemporaryDirectory() as folder,
        outside(Path(folder)) as world,
        Sandbox(isolation, workers=1) as sandbox,
    ):
        asyncio.run(sandbox.run("'warm'"))
        succeeded = try_all(world, sandbox, escapes)
    return {
        "executions_per_second": statistics.median(rates),
        "cpu_milliseconds_per_execution": 1000 * cpu_seconds / (count * repeats),
        "unit_test_grades_per_second": statistics.median(grades),
        "escapes_tried": len(escapes),
        "escapes_succeeded": len(succeeded),
        "succeeded": succeeded,
    }


def main() -> None:
    """Print the figures of the strongest isolation that this machine has."""
    options = arguments(str(__doc__))
    reason = reason_against("sandbox")
    isolation: Isolation = "sandbox" if reason is None else "process"
    skipped = {} if reason is None else {"sandbox": reason}
    print_figures({"isolation": isolation, **measure(isolation, quick=options.quick), "skipped": skipped}, options)


if __name__ == "__main__":
    main()

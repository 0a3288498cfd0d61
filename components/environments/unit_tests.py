"""A program that a model wrote, and tests -> a reward with a reason. The program never sees a test.

    grader = UnitTests(isolation)
    await grader.grade_asserts(program, ["assert add(1, 2) == 3", "assert add(-1, 1) == 0"])
    await grader.grade_examples(program, [("3\\n1 2 3\\n", "6\\n")])

Asserts run in an execution of their own, and the program answers calls in another (sandbox/judge.py), so expected
values and comparisons are out of its reach. Printed answers are compared here. Whatever a program does, hang included,
is a reward; tests that cannot run and a sandbox that breaks are a GraderFailedError.
"""

from collections.abc import Sequence

from components.environments.rewards import Grade
from components.environments.sandbox.limits import DEFAULT_LIMITS, Execution, Isolation, Limits, Outcome
from components.environments.sandbox.pool import open_sandbox
from components.errors import GraderFailedError, SandboxFailedError

_MAX_REASON = 600


class UnitTests:
    """Grades programs: the share of tests passed, or with `all_or_nothing` 1.0 where every test passes, else 0.0.

    The reason says what failed first.
    """

    def __init__(self, isolation: Isolation, limits: Limits = DEFAULT_LIMITS, *, all_or_nothing: bool = False) -> None:
        """Raises ConfigError where this machine lacks the isolation. Nothing is started before the first grade."""
        self._sandbox = open_sandbox(isolation)
        self._limits = limits
        self._all_or_nothing = all_or_nothing

    async def grade_asserts(
        self, program: str, tests: Sequence[str], *, setup: str = "", names: Sequence[str] = ()
    ) -> Grade:
        """Grade by pieces of test code, each of which passes when it raises nothing.

        `setup` runs before them. Names that they use and that are not Python's own are the program's; one that has the
        name of something of Python's (`sum`) must be named in `names`.
        """
        if not tests:
            raise GraderFailedError("there is no test to grade by")
        order = {"setup": setup, "tests": list(tests), "names": list(names)}
        try:
            ran, judged, report = await self._sandbox.judge(program, order, limits=self._limits)
        except SandboxFailedError as error:
            raise GraderFailedError(f"unit tests: {error}") from error
        if ran.outcome in (Outcome.TIME, Outcome.OUTPUT, Outcome.KILLED):
            return _nothing(f"the program {ran.error}")
        if judged.outcome is Outcome.TIME:
            return _nothing(f"with this program the tests {judged.error}")
        results = report.get("results")
        if not judged.ok or not isinstance(results, list) or len(results) != len(tests):
            raise GraderFailedError(
                f"unit tests: {report.get('broken') or judged.error or judged.stderr or 'no result'}"
            )
        if ran.outcome is Outcome.RAISED:
            return _nothing(f"the program raised {_last_line(ran)}")
        return self._grade([result is None for result in results], [result or "" for result in results])

    async def grade_examples(self, program: str, examples: Sequence[tuple[str, str]]) -> Grade:
        """Grade by pairs of input and expected output. White space at the ends of lines and of the text is no matter.

        A program that raises, or ends with an exit code other than 0, fails the example; one at a limit fails them all.
        """
        if not examples:
            raise GraderFailedError("there is no example to grade by")
        passed: list[bool] = []
        reasons: list[str] = []
        for number, (given, expected) in enumerate(examples, start=1):
            try:
                order = {"mode": "program", "code": program}
                ran = (await self._sandbox.play(order, stdin=given, limits=self._limits)).execution
            except SandboxFailedError as error:
                raise GraderFailedError(f"unit tests: {error}") from error
            if ran.outcome in (Outcome.TIME, Outcome.OUTPUT, Outcome.KILLED):
                return _nothing(f"example {number}: the program {ran.error}")
            passed.append(ran.ok and _lines(ran.stdout) == _lines(expected))
            reasons.append(f"example {number}: {_why(ran)}")
            if self._all_or_nothing and not passed[-1]:
                break
        return self._grade(passed + [False] * (len(examples) - len(passed)), reasons)

    def _grade(self, passed: Sequence[bool], reasons: Sequence[str]) -> Grade:
        share = sum(passed) / len(passed)
        reward = float(share == 1.0) if self._all_or_nothing else share
        if all(passed):
            return Grade(reward, f"all {len(passed)} tests passed")
        first = reasons[list(passed).index(False)]
        count = "" if self._all_or_nothing else f"{sum(passed)} of {len(passed)} tests passed; "
        return Grade(reward, f"{count}failed: {first}"[:_MAX_REASON])


def _nothing(reason: str) -> Grade:
    return Grade(0.0, reason[:_MAX_REASON])


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().split("\n")]


def _last_line(ran: Execution) -> str:
    return (ran.error or "").rpartition("\n")[2]


def _why(ran: Execution) -> str:
    if ran.outcome is Outcome.RAISED:
        return f"the program raised {_last_line(ran)}"
    if not ran.ok:
        return f"the program ended with exit code {ran.exit_code}"
    return f"the program printed {ran.stdout[:200]!r}, which is not what was expected"

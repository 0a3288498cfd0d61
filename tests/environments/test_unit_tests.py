"""A program is graded by tests that it cannot see, cannot reach and cannot talk into anything."""

import asyncio
import os

import pytest

from components.environments.rewards import Grade
from components.environments.sandbox.detection import reason_against
from components.environments.sandbox.limits import Isolation, Limits
from components.environments.unit_tests import UnitTests
from components.errors import GraderFailedError
from tests.environments.outside import descendants

REASON = reason_against("sandbox")
LEVELS = [pytest.param("sandbox", marks=pytest.mark.skipif(REASON is not None, reason=str(REASON))), "process"]
ADD = "def add(a, b):\n    return a + b\n"
TESTS = [
    "assert add(1, 2) == 3",
    "assert add('a', 'b') == 'ab'",
    "assert add([1], [2]) == [1, 2]",
    "assert add(2, 2) == 4",
]


@pytest.fixture(scope="module", params=LEVELS)
def grader(request: pytest.FixtureRequest) -> UnitTests:
    isolation: Isolation = request.param
    return UnitTests(isolation, Limits(seconds=10.0, memory_megabytes=256))


@pytest.fixture(scope="module", params=LEVELS)
def hasty(request: pytest.FixtureRequest) -> UnitTests:
    isolation: Isolation = request.param
    return UnitTests(isolation, Limits(seconds=1.0, memory_megabytes=256))


def graded(grader: UnitTests, program: str, *tests: str, **more: object) -> Grade:
    return asyncio.run(grader.grade_asserts(program, tests or TESTS, **more))  # type: ignore[arg-type]


def test_the_reward_is_the_share_of_tests_passed_and_the_reason_names_the_first_that_failed(grader: UnitTests) -> None:
    assert graded(grader, ADD) == Grade(1.0, "all 4 tests passed")
    wrong = ADD.replace("a + b", "a + b if isinstance(a, int) else b + a")
    reason = "2 of 4 tests passed; failed: assert add('a', 'b') == 'ab': AssertionError"
    assert graded(grader, wrong) == Grade(0.5, reason)
    assert graded(grader, "def add(a, b): return a[0]").reward == 0.0
    assert graded(grader, "x = 1").reason == (
        "0 of 4 tests passed; failed: assert add(1, 2) == 3: NameError: name 'add' is not defined"
    )


STYLES = {
    "changed_in_place": ("def f(x): x.sort()", "a = [3, 1]\nf(a)\nassert a == [1, 3]"),
    "callback": ("def f(g, xs): return [g(x) for x in xs]", "assert f(lambda x: x * 2, (1, 2)) == [2, 4]"),
    "generator": ("def f(n):\n    yield from range(n)", "assert list(f(3)) == [0, 1, 2] and 2 in f(3)"),
    "plain_data": (
        "def f(): return {1: (2, {3}), 'a': [b'x', 1.5, 10**30, None, True]}",
        "assert f()['a'][2] == 10**30 and f()[1] == (2, {3}) and f()['a'][4] is True",
    ),
    "numbers": (
        "from fractions import Fraction\nfrom decimal import Decimal\ndef f(): return float('nan'), 1 + 2j",
        "assert Fraction(1, 2) == 0.5 and Decimal('1.5') == 1.5 and f()[0] != f()[0] and f()[1] == 1 + 2j",
    ),
    "a_class": (
        """
class Stack:
    def __init__(self): self.held = []
    def __len__(self): return len(self.held)
    def push(self, x):
        self.held.append(x)
        return self
""",
        "s = Stack().push(1).push(2)\nassert len(s) == 2 and s.held == [1, 2]",
    ),
    "an_exception": (
        "class Odd(ValueError): pass\ndef f(x): raise Odd('negative')",
        """
try:
    f(-1)
except ValueError as error:
    assert str(error) == "negative"
else:
    assert False
""",
    ),
    "human_eval": (
        "def twice(x): return 2 * x",
        "def check(candidate):\n    assert candidate(1) == 2\n    assert candidate(2) == 4\ncheck(twice)",
    ),
    "a_list_of_nodes": (
        """
def f(node):
    total = 0
    while node:
        total += node.value
        node = node.next
    return total
""",
        """
class Node:
    def __init__(self, value, next=None): self.value, self.next = value, next
assert f(Node(1, Node(2))) == 3
""",
    ),
}
"""What tests of data sets do: a program, and a test that it passes."""


@pytest.mark.parametrize(("program", "test"), STYLES.values(), ids=STYLES)
def test_what_tests_of_real_data_sets_do_works(grader: UnitTests, program: str, test: str) -> None:
    assert graded(grader, program, test) == Grade(1.0, "all 1 tests passed")


def test_a_name_of_pythons_own_is_only_the_programs_where_it_is_named(grader: UnitTests) -> None:
    program = "def sum(a, b): return a + b\ndef sorted(x): return [1, 2]"
    assert graded(grader, program, "assert sum(1, 2) == 3 and sorted([3, 1]) == [1, 3]", names=["sum"]).reward == 1.0
    assert graded(grader, program, "assert sum(1, 2) == 3").reward == 0.0


EQUALS_ALL = """
class E:
    def __eq__(self, other): return True
    def __bool__(self): return True
    def __contains__(self, x): return True
    __ne__ = __eq__
def add(a, b): return E()
"""
LOOKS_AT_FRAMES = """
import sys
def add(a, b):
    frame, words = sys._getframe(), ""
    while frame:
        words += str(frame.f_locals) + str(frame.f_globals)
        frame = frame.f_back
    return 3 if "".join(("add(1", ", 2) ==")) in words else None
"""
LOOKS_THROUGH_MEMORY = """
import gc
def add(a, b):
    held = [str(found) for found in gc.get_objects() if isinstance(found, (dict, list, tuple))]
    return 3 if any("".join(("add(1", ", 2) ==")) in text for text in held) else None
"""
REPORTS = """
import json, os
def tell(line):
    for number in range(3, 64):
        try:
            os.write(number, line)
        except OSError:
            pass
"""
PATCHES = """
import sys
for name, module in list(sys.modules.items()):
    if "components" in name:
        for word in list(vars(module)):
            if not word.startswith("__"):
                setattr(module, word, lambda *a, **k: True)
def add(a, b): return None
"""
NOTHING = "def add(a, b): return None\n"
FAKES = {
    "an_equal_of_its_own": EQUALS_ALL,
    "an_int_that_equals_all": EQUALS_ALL.replace("class E:", "class E(int):"),
    "builtins_changed": f"import builtins\nbuiltins.AssertionError = ValueError\nbuiltins.len = len = int\n{NOTHING}",
    "leaves_at_once": "import os\nos._exit(0)",
    "leaves_in_a_call": "import sys\ndef add(a, b): sys.exit(0)",
    "ends_the_loop": "def add(a, b): raise StopIteration",
    "looks_at_frames": LOOKS_AT_FRAMES,
    "looks_through_memory": LOOKS_THROUGH_MEMORY,
    "reports_by_itself": f"{REPORTS}tell(json.dumps({{'results': [None] * 3}}).encode())\nos._exit(0)",
    "reports_over_the_link": f'{REPORTS}tell(b\'{{"value": {{"dict": []}}}}\\n\' * 50)\n{NOTHING}',
    "sends_what_cannot_be_read": f"{REPORTS}tell(b'[' * 100_000 + b'\\n' + b'\\xff\\n')\n{NOTHING}",
    "sends_a_class": "def add(a, b): return type('X', (), {'__eq__': lambda s, o: True})",
    "names_that_hide_pythons": "def isinstance(*x): return True\ndef all(x): return True\ndef len(x): return 3\n",
    "patches_what_runs_it": PATCHES,
    "at_exit": f"import atexit, os\natexit.register(lambda: os._exit(0))\n{NOTHING}",
}
"""Programs that do not add, and would like to pass."""


@pytest.mark.parametrize("program", FAKES.values(), ids=FAKES)
def test_a_program_cannot_fake_its_result(grader: UnitTests, program: str) -> None:
    tests = [
        "assert add(1, 2) == 3",
        "assert all(map(lambda n: add(n, 1) == n + 1, [1, 2]))",
        "assert 3 in [add(1, 2)]",
    ]
    assert graded(grader, program, *tests).reward == 0.0


def test_a_context_manager_of_the_programs_cannot_swallow_a_failed_test(grader: UnitTests) -> None:
    program = "class C:\n    def __enter__(self): return self\n    def __exit__(self, *error): return True\n    x = 1"
    assert graded(grader, program, "with C() as c:\n    assert c.x == 2").reward == 0.0
    assert graded(grader, program, "with C() as c:\n    assert c.x == 1").reward == 1.0


def test_changing_what_it_is_given_does_not_make_an_answer_right(grader: UnitTests) -> None:
    program = "def f(xs):\n    xs.clear()\n    return []"
    assert graded(grader, program, "xs = [2, 1]\nassert f(xs) == sorted(xs)").reward == 0.0


def test_a_function_of_the_tests_can_be_called_but_leads_nowhere(grader: UnitTests) -> None:
    program = """
def f(g):
    for word in ("__globals__", "__code__", "__closure__", "gi_frame"):
        try:
            return getattr(g, word)
        except AttributeError:
            pass
    return g(1)
"""
    assert graded(grader, program, "SECRET = 4711\nassert f(lambda x: x + 1) == 2").reward == 1.0


def test_a_program_that_hangs_or_dies_is_the_models_fault(hasty: UnitTests) -> None:
    assert graded(hasty, "while True: pass") == Grade(0.0, "the program took longer than 1 seconds")
    assert graded(hasty, "def add(a, b):\n    while True: pass").reason == "the program took longer than 1 seconds"
    assert graded(hasty, "import os; os.abort()") == Grade(0.0, "the program was ended by SIGABRT")
    assert graded(hasty, "1 / 0") == Grade(0.0, "the program raised ZeroDivisionError: division by zero")
    assert graded(hasty, "def add(a, b): return 'x' * 10**7").reward == 0.0
    assert graded(hasty, "def add(a, b):\n    return add(a, b)").reward == 0.0
    assert graded(hasty, "def f():\n    while True: yield 1", "assert 2 in f()").reward == 0.0


@pytest.mark.parametrize("isolation", LEVELS)
def test_programs_that_hang_one_after_another_use_up_no_worker(isolation: Isolation) -> None:
    """Each ends after its time, those after them are graded, and nothing goes on (areal-project/AReaL#1426)."""
    hang = "import os\ndef add(a, b):\n    os.fork()\n    while True: pass"

    async def play() -> tuple[list[Grade], list[Grade]]:
        grader = UnitTests(isolation, Limits(seconds=0.3))
        patient = UnitTests(isolation, Limits(seconds=10.0))
        hung = await asyncio.gather(*(grader.grade_asserts(hang, TESTS) for _ in range(10)))
        return hung, await asyncio.gather(*(patient.grade_asserts(ADD, TESTS) for _ in range(4)))

    before = set(descendants())
    hung, normal = asyncio.run(play())
    assert hung == [Grade(0.0, "the program took longer than 0.3 seconds")] * 10
    assert [grade.reward for grade in normal] == [1.0] * 4
    left = {pid: name for pid, name in descendants().items() if pid not in before}
    # Only template processes: two for each worker, which wait.
    assert len(left) <= 2 * len(os.sched_getaffinity(0)), left


def test_broken_tests_are_a_failure_of_the_grader(grader: UnitTests) -> None:
    with pytest.raises(GraderFailedError, match="the tests cannot be read: invalid syntax"):
        graded(grader, ADD, "assert add(1, 2) ==")
    with pytest.raises(GraderFailedError, match="the set-up of the tests raised ZeroDivisionError"):
        graded(grader, ADD, "assert add(1, 2) == 3", setup="1 / 0")
    with pytest.raises(GraderFailedError, match="there is no test"):
        asyncio.run(grader.grade_asserts(ADD, []))


def test_programs_are_graded_by_what_they_print_for_an_input(grader: UnitTests) -> None:
    async def play() -> list[Grade]:
        double = "print(int(input()) * 2)"
        examples = [("1\n", "2\n"), ("2\n", "4"), ("3\n", "7\n")]
        strict = UnitTests("process", all_or_nothing=True)
        return [
            await grader.grade_examples(double, examples),
            await grader.grade_examples(double, examples[:2]),
            await strict.grade_examples(double, examples),
            await grader.grade_examples("print(2)\nraise SystemExit(1)", examples[:1]),
            await UnitTests("process", Limits(seconds=0.5)).grade_examples(
                "x = input()\nwhile True: pass", examples[:1]
            ),
        ]

    some, all_of_them, nothing, left, hung = asyncio.run(play())
    reason = "example 3: the program printed '6\\n', which is not what was expected"
    assert some == Grade(2 / 3, f"2 of 3 tests passed; failed: {reason}")
    assert all_of_them == Grade(1.0, "all 2 tests passed")
    assert nothing == Grade(0.0, f"failed: {reason}")
    assert left.reason == "0 of 1 tests passed; failed: example 1: the program ended with exit code 1"
    assert hung == Grade(0.0, "example 1: the program took longer than 0.5 seconds")


def test_a_sandbox_that_breaks_is_a_failure_of_the_grader_and_no_reward(grader: UnitTests) -> None:
    async def play(*, running: bool) -> Grade:
        grading = asyncio.create_task(grader.grade_asserts("while True: pass" if running else ADD, TESTS))
        if running:
            await asyncio.sleep(0.5)
            for queue in grader._sandbox._lanes:
                queue.lane.kill()
        return await grading

    with pytest.raises(GraderFailedError, match="unit tests: the sandbox's process was lost"):
        asyncio.run(play(running=True))
    assert asyncio.run(play(running=False)).reward == 1.0

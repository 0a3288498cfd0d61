"""Countdown: make a number out of others with + - * / and parentheses, each of them at most once.

Problems are made with their solution, so that each has one. The answer is an expression, read by a small parser of its
own: whole numbers and exact fractions, no powers, bounded length and depth, nothing is executed.
"""

import random
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction

from components.environments.calculator import CALCULATOR
from components.environments.environment import ToolEnvironment
from components.environments.rewards import Grade
from components.environments.tasks.splits import check_counts, drawn_tasks
from components.errors import ConfigError, Problem
from components.types import Message, Role, Task, ToolCall

INSTRUCTION = (
    "Make the target out of the given numbers with + - * / and parentheses. Use each number at most once. "
    "The last line of your answer is the expression alone."
)
MAX_LENGTH = 200
MAX_DEPTH = 20

_TOKEN = re.compile(r"\s*(?:(\d{1,9})(?![\d.,])|([-+*/()]))", flags=re.ASCII)
_SIGNS = str.maketrans({"×": "*", "·": "*", "÷": "/", "\N{MINUS SIGN}": "-", "–": "-", "`": " ", "$": " "})
_LABEL = re.compile(r"^\W*(?:answer|expression|result)\W*?:", flags=re.IGNORECASE)
_EXAMPLES = (((2, 5, 9), 47, "9*5+2"), ((4, 6, 10), 36, "(10-4)*6"))


class ExpressionError(Exception):
    """Why a text is no expression, or has no value."""


class Countdown(ToolEnvironment):
    """Reach a target number with given numbers and + - * /. Reward 1 for an expression that does.

    `format_weight` rewards an expression that keeps to the rules, whatever its value. `use_all` asks for every number.
    Targets are whole, and so is every step of the solution that a problem is made with.
    """

    def __init__(
        self,
        numbers: Sequence[int] = (3, 4),
        high: int = 50,
        target_high: int = 200,
        use_all: bool = False,
        calculator: bool = False,
        worked_examples: int = 2,
        format_weight: float = 0.0,
        instruction: str = INSTRUCTION,
        train_tasks: int = 2000,
        test_tasks: int = 200,
        seed: int = 0,
    ) -> None:
        """`numbers` are the counts of numbers that problems have; they lie between 1 and `high`."""
        problems = check_counts(train_tasks, test_tasks)
        if not numbers or min(numbers) < 2 or max(numbers) > 8:
            problems.append(Problem("numbers", numbers, "must be counts from 2 to 8"))
        if high < 2 or target_high < 10:
            problems.append(Problem("high, target_high", (high, target_high), "must be at least 2 and 10"))
        if not 0 <= worked_examples <= len(_EXAMPLES):
            problems.append(Problem("worked_examples", worked_examples, f"must be from 0 to {len(_EXAMPLES)}"))
        if problems:
            raise ConfigError(problems)
        self._sizes, self._high, self._target_high, self._use_all = tuple(numbers), high, target_high, use_all
        self._counts = {"train_tasks": train_tasks, "test_tasks": test_tasks}
        self._format_weight, self._seed = format_weight, seed
        self.tools = (CALCULATOR,) if calculator else ()
        self.system_prompt = instruction or None
        shown = [_task(*example) for example in _EXAMPLES[:worked_examples]]
        self.examples = tuple(message for task in shown for message in _worked(task, calculator))

    def tasks(self, split: str) -> Iterable[Task]:
        """The problems of "train" or "test": a function of the options."""
        rng = random.Random(self._seed)
        shown = {_task(*example).id for example in _EXAMPLES}

        def draw() -> Task | None:
            task = self._draw(rng)
            return None if task is None or task.id in shown else task

        return drawn_tasks(draw, split, **self._counts)

    def grade(self, task: Task, answer: str) -> Grade | dict[str, float | Grade]:
        """1 for an expression that makes the target, in part `answer`; and the part `format` where it has a weight."""
        grade, allowed = grade_expression(
            answer, task.data["numbers"], task.data["target"], use_all=bool(task.data["use_all"])
        )
        return {"answer": grade, "format": self._format_weight * allowed} if self._format_weight else grade

    def solution(self, task: Task) -> Sequence[Message]:
        """The expression that the problem was made with."""
        return (Message(Role.ASSISTANT, task.data["solution"]),)

    def _draw(self, rng: random.Random) -> Task | None:
        """A problem, or None where chance has made a target that is out of range."""
        numbers = [rng.randint(1, self._high) for _ in range(rng.choice(self._sizes))]
        used = len(numbers) if self._use_all else rng.randint(2, len(numbers))
        parts: list[tuple[int, str, bool]] = [(number, str(number), False) for number in rng.sample(numbers, used)]
        while len(parts) > 1:
            left = parts.pop(rng.randrange(len(parts)))
            right = parts.pop(rng.randrange(len(parts)))
            if (joined := _joined(left, rng.choice("+-*/"), right)) is None:
                return None
            parts.append(joined)
        target, expression, _ = parts[0]
        if not 10 <= target <= self._target_high or target in numbers:
            return None
        return _task(sorted(numbers), target, expression, use_all=self._use_all)


def grade_expression(answer: str, numbers: Sequence[int], target: int, *, use_all: bool = False) -> tuple[Grade, bool]:
    """1.0 when the answer's last line makes the target; and whether it kept to the rules, right or not.

    "Answer:" before it and "= 96" behind it are left out.
    """
    expression = _expression_in(answer)
    try:
        value, used = evaluate(expression)
    except ExpressionError as error:
        return Grade(0.0, f"{expression[:60]!r} cannot be read: {error}"), False
    over = Counter(used) - Counter(numbers)
    if over:
        return Grade(0.0, f"uses {', '.join(map(str, over))}, which is not given, or not that often"), False
    if use_all and Counter(used) != Counter(numbers):
        return Grade(0.0, f"leaves out {', '.join(map(str, Counter(numbers) - Counter(used)))}"), False
    if value != target:
        return Grade(0.0, f"{expression} is {value}, not {target}"), True
    return Grade(1.0, f"{expression} is {target}"), True


def evaluate(expression: str) -> tuple[Fraction, list[int]]:
    """The exact value and the numbers that it is made of. Raises ExpressionError."""
    if len(expression) > MAX_LENGTH:
        raise ExpressionError(f"it has {len(expression)} characters, more than {MAX_LENGTH}")
    reader = _Reader(_tokens(expression))
    value = reader.sum(0)
    if reader.tokens:
        raise ExpressionError(f"{reader.tokens[-1]!r} is not expected there")
    return value, reader.used


def _expression_in(answer: str) -> str:
    lines = [line.strip() for line in answer[-2000:].splitlines() if line.strip()]
    line = _LABEL.sub("", lines[-1]) if lines else ""
    return line.translate(_SIGNS).partition("=")[0].strip().strip("*").strip()


def _tokens(expression: str) -> list[str]:
    """In reverse order, so that the next one is at the end."""
    text, tokens, at = expression.rstrip(), [], 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise ExpressionError(f"only whole numbers, + - * / and parentheses, not {text[at:].lstrip()[:20]!r}")
        tokens.append(match.group(1) or match.group(2))
        at = match.end()
    if not tokens:
        raise ExpressionError("it is empty")
    return tokens[::-1]


class _Reader:
    """Computes while it reads, and keeps the numbers that it meets."""

    def __init__(self, tokens: list[str]) -> None:
        self.tokens = tokens
        self.used: list[int] = []

    def sum(self, depth: int) -> Fraction:
        value = self._product(depth)
        while self.tokens and self.tokens[-1] in "+-":
            value = _OPERATIONS[self.tokens.pop()](value, self._product(depth))
        return value

    def _product(self, depth: int) -> Fraction:
        value = self._atom(depth)
        while self.tokens and self.tokens[-1] in "*/":
            operator, right = self.tokens.pop(), self._atom(depth)
            if operator == "/" and right == 0:
                raise ExpressionError("it divides by 0")
            value = _OPERATIONS[operator](value, right)
        return value

    def _atom(self, depth: int) -> Fraction:
        if depth > MAX_DEPTH:
            raise ExpressionError(f"parentheses are nested more than {MAX_DEPTH} deep")
        token = self.tokens.pop() if self.tokens else None
        if token is None:
            raise ExpressionError("it ends too early")
        if token == "(":
            value = self.sum(depth + 1)
            if not self.tokens or self.tokens.pop() != ")":
                raise ExpressionError("a ) is missing")
            return value
        if not token.isdigit():
            raise ExpressionError(f"{token!r} is not expected there")
        self.used.append(int(token))
        return Fraction(int(token))


_OPERATIONS: Mapping[str, Callable[[Fraction, Fraction], Fraction]] = {
    "+": lambda left, right: left + right,
    "-": lambda left, right: left - right,
    "*": lambda left, right: left * right,
    "/": lambda left, right: left / right,
}


def _joined(left: tuple[int, str, bool], operator: str, right: tuple[int, str, bool]) -> tuple[int, str, bool] | None:
    """Two parts as one: value, expression, whether it is a sum. None for a value that is not whole and positive."""
    value = _OPERATIONS[operator](Fraction(left[0]), Fraction(right[0])) if right[0] else Fraction(0)
    if value.denominator != 1 or value < 1 or value > 10_000:
        return None
    sums = operator in "+-"
    before = f"({left[1]})" if left[2] and not sums else left[1]
    single = right[1].isdigit()
    after = right[1] if single or operator == "+" or (operator == "*" and not right[2]) else f"({right[1]})"
    return int(value), f"{before}{operator}{after}", sums


def _task(numbers: Sequence[int], target: int, expression: str, use_all: bool = False) -> Task:
    listed = ", ".join(map(str, numbers))
    data = {"numbers": list(numbers), "target": target, "solution": expression, "use_all": use_all}
    return Task(f"countdown {listed} to {target}", f"Numbers: {listed}. Target: {target}.", data=data)


def _worked(task: Task, calculator: bool) -> list[Message]:
    solution = task.data["solution"]
    call = ToolCall("calculator", {"expression": solution})
    checked = [
        Message(Role.ASSISTANT, "", tool_calls=(call,)),
        Message(Role.TOOL, str(task.data["target"]), name="calculator"),
    ]
    question = Message(Role.USER, task.prompt)
    return [question, *(checked if calculator else ()), Message(Role.ASSISTANT, solution)]

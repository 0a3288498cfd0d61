"""An arithmetic expression as text -> its value as text. Nothing is ever executed.

A recursive-descent reader over a small grammar computes while it reads: numbers, + - * / // % **, parentheses, a sign,
and the signs people write instead (x × · ÷ − ^ , $ are read where they are unambiguous). Ints are exact; a division
that leaves a rest, and everything after it, is a float. Length, depth, exponents and the digits of a result are
bounded, so that every text is answered in well under a second.
"""

import math
import re
from collections.abc import Callable

from components.environments.tools import ToolError, tool

MAX_LENGTH = 1000
MAX_DEPTH = 50
MAX_BITS = 4096  # of an int's value: about 1200 digits
Number = int | float

_TOKEN = re.compile(r"\s*(?:(\d[\d,]*(?:\.\d+)?(?:[eE][+-]?\d{1,3})?|\.\d+)|(\*\*|//|[-+*/%^()]))", flags=re.ASCII)
_SIGNS = str.maketrans({"×": "*", "·": "*", "÷": "/", "−": "-", "–": "-", "$": " ", "=": " "})
_GROUPED = re.compile(r"\d{1,3}(?:,\d{3})+", flags=re.ASCII)


class CalculationError(ToolError):
    """Why an expression has no value; a short text that the policy can learn from."""


def calculate(expression: str) -> Number:
    """The value of an expression. Raises CalculationError."""
    if len(expression) > MAX_LENGTH:
        raise CalculationError(f"an expression may have {MAX_LENGTH} characters, not {len(expression)}")
    reader = _Reader(_tokens(expression))
    value = reader.sum(0)
    if reader.peek() is not None:
        raise CalculationError(f"{reader.peek()!r} is not expected there")
    return value


async def calculator(expression: str) -> str:
    """Compute an arithmetic expression exactly.

    Args:
        expression: numbers, + - * / // % ** and parentheses, for example (12+30)*2
    """
    # A coroutine, so that the microseconds it takes are not spent on a thread.
    return number_to_text(calculate(expression))


CALCULATOR = tool(calculator)


def number_to_text(value: Number) -> str:
    """An int with all its digits; a float with at most 12 significant ones, without a trailing ".0"."""
    if isinstance(value, int):
        return str(value)
    short = float(f"{value:.12g}")
    return str(int(short)) if short.is_integer() and abs(short) < 1e15 else repr(short)


def _tokens(expression: str) -> list[str]:
    text = expression.translate(_SIGNS).rstrip()
    tokens, at = [], 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            rest = text[at:].lstrip()
            raise CalculationError(f"cannot read {rest[:20]!r}; only numbers, + - * / // % ** and parentheses")
        tokens.append(match.group(1) or match.group(2))
        at = match.end()
    if not tokens:
        raise CalculationError("the expression is empty")
    return tokens


class _Reader:
    """Computes while it reads, one method per rank of the operators."""

    def __init__(self, tokens: list[str]) -> None:
        self._tokens = tokens
        self._at = 0

    def peek(self) -> str | None:
        return self._tokens[self._at] if self._at < len(self._tokens) else None

    def sum(self, depth: int) -> Number:
        value = self._product(depth)
        while (operator := self._take("+", "-")) is not None:
            value = _bounded(_OPERATIONS[operator], value, self._product(depth))
        return value

    def _product(self, depth: int) -> Number:
        value = self._signed(depth)
        while (operator := self._take("*", "/", "//", "%")) is not None:
            value = _bounded(_OPERATIONS[operator], value, self._signed(depth))
        return value

    def _signed(self, depth: int) -> Number:
        """As in Python, a sign binds less than a power: -2**2 is -4."""
        if depth > MAX_DEPTH:
            raise CalculationError(f"parentheses and signs may be nested {MAX_DEPTH} deep")
        sign = self._take("+", "-")
        if sign is not None:
            value = self._signed(depth + 1)
            return -value if sign == "-" else value
        return self._power(depth)

    def _power(self, depth: int) -> Number:
        base = self._atom(depth)
        if self._take("**", "^") is None:
            return base
        return _bounded(_power, base, self._signed(depth + 1))

    def _atom(self, depth: int) -> Number:
        if self._take("(") is not None:
            value = self.sum(depth + 1)
            if self._take(")") is None:
                raise CalculationError("a ) is missing")
            return value
        token = self.peek()
        if token is None:
            raise CalculationError("the expression ends too early")
        if not token[0].isdigit() and token[0] != ".":
            raise CalculationError(f"{token!r} is not expected there")
        self._at += 1
        return _read_number(token)

    def _take(self, *operators: str) -> str | None:
        token = self.peek()
        if token not in operators:
            return None
        self._at += 1
        return token


def _read_number(token: str) -> Number:
    whole = re.split(r"[.eE]", token)[0]
    if "," in whole and not _GROUPED.fullmatch(whole):
        raise CalculationError(f"{token!r} is not one number")
    plain = token.replace(",", "")
    value = int(plain) if plain.isdigit() else float(plain)
    if value == math.inf:
        raise CalculationError(f"{token} is too large")
    return value


def _divide(left: Number, right: Number) -> Number:
    if isinstance(left, int) and isinstance(right, int) and left % right == 0:
        return left // right
    return left / right


def _power(base: Number, exponent: Number) -> Number:
    if isinstance(base, int) and isinstance(exponent, int) and exponent >= 0:
        if base.bit_length() * exponent > MAX_BITS:
            raise CalculationError("the result of ** is too large")
        return int(base**exponent)
    value = float(base) ** float(exponent)
    if isinstance(value, complex):
        raise CalculationError("a root of a negative number is not a real number")
    return value


_OPERATIONS: dict[str, Callable[[Number, Number], Number]] = {
    "+": lambda left, right: left + right,
    "-": lambda left, right: left - right,
    "*": lambda left, right: left * right,
    "/": _divide,
    "//": lambda left, right: left // right,
    "%": lambda left, right: left % right,
}


def _bounded(operation: Callable[[Number, Number], Number], left: Number, right: Number) -> Number:
    try:
        value = operation(left, right)
    except ZeroDivisionError:
        raise CalculationError("division by zero") from None
    except OverflowError:
        raise CalculationError("the result is too large") from None
    if isinstance(value, int) and value.bit_length() > MAX_BITS:
        raise CalculationError("the result is too large")
    if isinstance(value, float) and not math.isfinite(value):
        raise CalculationError("the result is too large")
    return value

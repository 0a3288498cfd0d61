r"""An answer in LaTeX and a gold answer -> whether they mean the same, found out in a process that can be killed.

What counts is the last \boxed{...}, else what math-verify finds in the text's end: the last formula or number. Sets,
intervals, fractions, roots, matrices and expressions are the same when sympy says so; numbers to 6 decimals.

An answer that takes more than two seconds of processor time, or more memory than 2 GiB, to compare is wrong, and so is
one that is longer or nested deeper than any answer is: that is the answer's doing, whatever else the machine does. What
is not done after half a minute of wall time is a GraderFailedError, and its process is killed.
"""

import atexit
import functools
import logging
import re
import resource
import signal
import types
from typing import Any

from components.environments.grader_pool import GraderPool
from components.environments.graders import last_boxed
from components.environments.rewards import Grade
from components.errors import GraderFailedError

MAX_LENGTH = 1000
MAX_DEPTH = 30
_CPU_SECONDS = 2.0
_MEMORY = 2 * 2**30
_WALL_SECONDS = 30.0
_MAX_TEXT = 4000
_POWER = r"(?:\^|\*\*)[\s{(]*"
# What one step of the interpreter would compute for minutes, so that no limit of time inside of it is heard.
_TOWER = re.compile(rf"\d[\s}})]*{_POWER}\d+[\s}})]*{_POWER}|{_POWER}\d{{5,}}|!\s*[)}}]\s*!")


async def grade_latex(text: str, gold: str) -> Grade:
    """1.0 when the answer of `text` is the gold answer, else 0.0.

    Raises GraderFailedError for a gold answer that is no mathematics, or when the comparison cannot be made.
    """
    answer = last_boxed(text) or text[-_MAX_TEXT:]
    boxed = "\\boxed{" in text
    if answer.strip() == gold.strip():
        return Grade(1.0, f"{answer.strip()[-100:]!r} is the gold answer itself")
    fault = _fault(answer, boxed)
    if fault is not None:
        return Grade(0.0, fault)
    found = await _pool().grade(compare, f"\\boxed{{{answer}}}" if boxed else answer, gold)
    if found == "gold":
        raise GraderFailedError(f"the gold answer {gold[:200]!r} cannot be read as mathematics")
    shown = answer[-100:].strip()
    told = {
        "same": f"{shown!r} is right",
        "different": f"{shown!r} is not {gold[:100]!r}",
        "nothing": f"no mathematics is found in {shown!r}",
        "too long": f"{shown!r} takes too long to compare",
        "too large": f"{shown!r} takes too much memory to compare",
    }
    return Grade(float(found == "same"), told[found])


def compare(text: str, gold: str) -> str:
    """Runs in a worker: "same", "different", "nothing" (found in the text), "gold", "too long" or "too large"."""
    # Not above: this module's other part lives in a process that has no use for sympy.
    from math_verify import parse, verify

    # It warns of every call without a time limit of its own.
    logging.getLogger("math_verify").setLevel(logging.ERROR)
    _bound_memory()
    before = signal.signal(signal.SIGPROF, _stop)
    try:
        wanted = _read(parse, gold if "\\boxed" in gold or "$" in gold else f"\\boxed{{{gold}}}")
        if not wanted:
            return "gold"
        signal.setitimer(signal.ITIMER_PROF, _CPU_SECONDS)
        found = _read(parse, text)
        if not found:
            return "nothing"
        # The pool limits the time: the library's own alarm would replace that of the worker.
        return "same" if verify(wanted, found, timeout_seconds=None) else "different"
    except _TooLongError:
        return "too long"
    except (MemoryError, RecursionError, OverflowError):
        return "too large"
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


class _TooLongError(BaseException):
    """No Exception, as libraries catch those."""


def _stop(number: int, frame: types.FrameType | None) -> None:
    raise _TooLongError


def _read(parse: Any, text: str) -> Any:
    return parse(text, parsing_timeout=None)


def _bound_memory() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    limit = _MEMORY if hard == resource.RLIM_INFINITY else min(_MEMORY, hard)
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard))


def _fault(answer: str, boxed: bool) -> str | None:
    """What is wrong with an answer before anybody reads it as mathematics."""
    if boxed and len(answer) > MAX_LENGTH:
        return f"the answer has {len(answer)} characters, more than {MAX_LENGTH}"
    depth = deepest = 0
    for character in answer:
        depth += (character in "{([") - (character in "})]")
        deepest = max(deepest, depth)
    if deepest > MAX_DEPTH:
        return f"the answer is nested {deepest} deep, more than {MAX_DEPTH}"
    if _TOWER.search(answer):
        return "the answer has a power of a power, or a huge exponent, which is not computed"
    return None


@functools.cache
def _pool() -> GraderPool:
    """Its workers have a limit of memory, which other graders must not inherit."""
    pool = GraderPool(timeout=_WALL_SECONDS)
    atexit.register(pool.close)
    return pool

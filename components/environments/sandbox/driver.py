"""The last of Headrace in a fork: reads what is to run, runs it, and reports.

What it reports is the code's own word, as the code shares its process. So nothing is decided by it: a value, an error
and a printed text are the model's own, and whether a program passes tests is found out elsewhere (judge.py).
"""

import ast
import contextlib
import json
import os
import sys
import types
from collections.abc import Sequence
from typing import Any, NoReturn

# Loaded before any fork, so that code which uses them need not wait.
import bisect  # noqa: F401, I001
import collections  # noqa: F401
import copy  # noqa: F401
import datetime  # noqa: F401
import decimal  # noqa: F401
import fractions  # noqa: F401
import functools  # noqa: F401
import heapq  # noqa: F401
import itertools  # noqa: F401
import math  # noqa: F401
import operator  # noqa: F401
import random  # noqa: F401
import re  # noqa: F401
import statistics  # noqa: F401
import string  # noqa: F401
import traceback
import typing  # noqa: F401

from components.environments.sandbox import judge

CODE = "<code>"
"""The file name of what runs, as tracebacks show it."""
_MAX_REPORT = 8000
_MAX_FRAMES = 5


def run(folder: str, descriptors: Sequence[int]) -> NoReturn:
    """Run the payload's code in this process, and end with its exit code."""
    payload, report, *links = descriptors
    code = 1
    try:
        order = _read(payload)
        sys.path.append(folder)
        _open_streams()
        if order["mode"] == "judge":
            answer, code = judge.judge(links[0], order), 0
        elif order["mode"] == "serve":
            answer, code = _execute(order, lambda namespace: judge.serve(links[0], namespace))
        else:
            answer, code = _execute(order, None)
        _join_threads()
        _flush()
        with open(report, "w", encoding="utf-8", errors="replace") as file:
            file.write(json.dumps(answer))
    finally:
        os._exit(code)
    raise AssertionError("a process that has ended goes on")


def _execute(order: dict[str, Any], then: Any) -> tuple[dict[str, Any], int]:
    """Run code as `__main__`. Gives the report and the exit code."""
    module = types.ModuleType("__main__")
    namespace = vars(module)
    namespace["__file__"] = CODE
    sys.modules["__main__"] = module
    sys.argv = [CODE]
    try:
        value = _evaluate(order["code"], namespace, wants_value=order["mode"] == "python")
        if then is not None:
            then(namespace)
        return {"value": value}, 0
    except SystemExit as leaving:
        return {"value": None}, _exit_code(leaving)
    except BaseException as error:  # The model's code may raise whatever it likes.
        text = short_traceback(error)
        with contextlib.suppress(OSError, ValueError):
            print(text, file=sys.stderr)
        return {"error": text}, 1


def _evaluate(code: str, namespace: dict[str, Any], *, wants_value: bool) -> str | None:
    """Run statements; where the last one is an expression and is wanted, its repr, cut."""
    tree = ast.parse(code, CODE)
    last: ast.Expression | None = None
    if wants_value and tree.body and isinstance(tree.body[-1], ast.Expr):
        last = ast.Expression(tree.body.pop().value)  # type: ignore[attr-defined]
    _remember_source(code)
    exec(compile(tree, CODE, "exec"), namespace)
    if last is None:
        return None
    value = eval(compile(last, CODE, "eval"), namespace)
    return None if value is None else repr(value)[:_MAX_REPORT]


def short_traceback(error: BaseException) -> str:
    """The frames in the code itself, the innermost few, and the error's class and words."""
    lines = []
    for frame in traceback.extract_tb(error.__traceback__):
        if frame.filename == CODE:
            lines.append(f"line {frame.lineno}, in {frame.name}: {(frame.line or '').strip()[:200]}")
    if len(lines) > _MAX_FRAMES:
        lines[1:-_MAX_FRAMES] = [f"... {len(lines) - _MAX_FRAMES - 1} more"]
    if isinstance(error, SyntaxError) and error.filename == CODE:
        lines.append(f"line {error.lineno}: {(error.text or '').strip()[:200]}")
    return "\n".join([*lines, f"{_name_of(error)}{_words_of(error)}"])[:_MAX_REPORT]


def _name_of(error: BaseException) -> str:
    name = type.__getattribute__(type(error), "__name__")
    return name if type(name) is str else "error"


def _words_of(error: BaseException) -> str:
    try:
        words = error.msg if isinstance(error, SyntaxError) else str(error)
        return f": {words[:1000]}" if words else ""
    except BaseException:  # A __str__ of the model's may raise whatever it likes.
        return " (its text cannot be read)"


def _remember_source(code: str) -> None:
    """So that tracebacks can show the code's lines."""
    import linecache

    linecache.cache[CODE] = (len(code), None, code.splitlines(keepends=True), CODE)


def _exit_code(leaving: SystemExit) -> int:
    if leaving.code is None:
        return 0
    if isinstance(leaving.code, int):
        return leaving.code & 0xFF
    print(leaving.code, file=sys.stderr)
    return 1


def _open_streams() -> None:
    sys.stdin = open(0, encoding="utf-8", errors="replace", closefd=False)
    sys.stdout = open(1, "w", encoding="utf-8", errors="backslashreplace", buffering=1, closefd=False)
    sys.stderr = open(2, "w", encoding="utf-8", errors="backslashreplace", buffering=1, closefd=False)
    sys.__stdin__, sys.__stdout__, sys.__stderr__ = sys.stdin, sys.stdout, sys.stderr  # type: ignore[misc]


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()


def _join_threads() -> None:
    threading = sys.modules.get("threading")
    if threading is not None:
        for thread in threading.enumerate():
            if thread is not threading.main_thread() and not thread.daemon:
                thread.join()


def _read(payload: int) -> dict[str, Any]:
    with open(payload, "rb") as file:
        order: dict[str, Any] = json.loads(file.read())
    return order

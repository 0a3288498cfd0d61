"""The last of Headrace in a fork: reads what is to run, runs it, and reports.

What it reports is the code's own word, as the code shares its process. So nothing is decided by it: a value, an error
and a printed text are the model's own, and whether a program passes tests is found out elsewhere (judge.py).
"""

import ast
import contextlib
import importlib
import io
import json
import linecache
import os
import sys
import traceback
import types
from collections.abc import Sequence
from typing import Any, NoReturn

from components.environments.sandbox import judge

CODE = "<code>"
"""The file name of what runs, as tracebacks show it."""
PRELOADED = (
    *("bisect", "collections", "copy", "datetime", "decimal", "fractions", "functools", "heapq", "itertools", "math"),
    *("operator", "random", "re", "statistics", "string", "typing"),
)
"""Modules that are loaded before any fork, so that code which uses them need not wait."""
_MAX_REPORT = 8000
_MAX_FRAMES = 5


def preload() -> None:
    """Load what most code uses."""
    for name in PRELOADED:
        importlib.import_module(name)


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
    linecache.cache[CODE] = (len(code), None, code.splitlines(keepends=True), CODE)


def _exit_code(leaving: SystemExit) -> int:
    if leaving.code is None:
        return 0
    if isinstance(leaving.code, int):
        return leaving.code & 0xFF
    print(leaving.code, file=sys.stderr)
    return 1


def _open_streams() -> None:
    """Line by line, so that what was printed is there when the code is ended."""
    sys.stdin = io.TextIOWrapper(io.BufferedReader(io.FileIO(0, closefd=False)), "utf-8", "replace")
    sys.stdout, sys.stderr = (
        io.TextIOWrapper(
            io.BufferedWriter(io.FileIO(number, "w", closefd=False)), "utf-8", "backslashreplace", line_buffering=True
        )
        for number in (1, 2)
    )


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

"""Tests and a program that must not see them -> which tests it passes.

The two run in executions of their own, with a link between them. The program's side defines its functions and answers
calls; the judge's side runs the tests, in which the program's names stand for calls over the link. So the program sees
the arguments that it is called with, and neither an expected value nor the comparison; what it answers becomes a plain
value whose `==` is Python's own. An exception of a class of its own arrives as the nearest of Python's.
"""

import ast
import builtins
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from components.environments.sandbox.exchange import GoneError, Peer, Remote

_MAX_REASON = 500


def serve(link: int, namespace: Mapping[str, Any]) -> None:
    """The program's side: answer calls of what is defined in `namespace`, which is object number 0."""
    peer = Peer(link, guarded=False)
    peer.held.append(lambda names: {name: namespace[name] for name in names if name in namespace})
    peer.serve()


def judge(link: int, order: Mapping[str, Any]) -> dict[str, Any]:
    """The judge's side. `results` has an entry for each test: None where it passed, else why it did not.

    Where the tests themselves are broken, `broken` says how.
    """
    peer = Peer(link, guarded=True)
    try:
        parts = [compile(text, "<tests>", "exec") for text in (order["setup"], *order["tests"])]
    except (SyntaxError, ValueError) as error:
        return {"broken": f"the tests cannot be read: {error}"}
    wanted = _names([order["setup"], *order["tests"]], order["names"])
    results: list[str | None] = []
    namespace: dict[str, Any] = {"__name__": "__main__"}
    sys.stdout = sys.stderr
    try:
        given = Remote(peer, 0)(wanted)
        namespace |= {name: given[name] for name in wanted if name in given}
    except (GoneError, TypeError, ValueError) as error:
        return {"results": [f"the program could not be called: {error}"] * len(order["tests"])}
    before = peer.failures
    failed = _run(parts[0], namespace)
    if failed is not None:
        missing = sorted({*wanted} - {*namespace})
        if peer.failures == before and not missing:
            return {"broken": f"the set-up of the tests raised {failed}"}
        return {"results": [failed] * len(order["tests"])}
    for test, text in zip(parts[1:], order["tests"], strict=True):
        failed = _run(test, namespace)
        results.append(None if failed is None else f"{text.strip()[:_MAX_REASON]}: {failed}")
    return {"results": results}


def _run(code: Any, namespace: dict[str, Any]) -> str | None:
    """None, or what was raised, in words."""
    try:
        exec(code, namespace)
    except BaseException as error:  # Tests may raise whatever they like.
        return f"{type(error).__name__}: {str(error)[:_MAX_REASON]}".removesuffix(": ")
    return None


def _names(texts: Sequence[str], named: Sequence[str]) -> list[str]:
    """The names that the tests may want of the program. One of Python's own is only meant where it is named."""
    used = {node.id for text in texts for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name)}
    return sorted({*(used - {*vars(builtins)}), *named})

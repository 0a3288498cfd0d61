"""The house rules that a machine can check."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]
SOURCES = sorted(path for room in ("components", "pipeline") for path in (REPOSITORY / room).rglob("*.py"))
MODULES = [path for path in SOURCES if path.stat().st_size]

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef

BOUNDARIES = {
    "engine/engine.py",
    "environments/environment.py",
    "environments/grader_worker.py",
    "environments/tools.py",
    "environments/sandbox/driver.py",
    "environments/sandbox/exchange.py",
    "environments/sandbox/judge.py",
    "rollout/episode.py",
    "telemetry/outlets/outlet.py",
    "training/journal.py",
    "training/tuning/demonstrations.py",
    "training/tuning/examples.py",
}
"""Where code of others is called and its faults become data, and where a thread hands its own to who waits for it."""


def name_of(path: Path) -> str:
    return path.relative_to(REPOSITORY).as_posix()


def public_definitions(tree: ast.Module) -> Iterator[Definition]:
    """Functions and classes of a module whose names are public. A method may be explained by the protocol it keeps."""
    return (node for node in tree.body if isinstance(node, Definition) and not node.name.startswith("_"))


def test_imports_point_one_way_only() -> None:
    command = Path(sys.executable).with_name("lint-imports")
    if not command.is_file():
        pytest.skip("import-linter is not installed beside this Python")
    found = subprocess.run([command], cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout
    assert ", 0 broken" in found.stdout


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_a_file_says_what_it_is_and_fits_a_mind(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    assert ast.get_docstring(tree), "a module begins with what it turns into what"
    assert text.count("\n") <= 400
    undocumented = [node.name for node in public_definitions(tree) if not ast.get_docstring(node)]
    assert undocumented == []
    lengths = {
        node.name: (node.end_lineno or 0) - node.lineno + 1
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    assert {name: lines for name, lines in lengths.items() if lines > 80} == {}


def test_nine_of_ten_functions_fit_a_screen() -> None:
    lengths = sorted(
        (node.end_lineno or 0) - node.lineno + 1
        for path in MODULES
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )
    assert lengths[len(lengths) * 9 // 10] <= 35


def test_faults_are_swallowed_only_where_code_of_others_is_called() -> None:
    broad = {
        name_of(path).removeprefix("components/")
        for path in MODULES
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ExceptHandler)
        and (node.type is None or (isinstance(node.type, ast.Name) and node.type.id in ("Exception", "BaseException")))
    }
    assert broad == BOUNDARIES


def test_nothing_is_left_for_later() -> None:
    words = ("TO" + "DO", "FIX" + "ME", "X" + "XX", "NotImplemented" + "Error")
    left = [(name_of(path), word) for path in SOURCES for word in words if word in path.read_text(encoding="utf-8")]
    assert left == []

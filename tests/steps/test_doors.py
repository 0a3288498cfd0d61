"""Doors: a signature, one import, one call."""

import ast
from pathlib import Path

import pytest

STEPS = Path(__file__).resolve().parents[2] / "components" / "steps"
OF_STEPS = sorted(path for path in STEPS.glob("*.py") if path.stem not in ("__init__", "image", "work"))
OF_PIPELINES = [STEPS.parents[1] / "pipeline" / f"{name}.py" for name in ("compare", "finish", "resolve")]
DOORS = [*OF_STEPS, *OF_PIPELINES]


def names(paths: list[Path]) -> list[str]:
    return [path.stem for path in paths]


def door_of(path: Path) -> ast.FunctionDef:
    functions = [node for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)]
    assert len(functions) == 1
    return functions[0]


def test_the_steps_are_those_of_the_pipeline() -> None:
    assert names(OF_STEPS) == ["evaluate", "export", "gate", "init_model", "prepare_data", "promote", "train", "tune"]


@pytest.mark.parametrize("path", DOORS, ids=names(DOORS))
def test_a_door_is_a_docstring_one_import_and_one_call(path: Path) -> None:
    door = door_of(path)
    docstring, imported, *calls = door.body
    assert isinstance(docstring, ast.Expr)
    assert isinstance(docstring.value, ast.Constant)
    assert isinstance(imported, ast.ImportFrom)
    assert len(imported.names) == 1
    room = imported.names[0].name
    called = [node.func.id for node in ast.walk(door) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)]
    assert called.count(room) == 1
    # What else there may be hands the answer on to the outputs.
    assert len(calls) <= 3
    assert all(isinstance(statement, ast.Expr | ast.Assign | ast.Return) for statement in calls)


@pytest.mark.parametrize("path", DOORS, ids=names(DOORS))
def test_a_door_imports_nothing_heavy_and_no_postponed_annotations(path: Path) -> None:
    imported = [node for node in ast.parse(path.read_text()).body if isinstance(node, ast.Import | ast.ImportFrom)]
    modules = {node.module if isinstance(node, ast.ImportFrom) else node.names[0].name for node in imported}
    assert modules <= {"kfp", "typing", "components.steps.image"}

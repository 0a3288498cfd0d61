"""What a run was made of, and what has changed since."""

import json
from pathlib import Path
from typing import Any

import pytest

from components.config import dump
from components.errors import DataError
from components.telemetry.run_files import update_summary
from pipeline import manifest as manifests
from pipeline import provenance
from pipeline.recipe import load_recipe
from pipeline.start import Parent, Start

START = Start("/promoted", 0, parent=Parent("/adapter", "f"))


def manifest(**changes: Any) -> dict[str, Any]:
    recipe = dump(load_recipe("smoke"))
    made = manifests.compose(recipe, recipe, START, image="none: local", source="smoke", overrides={}, parameters={})
    return made | changes


def test_a_manifest_says_what_the_code_the_packages_and_the_seed_were(tmp_path: Path) -> None:
    manifests.write(str(tmp_path), manifest())
    update_summary(str(tmp_path), {"data": {"sha256": "d"}, "hardware": {"devices": 1}, "steps": 3})
    found = manifests.read(str(tmp_path))
    assert found["recipe"]["train"]["checkpoints_kept"] == 2, "defaults are written out"
    assert (found["seed"], found["image"], found["data"], found["hardware"]) == (
        0,
        "none: local",
        {"sha256": "d"},
        {"devices": 1},
    )
    assert set(found["code"]) == {"commit", "sha256"}
    assert found["packages"].items() >= {"headrace": "0.1.0"}.items()
    assert manifests.start_of(str(tmp_path)) == START
    assert dump(load_recipe(str(tmp_path / "recipe.yaml"))) == found["exact"]


def test_a_folder_without_a_manifest_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"manifest\.json: does not exist; name the folder of a run"):
        manifests.read(str(tmp_path))
    assert manifests.start_of(str(tmp_path)) is None


def test_what_differs_is_named_with_both_values() -> None:
    before = manifest(data={"sha256": "1"}, base={"fingerprint": "made in the run"})
    assert manifests.differences(before, before) == []
    now = manifest(data={"sha256": "2"})
    now["packages"] = now["packages"] | {"jax": "0.0"}
    now["code"] = {"commit": "c", "sha256": "s"}
    now["start"] = {"parent": None}
    found = manifests.differences(before, now)
    assert [problem.where for problem in found] == ["code", "data", "package jax", "parent"]
    assert str(found[1]) == "data: was '1' in the run (got '2')"


def test_what_the_run_never_knew_is_no_difference() -> None:
    assert manifests.differences(manifest(), manifest(data={"sha256": "2"})) == []


def test_the_hash_of_a_users_module_changes_with_its_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "hashed_module.py").write_text("A = 1\n")
    before = provenance.module_hash("hashed_module:Thing")
    (tmp_path / "hashed_module.py").write_text("A = 2\n")
    assert before != provenance.module_hash("hashed_module:Thing") != ""
    assert provenance.module_hash("arithmetic") == ""


def test_the_code_is_hashed_and_its_commit_is_told() -> None:
    found = provenance.code()
    assert found == provenance.code()
    assert len(found["sha256"]) == 64
    assert found["commit"] == "unknown" or len(found["commit"].removesuffix("+changes")) == 40
    assert json.dumps(provenance.packages())

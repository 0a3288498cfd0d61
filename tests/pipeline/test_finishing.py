"""What is left of a run when it is over."""

import json
from pathlib import Path
from typing import Any

import pytest

from components import storage
from components.config import dump
from components.errors import ProofError
from components.telemetry.failure import notes_failure
from components.telemetry.run_files import RunRecord, update_summary
from pipeline import manifest as manifests
from pipeline.closing import close_run
from pipeline.finishing import finish, run_markdown
from pipeline.recipe import load_recipe
from pipeline.start import SEEN, Start

IMAGE = "image@sha256:0"


def record(folder: str, start: Start, **overrides: Any) -> None:
    """Write the manifest of a run of the smoke recipe."""
    recipe = dump(load_recipe("smoke", overrides))
    named = {"image": IMAGE, "source": "smoke", "overrides": overrides, "parameters": {}, "trial": {}}
    manifests.write(folder, manifests.compose(recipe, recipe, start, **named))


def finished(folder: Path, *, error: str = "") -> tuple[dict[str, Any], str]:
    """The manifest and the summary that the exit handler of run 9f3c gives."""
    manifest, summary = folder / "out" / "manifest", folder / "out" / "summary"
    finish(
        run_root=str(folder),
        run_id="9f3c",
        error=error,
        manifest=str(manifest),
        manifest_uri=str(manifest),
        summary=str(summary),
    )
    return json.loads(manifest.read_text()), summary.read_text()


def test_the_summary_says_what_was_decided_and_what_the_run_was_made_of(tmp_path: Path) -> None:
    record(str(tmp_path), Start("/promoted", 0))
    facts = {"recipe": "smoke", "data": {"sha256": "abc"}, "promotion": "not promoted: no | gain", "steps": 4}
    update_summary(str(tmp_path), facts)
    manifest, summary = finished(tmp_path)
    assert manifest["data"] == {"sha256": "abc"}
    assert summary.startswith("# smoke\n\n**Not promoted: no | gain**\n")
    assert "| image | image@sha256:0 |" in summary
    assert "| data | abc |" in summary


def test_a_run_whose_recipe_was_refused_still_has_a_summary(tmp_path: Path) -> None:
    manifest, summary = finished(tmp_path, error="the first step failed")
    assert manifest == {}
    assert "**Failed.** the first step failed" in summary


def test_the_last_report_of_a_failed_run_says_what_its_step_said(tmp_path: Path) -> None:
    record(str(tmp_path), Start("/promoted", 0))

    @notes_failure("export")
    def export(*, run_folder: str, is_right: bool) -> str:
        if not is_right:
            raise ProofError("the logits <differ>")
        return "exported"

    with pytest.raises(ProofError):
        export(run_folder=str(tmp_path), is_right=False)
    _, summary = finished(tmp_path, error="The DAG failed to succeed")
    assert "**Failed in export.** ProofError: the logits <differ>" in summary
    page = (tmp_path / "report.html").read_text()
    assert "This run failed in its step export" in page
    assert "ProofError: the logits &lt;differ&gt;" in page
    # It is tried again, and goes well.
    assert export(run_folder=str(tmp_path), is_right=True) == "exported"
    close_run(str(tmp_path))
    assert "This run failed" not in (tmp_path / "report.html").read_text()


def test_a_table_is_not_broken_by_what_stands_in_it() -> None:
    text = run_markdown(RunRecord(summary={"gate": {"reasons": ["a | b\nc"]}}), {}, folder="x")
    assert "| refused | a \\| b c |" in text


def test_data_counts_as_seen_once_a_run_has_got_to_its_gate(tmp_path: Path) -> None:
    root = tmp_path / "promoted"
    record(str(tmp_path), Start(str(root), 0, data="/day", data_content="c"))
    finished(tmp_path)
    assert not (root / SEEN).exists()
    update_summary(str(tmp_path), {"gate": {"reasons": []}})
    finished(tmp_path)
    assert json.loads((root / SEEN).read_text()) == {"data": "/day", "content": "c", "run": str(tmp_path)}


def test_the_job_sets_of_a_run_and_of_its_trials_are_deleted_however_it_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deleted: list[tuple[str, str, str]] = []

    def delete_job(run: str, task: str, *, namespace: str) -> bool:
        deleted.append((run, task, namespace))
        return True

    monkeypatch.setattr("components.launcher.jobset.delete_job", delete_job)
    jobset = {"platform": {"launcher": "jobset", "image": IMAGE, "namespace": "team"}}
    for trial in ("trial-a", "trial-b"):
        record(storage.join(tmp_path, "trials", trial), Start("/promoted", 0), **jobset)
    record(storage.join(tmp_path, "trials", "trial-c"), Start("/promoted", 0))
    finished(tmp_path, error="cancelled")
    assert deleted == [(f"9f3c/trial-{trial}", task, "team") for trial in "ab" for task in ("tune", "train")]
    record(str(tmp_path), Start("/promoted", 0), **jobset)
    monkeypatch.setattr("pipeline.finishing.run_markdown", lambda *arguments, **named: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        finished(tmp_path)
    assert deleted[4:6] == [("9f3c", task, "team") for task in ("tune", "train")]

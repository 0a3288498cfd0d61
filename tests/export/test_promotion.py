"""The promoted adapter: a pointer that one run at a time moves. On the disk and on a real GCS server."""

import json
import threading
import uuid
from pathlib import Path
from typing import Any

import pytest

from components import storage
from components.errors import DataError
from components.export.promotion import (
    OvertakenError,
    fingerprint_of,
    move_pointer,
    promote,
    read_promotions,
)
from components.telemetry.run_files import read_run, update_summary


@pytest.fixture(params=["disk", "gcs"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A place for a pointer, of each kind."""
    return str(tmp_path / "root") if request.param == "disk" else f"{request.getfixturevalue('gcs')}/{uuid.uuid4().hex}"


def adapter(folder: Path, weights: str) -> Path:
    """What an export step leaves behind, as far as a pointer is concerned."""
    folder.mkdir(parents=True)
    (folder / "adapter_config.json").write_text("{}")
    (folder / "adapter_model.safetensors").write_text(weights)
    (folder / "README.md").write_text("a card")
    return folder


def run(folder: Path, name: str, **start: Any) -> str:
    """A run's folder with what the pointer's history keeps of it."""
    place = str(folder / name)
    facts = {"recipe": "mine", "base": {"fingerprint": "b"}, "gate": {"measured": f"{name} is better"}}
    update_summary(place, {**facts, "start": start})
    return place


def test_the_first_promotion_makes_the_pointer_and_later_ones_keep_its_history(root: str, tmp_path: Path) -> None:
    assert read_promotions(root) == ([], 0)
    first = move_pointer(root, adapter(tmp_path / "a", "1"), run(tmp_path, "one"), expected=0)
    _, generation = read_promotions(root)
    parent = {"uri": first.adapter}
    second = move_pointer(
        root, adapter(tmp_path / "b", "2"), run(tmp_path, "two", parent=parent, data_source="d"), expected=generation
    )
    history, _ = read_promotions(root)
    assert history == [second, first]
    assert (second.run, second.parent, second.data) == (str(tmp_path / "two"), first.adapter, "d")
    assert (first.recipe, first.base, first.measure, first.parent) == ("mine", "b", "one is better", None)


def test_the_promoted_adapter_outlives_the_run_and_is_the_same(root: str, tmp_path: Path) -> None:
    made = adapter(tmp_path / "a", "1")
    entry = move_pointer(root, made, run(tmp_path, "one"), expected=0)
    assert entry.adapter == storage.join(root, "adapters", f"one-{entry.fingerprint[:8]}")
    assert entry.fingerprint == fingerprint_of(made) == fingerprint_of(entry.adapter)
    assert storage.read_text(storage.join(entry.adapter, "README.md")) == "a card"
    storage.download_folder(entry.adapter, tmp_path / "copy")
    assert (tmp_path / "copy" / "adapter_model.safetensors").read_text() == "1"


def test_of_two_runs_that_promote_at_once_one_wins_and_the_other_is_told(root: str, tmp_path: Path) -> None:
    runs = {name: run(tmp_path, name, promoted_generation=0) for name in ("one", "two", "three")}
    adapters = {name: adapter(tmp_path / f"adapter-{name}", name) for name in runs}
    section = json.dumps({"root": root})
    ready = threading.Barrier(len(runs))
    outcomes: dict[str, str] = {}

    def go(name: str) -> None:
        ready.wait()
        outcomes[name] = promote(section=section, run_folder=runs[name], adapter=str(adapters[name]))

    threads = [threading.Thread(target=go, args=(name,)) for name in runs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (won,) = (name for name, outcome in outcomes.items() if outcome.startswith("promoted: "))
    history, _ = read_promotions(root)
    assert [entry.run for entry in history] == [runs[won]]
    for name in set(runs) - {won}:
        assert outcomes[name] == f"not promoted: since this run started, {runs[won]} was promoted ({won} is better)"
        assert read_run(runs[name]).summary["promotion"] == outcomes[name]


def test_a_run_that_was_overtaken_while_it_trained_is_told_too(root: str, tmp_path: Path) -> None:
    move_pointer(root, adapter(tmp_path / "a", "1"), run(tmp_path, "quick"), expected=0)
    with pytest.raises(OvertakenError, match="quick was promoted"):
        move_pointer(root, adapter(tmp_path / "b", "2"), run(tmp_path, "slow"), expected=0)
    by_hand = move_pointer(root, tmp_path / "b", str(tmp_path / "slow"), expected=None)
    assert read_promotions(root)[0][0] == by_hand


def test_a_promotion_that_is_tried_again_changes_nothing(root: str, tmp_path: Path) -> None:
    made, folder = adapter(tmp_path / "a", "1"), run(tmp_path, "one")
    first = move_pointer(root, made, folder, expected=0)
    before = read_promotions(root)
    assert move_pointer(root, made, folder, expected=0) == first
    assert read_promotions(root) == before


def test_a_pointer_that_something_else_wrote_is_named(tmp_path: Path) -> None:
    (tmp_path / "promoted").write_text("gs://bucket/adapter")
    with pytest.raises(DataError, match="is no pointer that Headrace wrote"):
        read_promotions(tmp_path)


def test_what_is_no_adapter_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"adapter_config\.json: does not exist"):
        fingerprint_of(tmp_path)

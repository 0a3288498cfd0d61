"""What a run starts from: looked up once, and exact from then on."""

import json
from pathlib import Path

import pytest

from components import storage
from components.config import dump
from components.errors import ConfigError, DataError
from components.export.promotion import fingerprint_of, move_pointer
from components.model.lora import LoraConfig
from pipeline.recipe import load_recipe
from pipeline.resolution import applied
from pipeline.start import Parent, Start, claim, find, folder_of, from_record, job_owner, mark_seen, sweep_of, to_record
from tests.export.test_promotion import adapter, run


def found(folder: Path, *, parent: str = "", data: str = "", promotion_root: str = "") -> Start:
    """What a recipe of the name "mine" starts from in the run folder `runs/new`."""
    run_folder = str(folder / "runs" / "new")
    return find(name="mine", parent=parent, data=data, promotion_root=promotion_root, run_folder=run_folder)


def test_a_run_is_promoted_beside_its_folder_unless_the_recipe_says_where(tmp_path: Path, gcs: str) -> None:
    assert found(tmp_path) == Start(promotion_root=f"{tmp_path}/runs/promoted/mine", promoted_generation=0)
    assert found(tmp_path, promotion_root=f"{gcs}/x/").promotion_root == f"{gcs}/x"


def test_latest_promoted_is_the_adapter_that_is_promoted_now_and_nothing_before_the_first(tmp_path: Path) -> None:
    first = found(tmp_path, parent="latest-promoted")
    assert first.parent is None
    entry = move_pointer(first.promotion_root, adapter(tmp_path / "a", "1"), run(tmp_path, "one"), expected=0)
    start = found(tmp_path, parent="latest-promoted")
    assert start.parent == Parent(entry.adapter, entry.fingerprint)
    assert start.promoted_generation > 0


def test_a_named_parent_is_taken_with_its_hash_and_one_that_is_not_there_is_refused(tmp_path: Path) -> None:
    place = adapter(tmp_path / "a", "1")
    assert found(tmp_path, parent=f"{place}/").parent == Parent(str(place), fingerprint_of(place))
    with pytest.raises(DataError, match=r"nowhere/adapter_config\.json: does not exist"):
        found(tmp_path, parent=str(tmp_path / "nowhere"))


def test_a_run_without_new_data_has_nothing_to_do_and_says_since_when(tmp_path: Path) -> None:
    day = tmp_path / "data" / "2026-11-29"
    day.mkdir(parents=True)
    (day / "train.jsonl").write_text("{}\n")
    newest = f"newest:{tmp_path}/data"
    first = found(tmp_path, data=newest)
    assert (first.data, first.ended) == (str(day), "")
    mark_seen(first, "runs/monday")
    assert found(tmp_path, data=newest).ended == f"no new data: runs/monday has trained on what is in {day}"
    (day / "train.jsonl").write_text("{}\n{}\n")
    assert found(tmp_path, data=newest).ended == "", "the same folder with more in it is new data"
    assert found(tmp_path, data=str(day)).data_content == "", "a folder that is named is not looked up"


def test_the_exact_recipe_names_everything_and_starts_the_same_again(tmp_path: Path) -> None:
    recipe = load_recipe("smoke", {"parent": "latest-promoted"})
    start = Start("/promoted", 3, parent=Parent("/adapter", "f"), data="/day", data_content="c")
    exact = applied(recipe, start)
    assert (exact.parent, exact.init_model.adapter, exact.promote.root) == (None, "/adapter", "/promoted")
    assert exact.init_model.lora == LoraConfig(), "the parent has ranks of its own"
    assert exact.environment.options["data"] == "/day"
    path = tmp_path / "recipe.yaml"
    path.write_text(json.dumps(dump(exact), ensure_ascii=False))
    assert load_recipe(str(path)) == exact
    assert from_record(json.loads(json.dumps(to_record(start)))) == start


def test_two_ways_to_say_what_to_start_from_are_one_too_many() -> None:
    with pytest.raises(ConfigError, match="give one of both"):
        load_recipe("smoke", {"parent": "a", "init_model.adapter": "b", "init_model.lora": {}})


def test_a_run_has_a_folder_of_its_own_beside_the_pipelines_other_runs() -> None:
    uri = "gs://bucket/v2/post-training/9f3c/resolve-recipe/77/manifest"
    assert folder_of("", "9f3c", uri) == "gs://bucket/v2/post-training/runs/9f3c"
    assert folder_of("gs://mine/here/", "9f3c", uri) == "gs://mine/here"
    assert folder_of("", "absent", "/tmp/out/resolve-recipe/manifest") == "/tmp/out/run"
    trial = folder_of("/here", "9f3c", uri, "trial-1")
    assert (trial, sweep_of(trial)) == ("/here/trials/trial-1", "/here")
    assert (job_owner("9f3c", ""), job_owner("9f3c", "trial-1")) == ("9f3c", "9f3c/trial-1")


def test_a_folder_belongs_to_one_run_of_the_cluster_and_a_second_is_told_whose_it_is(tmp_path: Path) -> None:
    folder = str(tmp_path / "fixed")
    claim(folder, "monday")
    claim(folder, "monday")
    with pytest.raises(ConfigError, match="is the folder of run monday; leave run_root empty"):
        claim(folder, "tuesday")
    storage.write_text(storage.join(tmp_path / "local", storage.OWN_MARKER), "process 7")
    claim(str(tmp_path / "local"), "any")

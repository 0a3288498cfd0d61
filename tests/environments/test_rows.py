"""Data sets wherever they lie: files, folders as the hub lays them out, the hub's own cache, a bucket."""

import datetime
import decimal
import json
from pathlib import Path

import pyarrow as arrow
import pytest
from pyarrow import parquet

from components import storage
from components.environments.datasets import Fields, read_split
from components.environments.gsm8k import Gsm8k
from components.environments.rows import Hub, read_rows, split_files
from components.errors import DataError, Problem

FIELDS = Fields(prompt="question", answer="answer")
ROWS = [{"question": "2+2?", "answer": "#### 4"}, {"question": "3+3?", "answer": "#### 6"}]


def write(path: Path, rows: list[dict[str, object]] = ROWS) -> str:
    """Rows as JSONL or Parquet, as the ending says."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        parquet.write_table(arrow.Table.from_pylist(rows), path)
    elif path.suffix == ".json":
        path.write_text(json.dumps(rows), encoding="utf-8")
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


@pytest.mark.parametrize("ending", ["jsonl", "parquet", "json"])
def test_rows_are_the_same_from_every_kind_of_file(tmp_path: Path, ending: str) -> None:
    problems: list[Problem] = []
    uri = write(tmp_path / f"rows.{ending}")
    assert list(read_rows(uri, problems)) == [(f"{uri}:1", ROWS[0]), (f"{uri}:2", ROWS[1])]
    assert problems == []


@pytest.mark.parametrize(
    "names",
    [
        ("train.jsonl", "test.jsonl"),
        ("data/train-00000-of-00001.parquet", "data/test-00000-of-00001.parquet"),
        ("main/train-00000-of-00001.parquet", "main/test-00000-of-00001.parquet"),
        ("main/train.jsonl", "main/test.json"),
    ],
)
def test_a_split_is_found_in_a_folder_as_the_hub_lays_it_out(tmp_path: Path, names: tuple[str, str]) -> None:
    for name in names:
        write(tmp_path / name)
    (tmp_path / "README.md").write_text("a card")
    assert [split_files(str(tmp_path), split) for split in ("train", "test")] == [[f"{tmp_path}/{n}"] for n in names]
    assert [task.answer for task in Gsm8k(str(tmp_path)).tasks("test")] == ["4", "6"]


def test_the_parts_of_a_split_are_read_in_their_order_and_no_two_tasks_share_an_id(tmp_path: Path) -> None:
    for part in range(3):
        write(tmp_path / f"data/train-0000{part}-of-00003.parquet", [{"question": f"q{part}", "answer": part}])
    tasks = read_split(str(tmp_path), "train", FIELDS, name="t-").tasks
    assert [(task.id, task.prompt, task.answer) for task in tasks] == [
        ("t-0-1", "q0", "0"),
        ("t-1-1", "q1", "1"),
        ("t-2-1", "q2", "2"),
    ]


def test_a_split_that_is_not_there_or_in_several_folders_is_told_with_what_there_is(tmp_path: Path) -> None:
    write(tmp_path / "main/train.jsonl")
    with pytest.raises(DataError, match=r"no file of the split test; it holds main/train\.jsonl"):
        split_files(str(tmp_path), "test")
    write(tmp_path / "socratic/train.jsonl")
    with pytest.raises(DataError, match=r"in several folders; name one, as in .*/main"):
        split_files(str(tmp_path), "train")
    with pytest.raises(DataError, match="there is no such file"):
        split_files(str(tmp_path / "train.parquet"), "train")


def test_a_repository_of_the_hub_is_read_from_its_cache_without_network(tmp_path: Path) -> None:
    revision = "e53f048856ff4f594e959d75785d2c2d37b678ee"
    repository = tmp_path / "datasets--someone--sums"
    blob = Path(write(repository / "blobs" / "0a1b.parquet"))
    folder = repository / "snapshots" / revision / "main"
    folder.mkdir(parents=True)
    for split in ("train", "test"):
        (folder / f"{split}-00000-of-00001.parquet").symlink_to(blob)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(revision)
    hub = Hub(cache=str(tmp_path), offline=True)
    for name in ("hub:someone/sums", f"hub:someone/sums@{revision}", "hub:someone/sums@main#main"):
        assert [task.prompt for task in read_split(name, "test", FIELDS, hub=hub).tasks] == ["2+2?", "3+3?"]
    with pytest.raises(DataError, match="has no file of the split test"):
        read_split("hub:someone/sums#socratic", "test", FIELDS, hub=hub)
    with pytest.raises(DataError, match=r"hub:someone/none: the hub gave nothing: .*not in the cache"):
        read_split("hub:someone/none", "test", FIELDS, hub=hub)
    with pytest.raises(DataError, match="write it as hub:OWNER/NAME"):
        read_split("hub:a b", "test", FIELDS, hub=hub)


def test_values_of_parquet_become_what_json_can_hold_or_are_told_by_row_and_field(tmp_path: Path) -> None:
    row = {
        "day": datetime.date(2026, 1, 2),
        "price": decimal.Decimal("1.50"),
        "raw": "Zürich".encode(),
        "list": [1, 2],
        "deep": {"x": None, "y": [{"z": 1}, {}]},
        "far": float("inf"),
    }
    problems: list[Problem] = []
    uri = write(tmp_path / "rows.parquet", [row, row | {"raw": b"\xff"}])
    ((_, read),) = list(read_rows(uri, problems))
    kept = {"list": [1, 2], "deep": {"y": [{"z": 1}, {}]}, "far": None}
    expected = {"day": "2026-01-02", "price": "1.50", "raw": "Zürich", **kept}
    assert json.loads(json.dumps(read, allow_nan=False)) == expected
    assert [problem.where for problem in problems] == [f"{uri}:2: raw"]


def test_files_that_are_not_what_they_are_called_are_told(tmp_path: Path) -> None:
    for name, told in (("a.parquet", "cannot be read as Parquet"), ("a.json", "not JSON in UTF-8")):
        (tmp_path / name).write_bytes(b"\xff\x00")
        with pytest.raises(DataError, match=told):
            list(read_rows(str(tmp_path / name), []))
    (tmp_path / "a.json").write_text('{"question": "2+2?"}')
    with pytest.raises(DataError, match="must be one list of rows"):
        list(read_rows(str(tmp_path / "a.json"), []))


def test_a_bad_line_is_told_and_the_others_are_kept(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'\xef\xbb\xbf{"a": 1}\n\xff\n[1]\n\n{"a": 2}\r\n{')
    problems: list[Problem] = []
    assert [row for _, row in read_rows(str(tmp_path / "a.jsonl"), problems)] == [{"a": 1}, {"a": 2}]
    assert [problem.where.rpartition("/")[2] for problem in problems] == ["a.jsonl:2", "a.jsonl:3", "a.jsonl:6"]


def test_a_lone_surrogate_in_a_field_is_told(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"question": "\\ud800?", "answer": "1"}')
    with pytest.raises(DataError, match=r"a\.jsonl:1: question: holds a lone surrogate"):
        read_split(str(tmp_path / "a.jsonl"), "train", FIELDS)


def test_a_bucket_is_a_folder_like_any_other(tmp_path: Path, gcs: str) -> None:
    for name in ("train.jsonl", "test-00000-of-00001.parquet"):
        storage.upload(Path(write(tmp_path / name)), f"{gcs}/sums/{name}")
    assert [task.answer for task in Gsm8k(f"{gcs}/sums").tasks("train")] == ["4", "6"]
    assert split_files(f"{gcs}/sums", "test") == [f"{gcs}/sums/test-00000-of-00001.parquet"]
    assert [task.prompt for task in read_split(f"{gcs}/sums", "test", FIELDS).tasks] == ["2+2?", "3+3?"]

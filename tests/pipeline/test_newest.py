"""The newest data under a prefix: on a disk and on a real GCS server."""

from pathlib import Path

import pytest

from components import storage
from components.errors import DataError
from pipeline.newest import content_hash, find_newest


@pytest.fixture(params=["disk", "gcs"])
def prefix(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A place of each kind, with nothing in it."""
    return str(tmp_path) if request.param == "disk" else f"{request.getfixturevalue('gcs')}/{tmp_path.name}"


def put(prefix: str, **files: str) -> None:
    """Write files; two underscores are a slash, one a dash."""
    for name, text in files.items():
        storage.write_text(storage.join(prefix, *name.replace("__", "/").replace("_", "-").split("/")), text)


def test_the_last_folder_by_name_is_the_newest_and_numbers_count_as_numbers(prefix: str) -> None:
    put(prefix, day_9__train="old", day_10__train="new", day_10__more__train="deep", readme="no folder")
    assert find_newest(prefix).folder == f"{prefix}/day-10"
    assert find_newest(f"{prefix}/") == find_newest(prefix)
    put(prefix, day_11__train="newer")
    assert find_newest(prefix).folder == f"{prefix}/day-11", "a look never remembers what it saw before"


def test_a_folder_that_is_still_being_written_waits_where_others_say_that_they_are_whole(prefix: str) -> None:
    put(prefix, a__train="1", b__train="2")
    storage.write_text(f"{prefix}/a/_SUCCESS", "")
    assert find_newest(prefix).folder == f"{prefix}/a"
    storage.write_text(f"{prefix}/b/_SUCCESS", "")
    assert find_newest(prefix).folder == f"{prefix}/b"


def test_the_hash_is_that_of_names_and_contents(prefix: str) -> None:
    put(prefix, a__x="1", a__y="2", b__x="1", b__y="2", c__x="2", c__y="1", d__x="1")
    hashes = [content_hash(f"{prefix}/{name}") for name in "abcd"]
    assert hashes[0] == hashes[1]
    assert len(set(hashes)) == 3
    put(prefix, a__y="3")
    assert content_hash(f"{prefix}/a") != hashes[0], "the same name with another content is new data"
    storage.write_text(f"{prefix}/b/_SUCCESS", "")
    assert content_hash(f"{prefix}/b") == hashes[1], "to be called whole is no change"


def test_a_folder_with_checksums_is_not_read_again(tmp_path: Path, prefix: str) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "train").write_text("1")
    storage.upload_folder(source, f"{prefix}/in/2026")
    put(prefix, plain__2026__train="1")
    assert find_newest(f"{prefix}/in").content == find_newest(f"{prefix}/plain").content
    names = storage.read_text(f"{prefix}/in/2026/sha256sums.txt")
    storage.write_text(f"{prefix}/in/2026/sha256sums.txt", names.replace(names[:8], "00000000"))
    assert find_newest(f"{prefix}/in").content != find_newest(f"{prefix}/plain").content


def test_a_prefix_without_a_folder_is_named(prefix: str) -> None:
    put(prefix, train="no folder")
    with pytest.raises(DataError, match="there is no folder with files below this prefix"):
        find_newest(prefix)

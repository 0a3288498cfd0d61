"""A file that comes in parts, in packages that are never imported."""

import hashlib
import sys
from pathlib import Path

import pytest

from components.errors import WeightsError
from components.model.packages import package_file


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder from which packages are found; importing one of them would fail."""
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def make(folder: Path, name: str, files: dict[str, bytes]) -> None:
    (folder / name / "data").mkdir(parents=True)
    (folder / name / "__init__.py").write_text("raise RuntimeError('a package of weights was run')")
    for file, content in files.items():
        (folder / name / "data" / file).write_bytes(content)


def make_parts(folder: Path, digest: str, numbers: tuple[int, ...] = (0, 1, 2)) -> None:
    make(folder, "river", {"SHA256SUMS": f"{digest}  river.gguf\n".encode()})
    for number in numbers:
        make(folder, f"river_part{number + 1}", {f"river.gguf.part{number:02d}": b"abc"[number : number + 1]})


def test_one_file_is_found_without_running_its_package(packages: Path) -> None:
    make(packages, "brook", {"brook.gguf": b"water"})
    assert package_file("brook").read_bytes() == b"water"
    assert "brook" not in sys.modules


def test_parts_are_put_together_once_in_the_cache(packages: Path, tmp_path: Path) -> None:
    make_parts(packages, hashlib.sha256(b"abc").hexdigest())
    path = package_file("river", cache=tmp_path / "cache")
    assert path.read_bytes() == b"abc"
    assert path.name == "river.gguf"
    written = path.stat().st_mtime_ns
    assert package_file("river", cache=tmp_path / "cache").stat().st_mtime_ns == written
    assert [file.name for file in path.parent.iterdir()] == ["river.gguf"]


def test_parts_that_do_not_match_their_checksum_leave_nothing_behind(packages: Path, tmp_path: Path) -> None:
    make_parts(packages, "0" * 64)
    with pytest.raises(WeightsError, match="do not add up to its SHA-256 0000"):
        package_file("river", cache=tmp_path / "cache")
    assert [path for path in (tmp_path / "cache").rglob("*") if path.is_file()] == []


def test_a_part_that_is_not_installed_is_named(packages: Path, tmp_path: Path) -> None:
    make_parts(packages, "0" * 64, numbers=(0, 2))
    with pytest.raises(WeightsError, match="part 01 is not installed"):
        package_file("river", cache=tmp_path / "cache")


def test_several_files_in_one_package_are_refused_by_name(packages: Path) -> None:
    make(packages, "delta", {"a.gguf": b"", "b.gguf": b""})
    with pytest.raises(WeightsError, match=r"several GGUF files: a\.gguf, b\.gguf"):
        package_file("delta")

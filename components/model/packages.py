"""The name of an installed package -> the GGUF file inside it, found without importing (running) the package.

A file that was too large for one package comes in parts, in packages named after it (`NAME_part1`, ...). Those are put
together once, in the user's cache.
"""

import hashlib
import importlib.util
import os
import re
import tempfile
from pathlib import Path

from components.errors import WeightsError

_BLOCK = 1 << 22


def package_file(package: str, *, cache: Path | None = None) -> Path:
    """The path of the one GGUF file of `package`, put together under `cache` (~/.cache/headrace) if it is in parts.

    Raises WeightsError when the package is not installed, holds no such file or several, or when a part is missing.
    """
    folder = _folder(package)
    files = sorted(folder.rglob("*.gguf"))
    if len(files) > 1:
        raise WeightsError(f"package {package} holds several GGUF files: {', '.join(file.name for file in files)}")
    if files:
        return files[0]
    parts = _parts(folder, package)
    if not parts:
        raise WeightsError(f"package {package} holds no .gguf file, and no package {package}_part1 holds a part of one")
    name = parts[0].name.rpartition(".part")[0]
    target = (cache or Path.home() / ".cache" / "headrace") / package / name
    if not target.is_file() or target.stat().st_size != sum(part.stat().st_size for part in parts):
        _join(parts, target, expected=_checksum(folder, name))
    return target


def _folder(package: str) -> Path:
    spec = importlib.util.find_spec(package) if package.isidentifier() else None
    if spec is None or not spec.submodule_search_locations:
        raise WeightsError(f"no package {package!r} is installed here; install it into the environment that runs this")
    return Path(next(iter(spec.submodule_search_locations)))


def _parts(folder: Path, package: str) -> list[Path]:
    folders = [folder, *folder.parent.glob(f"{package}_part[0-9]*")]
    numbered = {}
    for path in (path for place in folders for path in place.rglob("*.gguf.part*")):
        match = re.fullmatch(r".*\.part(\d+)", path.name)
        if match:
            numbered[int(match[1])] = path
    lost = sorted(set(range(max(numbered, default=-1) + 1)) - numbered.keys())
    if lost:
        raise WeightsError(f"of the file that package {package} brings in parts, part {lost[0]:02d} is not installed")
    return [numbered[number] for number in sorted(numbered)]


def _checksum(folder: Path, name: str) -> str | None:
    for sums in folder.rglob("SHA256SUMS"):
        for line in sums.read_text().splitlines():
            digest, _, file = line.partition(" ")
            if file.strip(" *") == name:
                return digest
    return None


def _join(parts: list[Path], target: Path, *, expected: str | None) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256()
    descriptor, temporary = tempfile.mkstemp(dir=target.parent)
    try:
        with os.fdopen(descriptor, "wb") as whole:
            for part in parts:
                with part.open("rb") as piece:
                    while block := piece.read(_BLOCK):
                        digest.update(block)
                        whole.write(block)
        if expected is not None and digest.hexdigest() != expected:
            raise WeightsError(f"the parts of {target.name} do not add up to its SHA-256 {expected}; install them anew")
        Path(temporary).replace(target)
    finally:
        Path(temporary).unlink(missing_ok=True)

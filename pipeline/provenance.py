"""What a run is made by: the code and its commit, the packages, and the user's own module. No side effects."""

import hashlib
import importlib.util
import json
import platform
import shutil
import subprocess
from importlib.metadata import PackageNotFoundError, distribution, version
from pathlib import Path
from typing import Any

PACKAGES = ("headrace", "flax", "jax", "jaxlib", "kfp", "numpy", "optax", "orbax-checkpoint", "tokenizers")
"""Those whose versions can change what a run computes."""

UNKNOWN = "unknown"
COMMIT_FILE = "COMMIT"
"""A file beside this module that an image without git says its commit in."""

_OWN = Path(__file__).resolve().parent
_ROOT = _OWN.parent


def packages() -> dict[str, str]:
    """The versions of the packages, and of Python."""
    return {"python": platform.python_version(), **{name: _version(name) for name in PACKAGES}}


def code() -> dict[str, str]:
    """`commit` is the commit that the code is of (with `+changes` where files differ), `sha256` that of its content.

    The hash needs no git and is what is compared; the commit is for people.
    """
    return {"commit": _commit(), "sha256": _hash_of_code()}


def module_hash(use: str) -> str:
    """SHA-256 of the source file of an environment named as `module:Class`; empty for one that comes with Headrace."""
    name, colon, _ = use.partition(":")
    found = importlib.util.find_spec(name) if colon else None
    if found is None or found.origin is None or not Path(found.origin).is_file():
        return ""
    return hashlib.sha256(Path(found.origin).read_bytes()).hexdigest()


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return UNKNOWN


def _hash_of_code() -> str:
    digest = hashlib.sha256()
    for path in sorted(path for room in ("components", "pipeline") for path in (_ROOT / room).rglob("*.py")):
        digest.update(f"{path.relative_to(_ROOT).as_posix()} ".encode())
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def _commit() -> str:
    """From git, from the file that an image carries, or from what pip wrote down of where it took the package."""
    stated = _OWN / COMMIT_FILE
    if stated.is_file():
        return stated.read_text(encoding="utf-8").strip()
    if (_ROOT / ".git").exists() and shutil.which("git"):
        commit = _git("rev-parse", "HEAD")
        return f"{commit}+changes" if commit and _git("status", "--porcelain", "--", "*.py") else commit or UNKNOWN
    return _installed_commit()


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=_ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else ""


def _installed_commit() -> str:
    try:
        text = distribution("headrace").read_text("direct_url.json")
    except PackageNotFoundError:
        return UNKNOWN
    source: dict[str, Any] = json.loads(text or "{}")
    return str(source.get("vcs_info", {}).get("commit_id", UNKNOWN))

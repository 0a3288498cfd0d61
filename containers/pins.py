"""pyproject.toml and an accelerator -> what pip has to install; locks -> the proof that it installed nothing else.

Runs inside the build of the runtime image, before anything is installed: the standard library is all it may use.

    python3 pins.py wanted pyproject.toml cpu              # requirements, one a line
    python3 pins.py check requirements.lock other.lock     # of the environment whose Python runs this
"""

import importlib.metadata
import re
import sys
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path

EXTRAS = {"cpu": "jax", "cuda": "jax[cuda13]", "tpu": "jax[tpu]"}
"""The values of ARG ACCELERATOR, and what each installs beside the package's own dependencies."""


def wanted(pyproject: str, accelerator: str) -> list[str]:
    """The dependencies in the text of a pyproject.toml, and jax for this accelerator. Raises ValueError for another."""
    if accelerator not in EXTRAS:
        raise ValueError(f"ACCELERATOR must be one of {', '.join(EXTRAS)}, not {accelerator!r}")
    return [*tomllib.loads(pyproject)["project"]["dependencies"], EXTRAS[accelerator]]


def pinned(locks: Iterable[str]) -> dict[str, str]:
    """Names and versions in the texts of lock files; comments and markers are left out."""
    lines = (line.partition(";")[0].strip() for lock in locks for line in lock.splitlines())
    pairs = (line.split("==") for line in lines if line and not line.startswith("#"))
    return {_normal(name): version for name, version in pairs}


def unpinned(installed: Mapping[str, str], pins: Mapping[str, str]) -> list[str]:
    """What is installed in another version than the pins say, or in none of them."""
    versions = {_normal(name): version for name, version in installed.items()}
    return sorted(f"{name}=={version}" for name, version in versions.items() if pins.get(name) != version)


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def main(arguments: list[str]) -> int:
    """The two commands of this module's docstring; 1 when the check fails, 2 for a bad argument."""
    command, *rest = arguments
    if command == "wanted":
        try:
            print(*wanted(Path(rest[0]).read_text(encoding="utf-8"), rest[1]), sep="\n")
        except ValueError as error:
            print(error, file=sys.stderr)
            return 2
        return 0
    installed = {each.name: each.version for each in importlib.metadata.distributions()}
    loose = unpinned(installed, pinned(Path(lock).read_text(encoding="utf-8") for lock in rest))
    if loose:
        print(f"installed, but in no lock (make lock): {', '.join(loose)}", file=sys.stderr)
    return int(bool(loose))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

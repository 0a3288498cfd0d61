"""Debian's own packages -> a base image, for builds where no registry of images can be reached.

Needs root, debootstrap, and a mirror of Debian: the one that debootstrap knows, or another.
"""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from containers.engine import Engine, EngineError

BASE = "localhost/headrace-debian:bookworm"
RELEASE = "bookworm"
PACKAGES = ("ca-certificates", "python3", "python3-venv")
UNREAD = (
    *("dev", "usr/share/doc", "usr/share/info", "usr/share/locale", "usr/share/man"),
    *("var/cache", "var/lib/apt/lists", "var/log"),
)
"""Folders whose content no step reads."""


def debian_base(engine: Engine, *, mirror: str | None = None) -> str:
    """Make BASE unless this machine has it; gives its name. Raises EngineError when it cannot be made."""
    if engine.has(BASE):
        return BASE
    if os.geteuid() != 0 or shutil.which("debootstrap") is None:
        raise EngineError("a base image from Debian's packages needs root and debootstrap: apt-get install debootstrap")
    with tempfile.TemporaryDirectory(dir="/var/tmp") as scratch:
        root, archive = Path(scratch, "root"), Path(scratch, "root.tar")
        options = ["--variant=minbase", f"--include={','.join(PACKAGES)}"]
        _run(["debootstrap", *options, RELEASE, str(root), *([mirror] if mirror else [])])
        excluded = [f"--exclude=./{folder}/*" for folder in UNREAD]
        _run(["tar", "--create", f"--file={archive}", f"--directory={root}", "--one-file-system", *excluded, "."])
        engine.call("import", str(archive), BASE)
    return BASE


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        tail = "\n".join((done.stdout + done.stderr).strip().splitlines()[-5:])
        raise EngineError(f"{command[0]} ended with {done.returncode}:\n{tail}")

"""The Python that runs this -> a folder that is a whole root file system around it, with no other program.

Runs inside the build of the sandbox image, on Debian's Python or on that of the python image; the standard library is
all it may use.

    python3 sandbox_root.py FOLDER
"""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

LEFT_OUT = (
    *("config-*", "dist-packages", "ensurepip", "idlelib", "lib2to3"),
    *("site-packages", "test", "tests", "tkinter", "turtle*"),
)
"""Of the standard library: installers, a compiler's files, windows, tests of itself, and what others installed."""

USER = 10002
ACCOUNTS = {
    "etc/passwd": f"sandbox:x:{USER}:{USER}::/work:/usr/sbin/nologin\n",
    "etc/group": f"sandbox:x:{USER}:\n",
    "etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
}


def collect(root: Path) -> None:
    """Copy interpreter, standard library and shared libraries to their own places below `root`, and make the user."""
    root.mkdir(parents=True)
    for folder in ("bin", "lib", "lib64"):
        if Path("/", folder).is_symlink():
            (root / folder).symlink_to(os.readlink(f"/{folder}"))
    interpreter = Path(sys.executable).resolve()
    library = Path(sysconfig.get_path("stdlib"))
    _copy(interpreter, root)
    shutil.copytree(library, _below(root, library), ignore=_ignored, ignore_dangling_symlinks=True)
    for path in sorted({found for binary in (interpreter, *library.rglob("*.so")) for found in _loaded(binary)}):
        _copy(path, root)
    _copy(Path("/etc/ld.so.cache"), root)
    link = root / "usr/bin/python3"
    if not link.exists():
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(interpreter)
    for name, text in ACCOUNTS.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text, encoding="utf-8")
    (root / "tmp").mkdir()
    (root / "tmp").chmod(0o1777)
    (root / "work").mkdir()
    os.chown(root / "work", USER, USER)


def _ignored(folder: str, names: list[str]) -> set[str]:
    return shutil.ignore_patterns(*LEFT_OUT)(folder, names)


def _loaded(binary: Path) -> Iterator[Path]:
    """The shared libraries that a program or an extension module loads, the loader among them."""
    listed = subprocess.run(["ldd", binary], capture_output=True, text=True, check=True).stdout
    return (Path(match) for match in re.findall(r"(?:=> |^\s+)(/\S+)", listed, flags=re.MULTILINE))


def _below(root: Path, path: Path) -> Path:
    """Where a path of this system lies below `root`; links of folders are followed, so that each file is there once."""
    return root / path.parent.resolve().relative_to("/") / path.name


def _copy(path: Path, root: Path) -> None:
    """Copy a file under its own name, and what it links to under that one's."""
    target = _below(root, path)
    target.parent.mkdir(parents=True, exist_ok=True)
    if path.is_symlink():
        target.unlink(missing_ok=True)
        target.symlink_to(os.readlink(path))
        _copy(path.resolve(), root)
    else:
        shutil.copy2(path, target)


if __name__ == "__main__":
    collect(Path(sys.argv[1]))

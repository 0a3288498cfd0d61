"""This machine -> how much memory the processes of a run may have here, by whatever bounds it most."""

from pathlib import Path
from typing import NamedTuple

GIB = 2**30


class Memory(NamedTuple):
    """Bytes, and whose they are, for people."""

    size: int
    owner: str


def memory_here(root: Path = Path("/")) -> Memory | None:
    """The least of what the machine has, swap included, and what each control group above this process allows.

    None where nothing tells, as where there is no /proc. `root` is the root of the file system.
    """
    bounds = [Memory(size, f"the control group's limit in {path}") for path, size in _limits(root)]
    if total := _total(root):
        bounds.append(Memory(total, "this machine"))
    return min(bounds, default=None)


def _total(root: Path) -> int:
    try:
        lines = (root / "proc/meminfo").read_text().splitlines()
    except OSError:
        return 0
    kibibytes = {name: int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in lines)}
    # What cannot fit for certain does not fit with swap either.
    return 1024 * (kibibytes.get("MemTotal", 0) + kibibytes.get("SwapTotal", 0))


def _limits(root: Path) -> list[tuple[Path, int]]:
    """Limits of this process's control group and of those around it, of both versions of the interface."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    found: dict[Path, int] = {}
    for _, controllers, group in (line.split(":", 2) for line in lines):
        if controllers and "memory" not in controllers.split(","):
            continue
        top = root / "sys/fs/cgroup" / ("memory" if controllers else "")
        file = "memory.limit_in_bytes" if controllers else "memory.max"
        below = top / group.strip("/")
        # In a container the group's own path may not be seen, and its limit is at the top.
        for folder in (below, *below.parents):
            if folder.is_relative_to(top) and (limit := _limit(folder / file)) is not None:
                found[folder / file] = limit
    return list(found.items())


def _limit(file: Path) -> int | None:
    try:
        text = file.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None

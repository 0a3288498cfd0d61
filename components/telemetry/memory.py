"""How much memory this process holds now."""

import os
import resource
import sys
from pathlib import Path

_STATM = Path("/proc/self/statm")


def resident_bytes() -> int:
    """Resident memory in bytes; where the system does not tell, the most that it has been so far."""
    if _STATM.is_file():
        return int(_STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    # Linux counts in KiB, macOS in bytes.
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)

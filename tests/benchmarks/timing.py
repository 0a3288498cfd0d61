"""What benchmarks share: the command line, one JSON object as the last line of standard output, and peak memory."""

import argparse
import json
import resource
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def arguments(description: str, **others: str) -> argparse.Namespace:
    """`--json` prints the object alone; `--quick` ends within a minute and is noisier; `others` are options of text."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--json", action="store_true", help="print one JSON object on one line")
    parser.add_argument("--quick", action="store_true", help="end within a minute; noisier")
    for name, default in others.items():
        parser.add_argument(f"--{name}", default=default, help=f"default: {default}")
    return parser.parse_args()


def print_figures(figures: Mapping[str, Any], options: argparse.Namespace) -> None:
    """The figures, for a script or for a person."""
    print(json.dumps(figures, default=float) if options.json else json.dumps(figures, default=float, indent=2))


def peak_bytes() -> int:
    """The most memory that this process has had resident so far."""
    status = Path("/proc/self/status")
    if status.is_file():
        # getrusage would count the process that started this one, too.
        (line,) = (line for line in status.read_text().splitlines() if line.startswith("VmHWM:"))
        return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)

"""What benchmarks share: the command line, and one JSON object as the last line of standard output."""

import argparse
import json
from collections.abc import Mapping
from typing import Any


def arguments(description: str) -> argparse.Namespace:
    """`--json` prints the object alone; `--quick` ends within a minute and is noisier."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--json", action="store_true", help="print one JSON object on one line")
    parser.add_argument("--quick", action="store_true", help="end within a minute; noisier")
    return parser.parse_args()


def print_figures(figures: Mapping[str, Any], options: argparse.Namespace) -> None:
    """The figures, for a script or for a person."""
    print(json.dumps(figures, default=float) if options.json else json.dumps(figures, default=float, indent=2))

"""Lines of progress for the person at the terminal."""

import sys


def say(line: str) -> None:
    """Print to standard error, at once; standard output belongs to results."""
    print(line, file=sys.stderr, flush=True)

"""Lines of progress for the person at the terminal."""

import contextlib
import sys


def say(line: str) -> None:
    """Print to standard error, at once; standard output belongs to results. Work goes on where nobody listens."""
    with contextlib.suppress(BrokenPipeError):
        print(line, file=sys.stderr, flush=True)

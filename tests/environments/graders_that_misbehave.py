"""Graders for the tests of the pool: importable in another process, and nothing else."""

import os
import time


def length(text: str) -> float:
    return float(len(text))


def never_ends(text: str) -> float:
    while True:
        pass


def sleeps(seconds: float) -> float:
    time.sleep(seconds)
    return seconds


def raises(text: str) -> float:
    raise ValueError(f"cannot grade {text}")


def dies(text: str) -> float:
    os._exit(3)


def loaded_modules() -> list[str]:
    import sys

    return sorted(sys.modules)


def gives_what_cannot_be_sent() -> object:
    return lambda: 1


def process_id() -> int:
    return os.getpid()


def exits(text: str) -> float:
    raise SystemExit(4)


def gives_50_mb(text: str) -> str:
    return "x" * 50_000_000

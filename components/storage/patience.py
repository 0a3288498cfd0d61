"""How long a storage that fails is waited for."""

from dataclasses import dataclass


@dataclass
class Patience:
    """Seconds: how long a storage may fail before an operation gives up, and how long it may take over one answer.

    Pauses are drawn between 0 and a bound that doubles from `first_pause` to `longest_pause`.
    """

    total: float = 600.0
    answer: float = 60.0
    first_pause: float = 0.5
    longest_pause: float = 15.0


PATIENCE = Patience()
"""That of this process. One for all: what a run waits for is the storage, not an operation."""


def hurry(seconds: float) -> None:
    """From now on no operation of this process, begun or not, bears a failing storage longer: it is about to end."""
    PATIENCE.total = min(PATIENCE.total, seconds)

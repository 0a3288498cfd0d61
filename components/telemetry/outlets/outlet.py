"""What every outlet has: numbers in, step by step, and an end. And the list of those that a run has.

An outlet must never cost a run anything: it works on the thread that writes the run's records, and one that raises is
told of once and left out from then on.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from components.telemetry.progress import say


@runtime_checkable
class Outlet(Protocol):
    """Where numbers go. `name` is for people."""

    name: str

    def step(self, step: int, numbers: Mapping[str, Any]) -> None:
        """Take the numbers of an optimizer step, as `metrics.jsonl` has them."""
        ...

    def close(self) -> None:
        """Send what is left."""
        ...


class Outlets:
    """Several outlets, each on its own: what one fails of does not concern the others."""

    name = "outlets"

    def __init__(self, outlets: Sequence[Outlet]) -> None:
        self._working = list(outlets)

    def step(self, step: int, numbers: Mapping[str, Any]) -> None:
        """Give the numbers to each."""
        for outlet in tuple(self._working):
            try:
                outlet.step(step, numbers)
            except Exception as error:  # The boundary to other people's programs and networks.
                self._drop(outlet, error)

    def close(self) -> None:
        """Close each."""
        for outlet in tuple(self._working):
            try:
                outlet.close()
            except Exception as error:  # The same boundary.
                self._drop(outlet, error)
        self._working.clear()

    def _drop(self, outlet: Outlet, error: Exception) -> None:
        self._working.remove(outlet)
        say(f"{outlet.name} gets nothing more from this run: {type(error).__name__}: {error}")


def attempted(name: str, work: Callable[[], None]) -> bool:
    """Do something with the outlet of this name that needs to be done once; a failure is told. Whether it worked."""
    try:
        work()
    except Exception as error:  # The same boundary.
        say(f"{name} did not get all of this run: {type(error).__name__}: {error}")
        return False
    return True


def scalars(numbers: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    """Every number below `numbers` by its path: `{"tokens": {"trained": 3}}` -> ("tokens/trained", 3.0)."""
    for key, value in numbers.items():
        if isinstance(value, Mapping):
            yield from scalars(value, f"{prefix}{key}/")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield f"{prefix}{key}", float(value)

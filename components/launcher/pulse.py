"""Files that grow -> how long ago a job gave a sign of life; and one file that tells the job that it is watched.

Both ways go through the run's folder, as launcher and job may share nothing else. Neither compares clocks of two
machines: what counts is when a change was seen. A storage that fails for a while is no sign of death.
"""

import itertools
import threading
import time
from collections.abc import Callable, Sequence

from google.api_core.exceptions import GoogleAPIError

from components import storage
from components.errors import DataError
from components.telemetry.metrics import read_metrics

PULSE_SECONDS = 60.0

_STORAGE_FAULTS = (OSError, GoogleAPIError)


class SignsOfLife:
    """Looks at files that a job lets grow. The first has a line per optimizer step."""

    def __init__(self, files: Sequence[str]) -> None:
        self._files = tuple(files)
        self._sizes: dict[str, int] = {}
        self._seen = time.monotonic()
        self.step = 0
        self.given = False
        """Whether there was any sign, by this job or by one that it goes on from."""

    @property
    def age(self) -> float:
        """Seconds since the last sign, or since the watch began."""
        return time.monotonic() - self._seen

    def look(self) -> None:
        """See whether a file has changed."""
        for number, file in enumerate(self._files):
            try:
                size = storage.size(file)
                if size == self._sizes.get(file):
                    continue
                self._sizes[file] = size
                self.renew()
                self.given = True
                if number == 0:
                    self.step = _last_step(file)
            except _STORAGE_FAULTS:
                continue

    def renew(self) -> None:
        """Count from now on: the job has just begun again."""
        self._seen = time.monotonic()


def _last_step(metrics: str) -> int:
    try:
        return max((int(line["step"]) for line in read_metrics(metrics)), default=0)
    except (DataError, KeyError):
        return 0


class Watched:
    """The launcher's side of a file that changes as long as somebody watches the job."""

    def __init__(self, file: str) -> None:
        self._file = file
        self._beat = itertools.count(time.time_ns())

    def beat(self) -> None:
        """Change the file."""
        try:
            storage.write_text(self._file, str(next(self._beat)))
        except _STORAGE_FAULTS:
            return


class Orphaned:
    """The job's side: calls `give_up` once nobody has changed the file for `patience` seconds."""

    def __init__(
        self, file: str, give_up: Callable[[], None], *, patience: float, look_every: float = PULSE_SECONDS
    ) -> None:
        self._file = file
        self._give_up = give_up
        self._patience = patience
        self._look_every = look_every
        self.gave_up = False
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._look, name="look for the launcher", daemon=True)

    def __enter__(self) -> "Orphaned":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()

    def _look(self) -> None:
        seen, since = "", time.monotonic()
        while not self._stopped.wait(self._look_every):
            try:
                found = storage.read_text(self._file)
            except FileNotFoundError:
                found = seen
            except _STORAGE_FAULTS:
                since = time.monotonic()
                continue
            if found != seen:
                seen, since = found, time.monotonic()
            if time.monotonic() - since > self._patience:
                self.gave_up = True
                self._give_up()
                return

"""A log that grows line by line and survives a crash."""

from components.storage.files import place_of, read_bytes
from components.storage.place import Uri


def read_lines(uri: Uri) -> list[str]:
    """The whole lines of a log, without one that a crash has cut; an empty list where there is no file."""
    try:
        text = read_bytes(uri)
    except FileNotFoundError:
        return []
    return [line.decode() for line in text.split(b"\n")[:-1]]


class LineLog:
    """A file that only grows, line by line, and has one writer.

    A line is safe when `sync` has returned. Opening a log again removes a last line that a crash has cut. Where two
    write one log, the one that finds a line of the other at its end is told, and writes nothing.
    """

    def __init__(self, uri: Uri) -> None:
        self.uri = str(uri)
        self._place = place_of(uri)
        self._end = self._place.open_log(self.uri)
        self._pending: list[bytes] = []

    def append(self, line: str) -> None:
        """Add a line, to be written by the next `sync`. Raises ValueError for a text with a newline."""
        if "\n" in line:
            raise ValueError(f"a line of {self.uri} must not hold a newline: {line[:80]!r}")
        self._pending.append(line.encode() + b"\n")

    def sync(self) -> None:
        """Write the lines that are pending. Raises ConflictError where another writer is found."""
        if self._pending:
            self._end = self._place.append(self.uri, b"".join(self._pending), self._end)
            self._pending.clear()

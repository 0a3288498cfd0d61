"""A SQLite file and one query that somebody else wrote -> rows, or a short reason; the file cannot be changed.

The file is opened read-only and immutable. Only what reads is authorised: no ATTACH, no PRAGMA that sets anything, no
extension. Time, rows, the length of the text and of every single value are bounded, so that no query hangs or fills
the memory of its process.
"""

import re
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from components.environments.sizes import cut, encodable
from components.environments.tools import Tool, ToolError, tool
from components.errors import ConfigError, Problem

_READS = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_RECURSIVE}
_HARMLESS_PRAGMAS = {"table_info", "table_xinfo", "table_list", "index_list", "index_info", "foreign_key_list"}
_REFUSED_FUNCTIONS = {"load_extension", "fts3_tokenizer"}
_MAX_VALUE_BYTES = 200_000
_MAX_SQL = 20_000
_INSTRUCTIONS_BETWEEN_LOOKS = 2_000
_MAX_CELL = 500
_HEADER = b"SQLite format 3\x00"


@dataclass(frozen=True, slots=True)
class Rows:
    """What a query gave. `complete` is false where rows or characters were left out."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    complete: bool = True

    def text(self) -> str:
        """A line of names, a line for each row, and how many there are; a value is cut at 500 characters."""
        lines = [" | ".join(self.columns), *(" | ".join(map(_cell, row)) for row in self.rows)]
        counted = f"{len(self.rows)} row{'s' * (len(self.rows) != 1)}"
        note = f"({counted})" if self.complete else f"[cut: there are more than these {counted}]"
        return "\n".join([*lines, note])


class Database:
    """A SQLite file for reading. Connections are opened for each query, so any number of threads may ask at once.

    `seconds`, `max_rows` and `max_characters` bound each query. Raises ConfigError where `path` is no SQLite file, or
    has a write-ahead log that holds changes, which a file opened as immutable would not show.
    """

    def __init__(
        self, path: str | Path, *, seconds: float = 2.0, max_rows: int = 50, max_characters: int = 8000
    ) -> None:
        self.path = Path(path).resolve()
        self._seconds = seconds
        self._max_rows = max_rows
        self._max_characters = max_characters
        _check_file(self.path)

    def query(self, sql: str) -> Rows:
        """The rows of one statement that only reads. Raises ToolError with SQLite's own words, or the limit's."""
        if len(sql) > _MAX_SQL:
            raise ToolError(f"the query has {len(sql)} characters, more than {_MAX_SQL}")
        with read_only(self.path, self._seconds) as connection:
            _restrict(connection)
            cursor = connection.execute(sql)
            if cursor.description is None:
                raise ToolError("this is no query; write a SELECT")
            return self._taken(tuple(column[0] for column in cursor.description), cursor)

    def schema(self) -> str:
        """The CREATE statements of its tables and views, in their order: what a prompt shows of it."""
        rows = self._whole("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL AND name NOT LIKE 'sqlite_%'")
        return "\n".join(f"{sql};" for (sql,) in rows)

    def _whole(self, sql: str) -> list[tuple[Any, ...]]:
        with read_only(self.path, self._seconds) as connection:
            return list(connection.execute(sql))

    def _taken(self, columns: tuple[str, ...], cursor: sqlite3.Cursor) -> Rows:
        rows: list[tuple[Any, ...]] = []
        room = self._max_characters
        for row in cursor:
            room -= sum(len(_cell(value)) + 3 for value in row)
            if len(rows) == self._max_rows or (room < 0 and rows):
                return Rows(columns, tuple(rows), complete=False)
            rows.append(row)
        return Rows(columns, tuple(rows))


def sql_tool(database: Database, *, name: str = "sql") -> Tool:
    """A tool that asks one database. What it holds is not told here: put `database.schema()` into the prompt."""

    def sql(query: str) -> str:
        """Read from the database with one SQL query (SQLite). It cannot be changed.

        Args:
            query: a SELECT statement
        """
        return database.query(query).text()

    return tool(sql, name=name)


@contextmanager
def read_only(path: Path, seconds: float) -> Iterator[sqlite3.Connection]:
    """A connection that cannot write, and in which no statement takes more than `seconds`.

    What SQLite says is wrong is raised as a ToolError.
    """
    deadline = time.monotonic() + seconds
    uri = f"file:{quote(str(path))}?mode=ro&immutable=1"
    try:
        with closing(sqlite3.connect(uri, uri=True, isolation_level=None)) as connection:
            connection.execute("PRAGMA query_only = ON")
            connection.text_factory = lambda data: data.decode("utf-8", errors="replace")
            connection.set_progress_handler(lambda: time.monotonic() > deadline, _INSTRUCTIONS_BETWEEN_LOOKS)
            yield connection
    except (sqlite3.Error, sqlite3.Warning, UnicodeEncodeError, ValueError, OverflowError, MemoryError) as error:
        if str(error) == "interrupted":
            raise ToolError(f"the query took longer than {seconds:g} seconds") from error
        if "not authorized" in str(error) or "authorization denied" in str(error):
            raise ToolError(f"{error}: this database can only be read, with SELECT") from error
        raise ToolError(encodable(str(error)) or type(error).__name__) from error


def _restrict(connection: sqlite3.Connection) -> None:
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _MAX_VALUE_BYTES)
    connection.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
    connection.setlimit(sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH, 200)
    connection.setlimit(sqlite3.SQLITE_LIMIT_EXPR_DEPTH, 200)
    connection.setlimit(sqlite3.SQLITE_LIMIT_COMPOUND_SELECT, 50)
    connection.set_authorizer(_authorised)


def _authorised(action: int, first: str | None, second: str | None, *others: str | None) -> int:
    if action in _READS:
        return sqlite3.SQLITE_OK
    if action == sqlite3.SQLITE_FUNCTION and (second or "").lower() not in _REFUSED_FUNCTIONS:
        return sqlite3.SQLITE_OK
    if action == sqlite3.SQLITE_PRAGMA and (first or "").lower() in _HARMLESS_PRAGMAS:
        return sqlite3.SQLITE_OK
    return sqlite3.SQLITE_DENY


def _check_file(path: Path) -> None:
    try:
        with path.open("rb") as file:
            begins_well = file.read(len(_HEADER)) == _HEADER
    except OSError as error:
        raise ConfigError(Problem("database", str(path), f"cannot be read: {error.strerror}")) from error
    if not begins_well:
        raise ConfigError(Problem("database", str(path), "is no SQLite file"))
    log = path.with_name(f"{path.name}-wal")
    if log.is_file() and log.stat().st_size:
        message = "has changes in its write-ahead log; bring them in with PRAGMA wal_checkpoint(TRUNCATE)"
        raise ConfigError(Problem("database", str(path), message))


def _cell(value: Any) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, bytes):
        return f"({len(value)} bytes)"
    return re.sub(r"\s+", " ", cut(str(value), _MAX_CELL)) if isinstance(value, str) else str(value)

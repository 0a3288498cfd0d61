"""A corpus, one document a line, -> ranked passages for a query. SQLite's FTS5, in one file that is only read.

    {"title": "Rhine", "text": "The Rhine is a river ..."}

An index is named after the content that it was made of: it is built once, appears whole or not at all, and is found
again by every process that names the same folder for it. There are no vectors here: words are matched by their stems,
and ranked by BM25.
"""

import functools
import hashlib
import json
import os
import re
import sqlite3
import tempfile
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from components import storage
from components.environments.sql import read_only
from components.environments.tools import Tool, ToolError, tool
from components.errors import DataError, Problem

_FORM = "fts5 porter 1"
"""Part of an index's name: another form of table gets another file."""
_CREATE = "CREATE VIRTUAL TABLE documents USING fts5(title, text, tokenize='porter unicode61 remove_diacritics 2')"
_SEARCH = """
    SELECT title, CASE WHEN length(text) <= ? THEN text ELSE snippet(documents, 1, '', '', ' ... ', 64) END
    FROM documents WHERE documents MATCH ? ORDER BY bm25(documents, 3.0, 1.0), rowid LIMIT ?
"""
_MAX_WORDS = 32
_MAX_PROBLEMS = 20


@dataclass(frozen=True, slots=True)
class Passage:
    """What is shown of one document: all of its text, or the part around the words that were found."""

    title: str
    text: str


class SearchIndex:
    """An index for reading, from any number of threads. `seconds` bounds each query."""

    def __init__(self, path: Path, *, seconds: float = 5.0) -> None:
        self.path = path
        self._seconds = seconds

    def search(self, query: str, results: int = 3, *, whole: int = 800) -> list[Passage]:
        """The best documents first, ties in the order of the corpus; empty where no word of the query is known.

        Any of the words may occur, in any form of the same stem. A text of up to `whole` characters is shown whole, of
        a longer one about 64 words. Raises ToolError for a query without a word.
        """
        words = re.findall(r"\w+", query)[:_MAX_WORDS]
        if not words:
            raise ToolError("the query has no words")
        match = " OR ".join(f'"{word}"' for word in dict.fromkeys(words))
        with read_only(self.path, self._seconds) as connection:
            return [Passage(*row) for row in connection.execute(_SEARCH, (whole, match, results))]

    def document(self, title: str) -> str:
        """The whole text of the document with this title, in any case. Raises ToolError that names titles like it."""
        with read_only(self.path, self._seconds) as connection:
            words = " AND ".join(f'"{word}"' for word in re.findall(r"\w+", title)[:_MAX_WORDS])
            find = "SELECT text FROM documents WHERE documents MATCH ? AND lower(title) = lower(?) ORDER BY rowid"
            found = connection.execute(find, (f"title: ({words})", title.strip())).fetchone() if words else None
        if found is not None:
            return str(found[0])
        similar = [passage.title for passage in self.search(title)] if words else []
        hint = f"; there are: {', '.join(similar)}" if similar else ""
        raise ToolError(f'no document is called "{title}"{hint}')


def search_tool(index: SearchIndex, *, results: int = 3, name: str = "search") -> Tool:
    """A tool that shows titles and passages of the `results` best documents."""

    def search(query: str) -> str:
        """Search the documents by words.

        Args:
            query: some words that the document should hold
        """
        found = index.search(query, results)
        return "\n\n".join(f"[{i}] {hit.title}\n{hit.text}" for i, hit in enumerate(found, start=1)) or "nothing found"

    return tool(search, name=name)


def document_tool(index: SearchIndex, *, name: str = "read") -> Tool:
    """A tool that shows one whole document."""

    def read(title: str) -> str:
        """Read a whole document.

        Args:
            title: the title, as a search shows it
        """
        return index.document(title)

    return tool(read, name=name)


@functools.cache
def open_index(corpus: str, folder: str | None = None, *, title: str = "title", text: str = "text") -> SearchIndex:
    """The index of a corpus, a JSONL file, local or gs://; built when there is none yet. Cheap from the second time on.

    Indexes are kept in `folder`; without one they live as long as the process. `title` and `text` are the fields of a
    row; a row may lack its title. Raises DataError that names line and field of every row that cannot be used.
    """
    where = Path(folder) if folder else _own_folder()
    where.mkdir(parents=True, exist_ok=True)
    if not storage.exists(corpus):
        raise DataError(Problem(corpus, corpus, "there is no such file"))
    with tempfile.TemporaryDirectory(dir=where) as scratch:
        source = Path(corpus)
        if storage.is_remote(corpus):
            source = Path(scratch, "corpus")
            storage.download(corpus, source)
        path = where / f"{_content_hash(source, title, text)}.sqlite3"
        if not path.is_file():
            unfinished = Path(scratch, "index")
            _build(source, corpus, unfinished, (title, text))
            os.replace(unfinished, path)
    return SearchIndex(path)


def _build(source: Path, corpus: str, path: Path, fields: tuple[str, str]) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode = OFF")
        connection.execute("PRAGMA synchronous = OFF")
        connection.execute(_CREATE)
        connection.executemany("INSERT INTO documents VALUES (?, ?)", _documents(source, corpus, fields))
        connection.execute("INSERT INTO documents(documents) VALUES ('optimize')")
        if connection.execute("SELECT count(*) FROM documents").fetchone() == (0,):
            raise DataError(Problem(corpus, "", "the corpus has no documents"))
        connection.commit()


def _documents(source: Path, corpus: str, fields: tuple[str, str]) -> Iterator[tuple[str, str]]:
    """(title, text) of every row; at the end DataError where some were none."""
    problems: list[Problem] = []
    # By bytes: only they are split at the ends of lines alone.
    with source.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            document, problem = _document(line, f"{corpus}:{number}", *fields)
            if problem is None:
                yield document
            else:
                problems.append(problem)
            if len(problems) == _MAX_PROBLEMS:
                break
    if problems:
        raise DataError(problems)


def _document(line: bytes, where: str, title: str, text: str) -> tuple[tuple[str, str], Problem | None]:
    nothing = ("", "")
    try:
        row: Any = json.loads(line)
    except (ValueError, RecursionError) as error:
        return nothing, Problem(where, line[:200], f"not JSON in UTF-8: {error}")
    if not isinstance(row, dict):
        return nothing, Problem(where, row, "a row must be a JSON object")
    body, head = row.get(text), row.get(title, "")
    if not isinstance(body, str) or not body.strip():
        return nothing, Problem(f"{where}: {text}", body, "must be a text, and not empty")
    if not isinstance(head, str):
        return nothing, Problem(f"{where}: {title}", head, "must be a text")
    return (head, body), None


def _content_hash(source: Path, *names: str) -> str:
    with source.open("rb") as file:
        content = hashlib.file_digest(file, "sha256").hexdigest()
    return hashlib.sha256("\0".join((_FORM, content, *names)).encode()).hexdigest()[:32]


_lock = threading.Lock()
_owned: list[tempfile.TemporaryDirectory[str]] = []


def _own_folder() -> Path:
    """A folder that ends with this process."""
    with _lock:
        if not _owned:
            _owned.append(tempfile.TemporaryDirectory(prefix="headrace-search-"))
        return Path(_owned[0].name)

"""A data set, wherever it lies -> its rows, each with its place, and a list of everything that is no row.

    rows.jsonl, rows.parquet         a file, on a disk or on gs://; also .json with one list of rows
    folder/                          one file or several for each split, as the hub lays them out:
                                     train.jsonl, data/train-00000-of-00002.parquet, CONFIG/train-0.parquet
    hub:openai/gsm8k@REVISION#main   the same of a repository of the hub; @REVISION and #CONFIG may be left out

What a row holds is what JSON can hold: a date or a decimal of Parquet is its text, bytes are read as UTF-8, and a null
within a value of Parquet is a field that the row does not have.
"""

import datetime
import decimal
import io
import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from components import storage
from components.errors import DataError, Problem

ENDINGS = (".jsonl", ".parquet", ".json")
_HUB = re.compile(r"hub:(?P<name>[\w.-]+(?:/[\w.-]+)?)(?:@(?P<revision>[\w./-]+))?(?:#(?P<config>[\w.-]+))?")
_BATCH = 1024


@dataclass(frozen=True, slots=True)
class Hub:
    """Where a data set of the hub is kept on this machine (by default where the hub's own client keeps it).

    `offline` takes what is there and asks nobody. `token_file` is a mounted file that holds an access token.
    """

    cache: str | None = None
    offline: bool = False
    token_file: str | None = None


def split_files(source: str, split: str, *, hub: Hub = Hub()) -> list[str]:
    """The files of a split, in order. Raises DataError where there is none, naming what there is.

    A source that is a file is every split's. In a folder a split's files are those whose names begin with it.
    """
    folder, config = source, None
    if source.startswith("hub:"):
        folder, config = _fetched(source, hub)
    if PurePosixPath(folder).suffix in ENDINGS:
        if not storage.exists(folder):
            raise DataError(Problem(folder, folder, "there is no such file"))
        return [folder]
    below = len(folder.rstrip("/")) + 1
    names = [name[below:] for name in storage.list_files(folder) if PurePosixPath(name).suffix in ENDINGS]
    found = [name for name in names if _is_of(name, split, config)]
    folders = sorted({str(PurePosixPath(name).parent) for name in found})
    if not names:
        where = storage.join(folder, f"{split}.jsonl")
        raise DataError(Problem(where, source, "there is no such file, and no .parquet or .json in this folder"))
    if not found:
        message = f"has no file of the split {split}; it holds {', '.join(names[:8])}"
        raise DataError(Problem(source, split, message))
    if len(folders) > 1:
        message = f"has the split {split} in several folders; name one, as in {source}/{folders[0]} or hub:NAME#CONFIG"
        raise DataError(Problem(source, folders, message))
    return [storage.join(folder, name) for name in found]


def read_rows(uri: str, problems: list[Problem]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each row of a file with its place, `file:number`. What is no row is added to `problems`.

    Raises DataError for a file that is not there, or that cannot be read at all.
    """
    if not storage.exists(uri):
        raise DataError(Problem(uri, uri, "there is no such file"))
    if uri.endswith(".parquet"):
        yield from _parquet_rows(uri, problems)
    elif uri.endswith(".json"):
        yield from _listed_rows(uri, problems)
    else:
        yield from _line_rows(uri, problems)


def _fetched(source: str, hub: Hub) -> tuple[str, str | None]:
    found = _HUB.fullmatch(source)
    if found is None:
        raise DataError(Problem("data", source, "write it as hub:OWNER/NAME@REVISION#CONFIG"))
    from components.model.hub import hub_folder  # the room whose libraries may speak to the hub

    patterns = [f"*{ending}" for ending in ENDINGS]
    folder = hub_folder(
        found["name"],
        revision=found["revision"],
        patterns=patterns,
        cache=hub.cache,
        offline=hub.offline,
        token_file=hub.token_file,
    )
    return str(folder), found["config"]


def _is_of(name: str, split: str, config: str | None) -> bool:
    path = PurePosixPath(name)
    if config is not None and config not in path.parts[:-1]:
        return False
    return re.match(rf"{re.escape(split)}(?:[-_.]|$)", path.name) is not None


def _line_rows(uri: str, problems: list[Problem]) -> Iterator[tuple[str, dict[str, Any]]]:
    # By bytes, and not splitlines: a JSON text may hold U+2028, which is no end of a line.
    for number, line in enumerate(storage.read_bytes(uri).removeprefix(b"\xef\xbb\xbf").split(b"\n"), start=1):
        where = f"{uri}:{number}"
        try:
            text = line.decode("utf-8").strip()
        except UnicodeDecodeError as error:
            wrong = error.object[error.start : error.end]
            problems.append(Problem(where, wrong, f"not UTF-8 at byte {error.start} of the line"))
            continue
        if not text:
            continue
        try:
            row = json.loads(text)
        except (ValueError, RecursionError) as error:
            problems.append(Problem(where, text, f"not JSON: {error}"))
            continue
        if isinstance(row, dict):
            yield where, row
        else:
            problems.append(Problem(where, row, "a row must be a JSON object"))


def _listed_rows(uri: str, problems: list[Problem]) -> Iterator[tuple[str, dict[str, Any]]]:
    try:
        rows = json.loads(storage.read_bytes(uri).decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise DataError(Problem(uri, "", f"not JSON in UTF-8: {error}; for one row a line name it .jsonl")) from None
    if not isinstance(rows, list):
        raise DataError(
            Problem(uri, type(rows).__name__, "must be one list of rows; for one row a line name it .jsonl")
        )
    for number, row in enumerate(rows, start=1):
        if isinstance(row, dict):
            yield f"{uri}:{number}", row
        else:
            problems.append(Problem(f"{uri}:{number}", row, "a row must be a JSON object"))


def _parquet_rows(uri: str, problems: list[Problem]) -> Iterator[tuple[str, dict[str, Any]]]:
    import pyarrow as arrow  # slow to import, and most data is JSONL
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(io.BytesIO(storage.read_bytes(uri))) as file:
            number = 0
            for batch in file.iter_batches(batch_size=_BATCH):
                for row in batch.to_pylist():
                    number += 1
                    plain = _plain_row(row, f"{uri}:{number}", problems)
                    if plain is not None:
                        yield f"{uri}:{number}", plain
    except (arrow.ArrowException, UnicodeDecodeError) as error:
        raise DataError(Problem(uri, "", f"cannot be read as Parquet: {error}")) from error


def _plain_row(row: Mapping[str, Any], where: str, problems: list[Problem]) -> dict[str, Any] | None:
    plain: dict[str, Any] = {}
    for field, value in row.items():
        try:
            plain[field] = _plain(value)
        except (ValueError, TypeError) as error:
            problems.append(Problem(f"{where}: {field}", value, f"cannot be kept: {error}"))
            return None
    return plain


def _plain(value: Any) -> Any:
    """What JSON can hold of a value; ValueError or TypeError where that would lose something."""
    if value is None or isinstance(value, str | int):
        return value
    if isinstance(value, float):
        # A number that is not finite is no JSON; it is told where the field is needed.
        return value if math.isfinite(value) else None
    if isinstance(value, bytes):
        return value.decode("utf-8")
    if isinstance(value, datetime.date | datetime.time | datetime.timedelta | decimal.Decimal):
        return str(value)
    if isinstance(value, Mapping):
        # A struct has the fields of all rows: without this a call in one row would have the arguments of every other.
        return {str(key): _plain(item) for key, item in value.items() if item is not None}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    raise TypeError(f"{type(value).__name__} is nothing that JSON holds")

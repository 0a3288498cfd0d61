"""A database for reading: rows as text, and fifty ways to write, hang or reach out that end in a short reason."""

import asyncio
import hashlib
import sqlite3
import time

import pytest

from components.environments.sql import Database, sql_tool
from components.environments.tools import ToolError
from components.errors import ConfigError


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "a shop #1?.db"
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE goods (name TEXT, price REAL)")
    connection.executemany("INSERT INTO goods VALUES (?, ?)", [(f"thing {i}", i / 2) for i in range(100)])
    connection.execute("CREATE VIEW cheap AS SELECT * FROM goods WHERE price < 1")
    connection.commit()
    connection.close()
    return path


def test_rows_come_as_a_text_with_names_and_a_count(path):
    result = asyncio.run(sql_tool(Database(path)).call({"query": "SELECT *, NULL AS n, x'00' AS b FROM cheap"}))
    lines = ["name | price | n | b", "thing 0 | 0.0 | NULL | (1 bytes)", "thing 1 | 0.5 | NULL | (1 bytes)", "(2 rows)"]
    assert result.text.split("\n") == lines
    assert not result.is_error


def test_a_mistake_is_told_in_the_words_of_sqlite(path):
    result = asyncio.run(sql_tool(Database(path)).call({"query": "SELECT nme FROM goods"}))
    assert (result.text, result.is_error) == ("error: no such column: nme", True)


def test_rows_and_characters_are_bounded_and_the_cut_is_said(path):
    few = Database(path, max_rows=3).query("SELECT name FROM goods")
    assert (len(few.rows), few.complete) == (3, False)
    assert few.text().endswith("thing 2\n[cut: there are more than these 3 rows]")
    short = Database(path, max_characters=40).query("SELECT name FROM goods")
    assert 1 <= len(short.rows) < 6
    assert not short.complete
    assert Database(path, max_rows=100).query("SELECT name FROM goods").complete


def test_the_schema_is_what_a_prompt_can_show(path):
    assert Database(path).schema() == (
        "CREATE TABLE goods (name TEXT, price REAL);\nCREATE VIEW cheap AS SELECT * FROM goods WHERE price < 1;"
    )


@pytest.mark.parametrize(
    "sql",
    [
        "DROP TABLE goods",
        "INSERT INTO goods VALUES ('a', 1)",
        "UPDATE goods SET price = 0",
        "DELETE FROM goods",
        "REPLACE INTO goods VALUES ('a', 1)",
        "WITH a AS (SELECT 1) DELETE FROM goods",
        "INSERT INTO goods SELECT * FROM goods RETURNING name",
        "EXPLAIN DELETE FROM goods",
        "CREATE TABLE other (a)",
        "CREATE TEMP TABLE other (a)",
        "CREATE TRIGGER t AFTER INSERT ON goods BEGIN SELECT 1; END",
        "CREATE VIRTUAL TABLE v USING fts5(a)",
        "ALTER TABLE goods ADD COLUMN a",
        "ATTACH DATABASE 'other.db' AS other",
        "DETACH DATABASE main",
        "VACUUM",
        "VACUUM INTO 'copy.db'",
        "ANALYZE",
        "REINDEX",
        "BEGIN IMMEDIATE",
        "SAVEPOINT a",
        "COMMIT",
        "PRAGMA query_only = OFF",
        "PRAGMA journal_mode = WAL",
        "PRAGMA writable_schema = ON",
        "PRAGMA temp_store_directory = '/tmp'",
        "PRAGMA hard_heap_limit = 1",
        "PRAGMA database_list",
        "SELECT load_extension('/tmp/evil.so')",
        "SELECT LOAD_EXTENSION('/tmp/evil.so', 'main')",
        "SELECT fts3_tokenizer('simple')",
        "SELECT readfile('/etc/passwd')",
        "SELECT writefile('out', 'x')",
        "SELECT edit('x')",
        "SELECT 1; DROP TABLE goods",
        "SELECT 1\x00; DROP TABLE goods",
        "SELECT '\ud83d'",
        "",
        "-- nothing at all",
        "SELECT hex(zeroblob(100000000))",
        "SELECT group_concat(hex(randomblob(9000))) FROM goods",
        "SELECT " + "(" * 5000 + "1" + ")" * 5000,
        "SELECT " + "-" * 30_000 + "1",
    ],
)
def test_whatever_does_more_than_read_is_refused_and_changes_nothing(path, sql):
    before, files = hashlib.sha256(path.read_bytes()).digest(), set(path.parent.iterdir())
    with pytest.raises(ToolError):
        Database(path).query(sql)
    assert hashlib.sha256(path.read_bytes()).digest() == before
    assert set(path.parent.iterdir()) == files


@pytest.mark.parametrize(
    "sql",
    [
        "WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM t) SELECT count(*) FROM t",
        "SELECT count(*) FROM goods a, goods b, goods c, goods d, goods e",
        "SELECT a.name FROM goods a, goods b, goods c, goods d ORDER BY random()",
    ],
)
def test_an_endless_query_ends_in_time(path, sql):
    started = time.perf_counter()
    with pytest.raises(ToolError, match=r"took longer than 0\.2 seconds"):
        Database(path, seconds=0.2).query(sql)
    assert time.perf_counter() - started < 5


def test_the_shape_of_tables_may_be_asked_for(path):
    assert Database(path).query("PRAGMA table_info(goods)").rows[0][1:3] == ("name", "TEXT")


def test_what_is_no_database_is_said_before_anything_runs(path, tmp_path):
    (tmp_path / "text.db").write_text("not a database at all")
    with pytest.raises(ConfigError, match="is no SQLite file"):
        Database(tmp_path / "text.db")
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        Database(tmp_path / "none.db")
    writer = sqlite3.connect(path)
    writer.execute("PRAGMA journal_mode = WAL")
    writer.execute("INSERT INTO goods VALUES ('new', 1)")
    writer.commit()
    with pytest.raises(ConfigError, match="write-ahead log"):
        Database(path)
    writer.close()


def test_many_threads_ask_at_once(path):
    made = sql_tool(Database(path))

    async def ask():
        calls = (made.call({"query": f"SELECT name FROM goods WHERE price = {i / 2}"}) for i in range(40))
        return [result.text for result in await asyncio.gather(*calls)]

    assert asyncio.run(ask()) == [f"name\nthing {i}\n(1 row)" for i in range(40)]

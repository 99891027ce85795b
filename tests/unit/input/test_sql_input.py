"""Databases as inputs: ranges of a key, values as the database has them, rows that change, and passwords."""

from __future__ import annotations

import json
import sqlite3
import traceback
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

from lazily import lazily
from nightjar.inference.errors import InputChanged, JobError, StorageError
from nightjar.inference.input.plan import Discovery, discover, make_plan
from nightjar.inference.input.sources import sql
from nightjar.inference.input.sources.reading import describe, read_piece
from nightjar.inference.input.sources.rows import RowsRead
from nightjar.inference.job.file import parse_job
from nightjar.inference.job.model import Job
from nightjar.inference.records import Piece
from nightjar.inference.storage.lake import LakeStorage
from nightjar.inference.storage.protocol import Entry
from postgres import PASSWORD, PostgresServer, programs, running

known_by = lazily("lakes", "known_by")

STORAGE = LakeStorage()
AS_DECLARED = {"c_smallint": "int16", "c_numeric": "decimal128(10, 2)", "c_when": "timestamp[us, tz=UTC]"}


def job_of(uri: str, folder: Path, given: dict[str, Any] | None = None, **options: Any) -> Job:
    told = {"uri": uri, "format": "sql", "options": {"key": "id", **options}, **(given or {})}
    keys = {"model": {"uses": "m:f", "outputs": {"y": "float64"}}, "output": {"uri": "out"}}
    return parse_job({"name": "t", "input": told, **keys}, folder / "job.yaml")


def pieces(job: Job, found: Discovery) -> list[Piece]:
    return [piece for shard in make_plan(found, job, "").shards() for piece in shard.pieces]


def rows(job: Job, found: Discovery) -> pa.Table:
    """All rows of the input, in the order of its ranges."""
    return pa.concat_tables(read_piece(STORAGE, job, piece, found.schema).table for piece in pieces(job, found))


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """A SQLite file with a table of 1,000 rows; its keys have gaps."""
    place = tmp_path / "shop.db"
    with closing(sqlite3.connect(place)) as made:
        made.execute("CREATE TABLE sales (id INTEGER PRIMARY KEY, code TEXT UNIQUE, price REAL, note)")
        made.executemany(
            "INSERT INTO sales VALUES (?, ?, ?, ?)",
            [
                (7 * i - 900, f"a.{i:04d}/é'=..{i}", i / 8 if i % 3 else i, None if i % 5 else f"n{i}")
                for i in range(1000)
            ],
        )
        made.commit()
    return place


def write(place: Path, statement: str) -> None:
    with closing(sqlite3.connect(place)) as opened:
        opened.execute(statement)
        opened.commit()


@pytest.mark.parametrize("partitions", [1, 3, 50])
@pytest.mark.parametrize("key", ["id", "code"])
def test_ranges_of_a_key_are_all_rows_in_its_order(shop: Path, key: str, partitions: int) -> None:
    """Each range has about as many rows; a text may have any characters."""
    job = job_of(str(shop), shop.parent, table="sales", key=key, partitions=partitions)
    found = discover(STORAGE, job)
    counts = [sum(each) for each in found.files["rows"].to_pylist()]
    assert len(counts) == min(partitions, 1000)
    assert max(counts) <= -(-1000 // partitions)
    with closing(sqlite3.connect(shop)) as opened:
        expected = pd.read_sql_query(f"SELECT * FROM sales ORDER BY {key}", opened)
    read = rows(job, found)
    assert read.schema == pa.schema([("id", "int64"), ("code", "string"), ("price", "float64"), ("note", "string")])
    pd.testing.assert_frame_equal(read.to_pandas(), expected)


def test_a_query_is_read_as_a_table_is(shop: Path) -> None:
    query = "SELECT id, price * 2 AS double FROM sales WHERE price > 10 -- not the cheap ones"
    job = job_of(f"sqlite:///{shop.name}", shop.parent, query=query, partitions=4)
    assert job.input.uri == str(shop)
    found = discover(STORAGE, job)
    with closing(sqlite3.connect(shop)) as opened:
        expected = pd.read_sql_query("SELECT id, price * 2 AS double FROM sales WHERE price > 10 ORDER BY id", opened)
    pd.testing.assert_frame_equal(rows(job, found).to_pandas(), expected)


@pytest.mark.parametrize("inside", ["\0", "..=/", '"],[\\', " %5D#0001:code=[1,2]", "?* "])
def test_a_key_may_have_any_character(tmp_path: Path, inside: str) -> None:
    """The name of a range has its bounds."""
    codes = [f"{letter}{inside}{end}" for letter in "abcdef" for end in ("'", "é")]
    with closing(sqlite3.connect(tmp_path / "a.db")) as made:
        made.execute("CREATE TABLE t (code TEXT)")
        made.executemany("INSERT INTO t VALUES (?)", [(code,) for code in codes])
        made.commit()
    job = job_of(str(tmp_path / "a.db"), tmp_path, table="t", key="code", partitions=6)
    found = discover(STORAGE, job)
    assert len(pieces(job, found)) == 6
    assert rows(job, found)["code"].to_pylist() == codes


def test_another_process_reads_the_ranges_that_were_found(shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = job_of(str(shop), shop.parent, table="sales", partitions=3)
    found = discover(STORAGE, job)
    expected = rows(job, found)
    monkeypatch.setattr(sql, "_SCHEMAS", {})
    assert rows(job, found) == expected
    piece = pieces(job, found)[1]
    assert describe(STORAGE, job, Entry(piece.uri, piece.size, piece.version)).rows == (piece.rows,)


def test_a_range_is_named_by_its_keys(shop: Path) -> None:
    job = job_of(str(shop), shop.parent, table="sales", partitions=2)
    assert discover(STORAGE, job).files["uri"].to_pylist() == [
        f"{shop}#0000:id=[null,2600]",
        f"{shop}#0001:id=[2600,null]",
    ]


def test_a_value_of_another_type_costs_its_row(shop: Path) -> None:
    write(shop, "UPDATE sales SET price = 'dear' WHERE id = -886")
    job = job_of(str(shop), shop.parent, table="sales", partitions=1)
    found = discover(STORAGE, job)
    read = read_piece(STORAGE, job, pieces(job, found)[0], found.schema)
    (failure,) = read.failures.values()
    assert (failure.row, failure.error, failure.raw) == (2, "SchemaMismatch", "dear")
    assert (
        "#0000:id=[null,null]: row 2: column 'price' is text ('dear'), in most of the input it is float64"
        in failure.message
    )
    assert read.table["price"].to_pylist()[:3] == [0, 0.125, None]


def test_a_whole_number_that_a_float_does_not_hold_costs_its_row(tmp_path: Path) -> None:
    """SQLite keeps it whole in a column without a type; where the job declares a float, it is rounded."""
    with closing(sqlite3.connect(tmp_path / "mixed.db")) as made:
        made.execute("CREATE TABLE sales (id INTEGER PRIMARY KEY, v)")
        made.executemany("INSERT INTO sales (v) VALUES (?)", [(1.5,), (9007199254740993,), (9007199254740992,)])
        made.commit()
    for schema, values in ((None, [1.5, None, 2.0**53]), ({"v": "float64"}, [1.5, 2.0**53, 2.0**53])):
        job = job_of(
            str(tmp_path / "mixed.db"), tmp_path, {"schema": schema} if schema else None, table="sales", partitions=1
        )
        found = discover(STORAGE, job)
        read = read_piece(STORAGE, job, pieces(job, found)[0], found.schema)
        assert read.table["v"].to_pylist() == values
        assert list(read.failures) == ([1] if schema is None else [])


@pytest.mark.parametrize("kind", [None, "date32", "float32"])
def test_a_text_that_is_not_utf8_costs_its_row(shop: Path, kind: str | None) -> None:
    write(shop, "UPDATE sales SET note = CAST(x'636166E9' AS TEXT) WHERE id = -886")
    given = {"schema": {"note": kind}} if kind else None
    job = job_of(str(shop), shop.parent, given, table="sales", partitions=1)
    found = discover(STORAGE, job)
    read = read_piece(STORAGE, job, pieces(job, found)[0], found.schema)
    assert "row 2: column 'note' is bytes, or text that is not UTF-8 (b'caf\\xe9')" in read.failures[2].message
    assert read.table.num_rows == 1000


def test_a_key_that_is_not_utf8_is_refused(shop: Path) -> None:
    write(shop, "UPDATE sales SET code = CAST(x'00E9' AS TEXT) WHERE id = -886")
    with pytest.raises(JobError, match=r"^input\.options\.key: 'code' has b'\\x00\\xe9'; name a column that has whole"):
        discover(STORAGE, job_of(str(shop), shop.parent, table="sales", key="code", partitions=1))


def test_a_table_may_have_as_many_columns_as_sqlite_allows(tmp_path: Path) -> None:
    names = [f"c{index}" for index in range(1999)]
    with closing(sqlite3.connect(tmp_path / "wide.db")) as made:
        made.execute(f"CREATE TABLE wide (id INTEGER PRIMARY KEY, {', '.join(names)})")
        made.execute("INSERT INTO wide (id, c0, c1998) VALUES (1, 'a', 2.5)")
        made.commit()
    job = job_of(str(tmp_path / "wide.db"), tmp_path, table="wide")
    schema = discover(STORAGE, job).schema
    assert [schema.field(name).type for name in ("id", "c0", "c1998")] == [pa.int64(), pa.string(), pa.float64()]
    assert len(schema) == 2000


def test_declared_types_are_read_from_what_sqlite_has(tmp_path: Path) -> None:
    place = tmp_path / "days.db"
    write(
        place, "CREATE TABLE days AS SELECT 1 AS id, '2026-11-19' AS day, 1 AS wet, 3 AS n UNION SELECT 2, 'x', 7, NULL"
    )
    types = {"day": "date32", "wet": "bool", "n": "float32"}
    job = job_of(str(place), tmp_path, {"schema": types}, table="days", partitions=1)
    found = discover(STORAGE, job)
    read: RowsRead = read_piece(STORAGE, job, pieces(job, found)[0], found.schema)
    assert {name: str(found.schema.field(name).type) for name in types} == {
        "day": "date32[day]",
        "wet": "bool",
        "n": "float",
    }
    assert pd.isna(read.table["n"].to_pylist()[1])
    assert str(read.table["day"][0]) == "2026-11-19"
    assert read.table["wet"].to_pylist() == [True, None]
    assert [*read.failures] == [1]
    assert "column 'day' is text ('x'), input.schema declares date32" in read.failures[1].message


@pytest.mark.parametrize("mode", ["delete", "wal"])
def test_a_file_that_anybody_wrote_to_is_not_read(shop: Path, mode: str) -> None:
    """Also where a write lies beside the file, in the log of a program that has it open."""
    with closing(sqlite3.connect(shop)) as writer:
        writer.execute(f"PRAGMA journal_mode = {mode}")
        writer.execute("CREATE TABLE other (x)")
        writer.commit()
        job = job_of(str(shop), shop.parent, table="sales", partitions=2)
        found = discover(STORAGE, job)
        assert rows(job, found).num_rows == 1000
        assert rows(job, discover(STORAGE, job)).num_rows == 1000
        writer.execute("UPDATE sales SET price = 1 WHERE id = -900")
        writer.commit()
        with pytest.raises(InputChanged, match=r"#0000:id=\[null,2600\]: rows changed since it was planned; run again"):
            rows(job, found)
        assert rows(job, discover(STORAGE, job))["price"][0].as_py() == 1


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"table": "sales", "key": "note"}, r"options\.key: 'note' is null in 800 rows"),
        (
            {"query": "SELECT id / 100 AS id FROM sales"},
            "has 70 different values in 1,000 rows; name a column with anoth",
        ),
        ({"table": "sales", "key": "price"}, "has [0-9.]+; name a column that has whole numbers"),
        ({"table": "sales", "key": "nope"}, "there is no column 'nope'; known: id, code, price, note"),
        ({"table": "nope"}, r"input\.options: .*shop\.db: no such table: nope"),
        ({"query": "DELETE FROM sales"}, r"input\.options: .*syntax error"),
        ({}, "write table or query, one of them"),
        ({"table": "sales", "query": "SELECT 1"}, "write table or query, one of them"),
        ({"table": "sales", "key": ""}, r"options\.key: write a text that is not empty, not ''"),
        ({"table": "sales", "partitions": 0}, r"options\.partitions: write a number from 1 to 9999, not 0"),
        ({"table": "sales", "partition": 3}, "knows only the options table, query, key, partitions.*partitions"),
    ],
)
def test_an_option_that_cannot_work_is_told(shop: Path, options: dict[str, Any], said: str) -> None:
    with pytest.raises(JobError, match=said):
        discover(STORAGE, job_of(str(shop), shop.parent, **options))


def test_a_database_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(JobError, match=r"input\.uri: no input files at .*none\.db"):
        discover(STORAGE, job_of("none.db", tmp_path, table="t"))
    with pytest.raises(JobError, match=r"input\.uri: s3://b/x\.db is no database"):
        discover(STORAGE, job_of("s3://b/x.db", tmp_path, table="t"))


def test_an_empty_table_is_told_with_the_database_that_has_it(shop: Path) -> None:
    write(shop, "DELETE FROM sales")
    with pytest.raises(JobError, match=r"^input\.uri: no rows in 1 file at .*/shop\.db$"):
        discover(STORAGE, job_of(f"sqlite:///{shop}", shop.parent, table="sales"))


def test_what_is_no_database_is_told_as_a_wrong_input_is(shop: Path) -> None:
    """Before anything starts, as the only file of another format would be: exit code 2."""
    for content in (b"no database" * 999, shop.read_bytes()[:-4096]):
        shop.write_bytes(content)
        with pytest.raises(JobError, match=r"^input\.uri: .*shop\.db: not a readable SQLite file: "):
            discover(STORAGE, job_of(str(shop), shop.parent, table="sales"))


def test_a_list_of_databases_is_refused(shop: Path) -> None:
    given = {"uri": [str(shop), str(shop.with_name("other.db"))]}
    with pytest.raises(JobError, match=r"input\.uri: a list of databases is not read"):
        discover(STORAGE, job_of("", shop.parent, given, table="sales"))


@pytest.mark.parametrize(
    "uri",
    [
        f"postgresql://me:{PASSWORD}@h/d",
        f"postgres://me:{PASSWORD}@h/d",
        f"postgresql://me:{PASSWORD}/x@h/d",
        f"postgresql://h/d?user=me&password={PASSWORD}",
        f"postgresql://h/d?sslPassword={PASSWORD}",
        f"postgresql://me@h/d:{PASSWORD}@x",
    ],
)
def test_a_password_in_the_uri_is_refused_and_not_shown(uri: str, tmp_path: Path) -> None:
    for given in ({}, {"format": None}, {"format": "parquet", "options": {}}):
        with pytest.raises(
            JobError, match=r"input\.uri: write a database as postgresql://.*, without a password"
        ) as caught:
            job_of(uri, tmp_path, given, table="t")
        assert PASSWORD not in "".join(traceback.format_exception(caught.value))


def test_a_location_of_a_database_may_leave_much_to_libpq(tmp_path: Path) -> None:
    for uri in (
        "postgresql://",
        "postgresql:///shop",
        "postgresql://[::1]:5432/shop",
        "postgresql://h/d?sslmode=require",
    ):
        assert job_of(uri, tmp_path, table="t").input.uri == uri
    with pytest.raises(JobError, match=r"input\.format: write sql"):
        job_of("postgresql://h/d", tmp_path, {"format": None, "options": {}})


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    pytest.importorskip("adbc_driver_postgresql", reason="needs the extra `postgres`")
    if programs() is None:
        pytest.skip("no Postgres server: apt-get install postgresql")
    with running() as found:
        found.run(TABLES)
        yield found


TABLES = """
CREATE TABLE sales AS SELECT 7 * i - 900 AS id, 'a.' || i || '/é''\\=' AS code, i / 8.0::float8 AS price,
  CASE WHEN i % 5 = 0 THEN 'n' || i END AS note, (i % 90)::smallint AS c_smallint,
  (i / 4.0)::numeric(10, 2) AS c_numeric, i::numeric / 3 AS c_any, i % 2 = 0 AS c_bool, date '2026-01-01' + i AS c_day,
  timestamptz '2026-01-01 00:00:00+01' + i * interval '1 hour' AS c_when, ARRAY[i, NULL, 2] AS c_list,
  md5(i::text)::uuid AS c_uuid, json_build_object('i', i) AS c_json, decode('00ff', 'hex') AS c_bytes
FROM generate_series(0, 999) AS i;
ALTER TABLE sales ADD PRIMARY KEY (id);
CREATE VIEW seen AS SELECT id, price FROM sales;
CREATE TABLE "Odd.Name" ("a""b" text); INSERT INTO "Odd.Name" VALUES ('x');
"""


@pytest.fixture
def reader(server: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> PostgresServer:
    """The server, for a process that has its password."""
    monkeypatch.setenv("PGPASSWORD", PASSWORD)
    return server


@pytest.mark.parametrize("key", ["id", "code", "c_uuid"])
def test_ranges_in_postgres_are_all_rows_in_the_order_of_the_key(
    reader: PostgresServer, tmp_path: Path, key: str
) -> None:
    job = job_of(reader.uri, tmp_path, table="public.sales", key=key, partitions=7)
    found = discover(STORAGE, job)
    assert [sum(each) for each in found.files["rows"].to_pylist()] == [143] * 6 + [142]
    read = rows(job, found)
    assert {name: str(read.schema.field(name).type) for name in AS_DECLARED} == AS_DECLARED
    # psql is the independent reader: it prints each row as JSON.
    printed = reader.run(f"SELECT row_to_json(sales) FROM sales ORDER BY {key};").splitlines()
    assert [as_printed(row) for row in read.to_pylist()] == [json.loads(line) for line in printed]


def as_printed(row: dict[str, Any]) -> dict[str, Any]:
    """A row as Postgres prints it as JSON."""
    changed = {
        "c_numeric": float(row["c_numeric"]),
        "c_any": float(row["c_any"]),
        "c_day": row["c_day"].isoformat(),
        "c_when": row["c_when"].isoformat(),
        "c_json": json.loads(row["c_json"]),
        "c_bytes": f"\\x{row['c_bytes'].hex()}",
    }
    return row | changed


@pytest.mark.parametrize(
    ("options", "change"),
    [
        ({"table": "sales"}, "UPDATE sales SET price = price + 1 WHERE id = 100 * 7 - 900"),
        ({"table": "sales"}, "DELETE FROM sales WHERE id = 100 * 7 - 900"),
        ({"table": "sales"}, "INSERT INTO sales (id, code, c_uuid) VALUES (100 * 7 - 899, 'new', md5('new')::uuid)"),
        ({"table": "seen"}, "UPDATE sales SET price = price + 1 WHERE id = 100 * 7 - 900"),
        ({"query": "SELECT id, price FROM sales"}, "UPDATE sales SET price = NULL WHERE id = 100 * 7 - 900"),
        ({"query": "SELECT id, price, 1 AS whole FROM sales -- all"}, "UPDATE sales SET price = 0 WHERE id = -200"),
    ],
)
def test_a_range_with_other_rows_is_not_read_and_the_others_are(
    reader: PostgresServer, tmp_path: Path, options: dict[str, Any], change: str
) -> None:
    reader.run("CREATE TABLE backup AS TABLE sales;")
    try:
        job = job_of(reader.uri, tmp_path, **options, partitions=4)
        found = discover(STORAGE, job)
        reader.run(change)
        changed, *others = pieces(job, found)
        with pytest.raises(InputChanged, match=r"#0000:id=\[null,850\]: rows changed since it was planned"):
            read_piece(STORAGE, job, changed, found.schema)
        for piece in others:
            assert read_piece(STORAGE, job, piece, found.schema).table.num_rows == 250
        assert sum(piece.rows for piece in pieces(job, discover(STORAGE, job))) in (999, 1000, 1001)
    finally:
        reader.run("BEGIN; TRUNCATE sales; INSERT INTO sales TABLE backup; DROP TABLE backup; COMMIT;")


SWAPPED = "ALTER TABLE {t} RENAME x TO t; ALTER TABLE {t} RENAME y TO x; ALTER TABLE {t} RENAME t TO y;"


@pytest.mark.parametrize(
    ("options", "change", "same"),
    [
        ({"table": "named"}, SWAPPED, {"id", "whole"}),
        ({"query": "SELECT * FROM named"}, SWAPPED, {"id", "whole"}),
        (
            {"table": "named"},
            "CREATE TABLE n2 AS TABLE {t}; DROP TABLE {t}; ALTER TABLE n2 RENAME TO {t};",
            {"id", "x", "y", "whole"},
        ),
    ],
)
def test_a_name_that_stands_for_another_column_of_postgres_now_is_another_input(
    reader: PostgresServer, tmp_path: Path, options: dict[str, Any], change: str, same: set[str]
) -> None:
    """Also between planning and reading. A table that was made again with the same rows is the same."""
    reader.run(
        "DROP TABLE IF EXISTS named; CREATE TABLE named (id int PRIMARY KEY, x real, y real, whole int);"
        "INSERT INTO named SELECT i, i, 10 * i, 1 FROM generate_series(1, 6) AS i;"
    )
    job = job_of(reader.uri, tmp_path, {"schema": {"y": "float64"}}, **options, partitions=1)
    found = discover(STORAGE, job)
    (piece,) = pieces(job, found)
    reader.run(change.format(t="named"))
    now = discover(STORAGE, job)
    kept = {name for name in found.schema.names if known_by(job, found.schema, name) == known_by(job, now.schema, name)}
    assert kept == same
    for name in found.schema.names:
        if name in same:
            assert read_piece(STORAGE, job, piece, pa.schema([found.schema.field(name)])).table.num_rows == 6
        else:
            with pytest.raises(
                InputChanged, match=rf"#0000:id=\[null,null\]: column '{name}' is another one than was planned"
            ):
                read_piece(STORAGE, job, piece, pa.schema([found.schema.field(name)]))


def test_names_with_quotes_and_columns_that_are_missing_are_told(reader: PostgresServer, tmp_path: Path) -> None:
    query = 'SELECT "a""b" AS "k""1", 1 AS x FROM "Odd.Name"'
    job = job_of(reader.uri, tmp_path, query=query, key='k"1')
    assert rows(job, discover(STORAGE, job)).to_pylist() == [{'k"1': "x", "x": 1}]
    for options, said in (
        ({"table": "nope"}, "relation .*nope.* does not exist"),
        ({"table": "sales", "key": "nope"}, "there is no column 'nope'; known: id, code"),
        ({"query": "DELETE FROM sales"}, "syntax error"),
        ({"table": "sales", "key": "note"}, "is null in 800 rows"),
    ):
        with pytest.raises(JobError, match=said):
            discover(STORAGE, job_of(reader.uri, tmp_path, **options))


def test_a_query_cannot_write(reader: PostgresServer, tmp_path: Path) -> None:
    reader.run("CREATE OR REPLACE FUNCTION spoil() RETURNS int LANGUAGE sql AS 'DELETE FROM sales RETURNING 1';")
    with pytest.raises((JobError, StorageError), match="read-only transaction"):
        discover(STORAGE, job_of(reader.uri, tmp_path, query="SELECT spoil() AS id"))
    assert reader.run("SELECT count(*) FROM sales;") == "1000\n"


def test_a_server_that_refuses_is_no_fault_of_the_job_and_its_password_is_not_shown(
    server: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGPASSWORD", "hush-wrong")
    for uri in (server.uri, "postgresql://reader@127.0.0.1:1/postgres"):
        with pytest.raises(StorageError, match=r"postgresql://reader@127\.0\.0\.1.*(password auth|refused)") as caught:
            discover(STORAGE, job_of(uri, tmp_path, table="sales"))
        assert "hush" not in "".join(traceback.format_exception(caught.value))

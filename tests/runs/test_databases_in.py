"""Nights whose input is a database."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

import steps as run
from nightjar.inference.errors import ShardsFailed
from postgres import PASSWORD, PostgresServer, programs, running
from support import Lake

ROWS = "SELECT i AS id, i * 1.0 AS x, 'row ' || i AS name FROM numbers"


def write(place: Path, statement: str) -> None:
    with closing(sqlite3.connect(place)) as opened:
        opened.execute(statement)
        opened.commit()


def test_a_night_over_sqlite_and_what_a_write_in_its_midst_costs(lake: Lake) -> None:
    place = lake.folder / "data" / "shop.db"
    place.parent.mkdir()
    numbers = "WITH RECURSIVE numbers(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM numbers WHERE i < 1999)"
    write(place, f"CREATE TABLE sales AS {numbers} {ROWS}")
    lake.write_model()
    options = {"table": "sales", "key": "id", "partitions": 4}
    lake.write_job(input={"uri": "sqlite:///data/shop.db", "format": "sql", "options": options, "shard_rows": 500})
    request = lake.request()
    found = run.discover(request)
    write(place, "UPDATE sales SET x = -1 WHERE id = 7")
    with pytest.raises(ShardsFailed, match=r"shop\.db#000\d:id=.*: rows changed since it was planned; run again"):
        run.score(request, found)
    lake.run()
    seen = lake.published()
    assert seen["id"].tolist() == list(range(2000))
    assert seen.loc[seen["id"] == 7, "score"].item() == -2
    assert sorted(set(seen["_file"])) == [
        f"{place}#{number:04d}:id={bounds}"
        for number, bounds in enumerate(("[null,500]", "[500,1000]", "[1000,1500]", "[1500,null]"))
    ]
    assert seen["_row"].tolist() == [*range(500)] * 4


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    pytest.importorskip("adbc_driver_postgresql", reason="needs the extra `postgres`")
    if programs() is None:
        pytest.skip("no Postgres server: apt-get install postgresql")
    with running() as found:
        yield found


def test_a_night_over_postgres_scores_again_what_changed_and_writes_no_password(
    lake: Lake, server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGPASSWORD", PASSWORD)
    server.run(
        f"CREATE TABLE sales AS SELECT * FROM ({ROWS.replace('numbers', 'generate_series(0, 1999) AS i')}) AS s;"
    )
    lake.write_model()
    options = {"query": "SELECT id, x::real AS x, name FROM sales;", "key": "id", "partitions": 4}
    lake.write_job(input={"uri": server.uri, "format": "sql", "options": options, "shard_rows": 500})
    request = lake.request()
    found = run.discover(request)
    server.run("UPDATE sales SET x = -1 WHERE id = 7;")
    with pytest.raises(ShardsFailed, match=r"#0000:id=\[null,500\]: rows changed since it was planned") as caught:
        run.score(request, found)
    assert str(caught.value).startswith("1 of 4 shards has no result; ")
    ran = lake.run()
    assert ran.scored.progress.reused_shards == 3
    seen = lake.published()
    assert seen["id"].tolist() == list(range(2000))
    assert seen.loc[seen["id"] == 7, "score"].item() == -2
    written = [path for path in lake.folder.rglob("*") if path.is_file()]
    assert len(written) > 10
    assert not [path for path in written if PASSWORD.encode() in path.read_bytes()]

"""Nights whose rows lie in hive folders: their input, the rows that must be published, and what lies where."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from nightjar import flows
from nightjar.inference.output import hive, nights
from support import Lake

ROWS = 600
"""Of a file, in row groups of 200, each a shard."""

DAYS = [dt.date(2026, 11, 19), dt.date(2026, 11, 20), None]
SOME = ["de", "fr", None, "at"]


def fill(folder: Path, countries: list[str | None] = SOME, files: int = 2) -> None:
    """Files whose rows have a country, a day, a small number and a flag, in turns."""
    (folder / "data").mkdir(exist_ok=True)
    for file in range(files):
        ids = range(file * ROWS, (file + 1) * ROWS)
        table = pa.table(
            {
                "id": pa.array(ids, pa.int64()),
                "x": pa.array(ids, pa.float32()),
                "country": pa.array([countries[i % len(countries)] for i in ids], pa.string()),
                "day": pa.array([DAYS[i % 3] for i in ids], pa.date32()),
                "store": pa.array([[None, -1, 127][i % 3] for i in ids], pa.int8()),
                "late": pa.array([[True, False, None][i % 3] for i in ids], pa.bool_()),
            }
        )
        pq.write_table(table, folder / "data" / f"{file}.parquet", row_group_size=200)


def ready(lake: Lake, by: list[str] | None = None, countries: list[str | None] = SOME, **changes: Any) -> Lake:
    fill(lake.folder, countries)
    if not (lake.folder / "model.py").exists():
        lake.write_model()
    given = {"input__shard_rows": 200, "carry": ["id", "country", "day", "store", "late"], **changes}
    lake.write_job(output__partition_by=by or ["country"], **given)
    return lake


def wanted(countries: list[str | None] = SOME, ids: Iterator[int] | range = range(2 * ROWS)) -> list[tuple[Any, ...]]:
    """The rows that must be published: id, country, day, store, late, score."""
    return [
        (i, countries[i % len(countries)], DAYS[i % 3], [None, -1, 127][i % 3], [True, False, None][i % 3], i * 2.0)
        for i in ids
    ]


COLUMNS = ["id", "country", "day", "store", "late", "score"]


def rows(table: pa.Table) -> list[tuple[Any, ...]]:
    return sorted(zip(*(table[name].to_pylist() for name in COLUMNS), strict=True), key=lambda row: row[0])


def by_python(lake: Lake) -> pa.Table:
    return flows.files(str(lake.job_path)).dataset().to_table()


def files_of(lake: Lake, number: int = 1) -> list[Path]:
    return sorted((lake.revision(number) / "data").rglob("*.parquet"))


def in_data(lake: Lake, number: int = 1) -> list[str]:
    return [str(path.relative_to(lake.revision(number) / "data")) for path in files_of(lake, number)]


def check(lake: Lake, ids: list[int] | range = range(2 * ROWS), number: int = 1) -> None:
    """The rows of these ids are published once, each in the folder of its values, and nothing else lies there."""
    assert rows(by_python(lake)) == wanted(ids=iter(ids))
    night = nights.published(lake.request().storage, str(lake.out), None)
    assert sorted(night.uris) == list(map(str, files_of(lake, number)))
    for path in files_of(lake, number):
        found = pq.ParquetFile(path).read()
        assert "country" not in found.column_names
        named = hive.texts_of(hive.folder_of(str(path.relative_to(lake.revision(number)))))
        assert {SOME[i % len(SOME)] for i in found["id"].to_pylist()} == {named["country"]}
        assert found["id"].to_pylist() == sorted(found["id"].to_pylist())

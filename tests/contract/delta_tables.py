"""Delta tables as their readers see them, for the tests of publication targets.

DuckDB's own extension for Delta is a download, so DuckDB reads here what deltalake hands it as an Arrow dataset.
"""

from __future__ import annotations

import datetime as dt
from typing import Any

import duckdb
import pyarrow as pa

from lazily import lazily

pl = lazily("polars")
DeltaTable = lazily("deltalake", "DeltaTable")
Schema = lazily("deltalake", "Schema")
write_deltalake = lazily("deltalake", "write_deltalake")

COLUMNS = ("date", "night", "id")


def with_deltalake(uri: str, options: dict[str, str], columns: tuple[str, ...] = COLUMNS) -> list[tuple[Any, ...]]:
    table = DeltaTable(uri, storage_options=options).to_pyarrow_table().select(columns)
    return list(zip(*table.to_pydict().values(), strict=True))


def with_polars(uri: str, options: dict[str, str], columns: tuple[str, ...] = COLUMNS) -> list[tuple[Any, ...]]:
    return pl.scan_delta(uri, storage_options=options).select(columns).collect().rows()


def with_duckdb(uri: str, options: dict[str, str], columns: tuple[str, ...] = COLUMNS) -> list[tuple[Any, ...]]:
    dataset = DeltaTable(uri, storage_options=options).to_pyarrow_dataset()
    with duckdb.connect() as duck:
        return duck.register("dataset", dataset).sql(f"select {', '.join(columns)} from dataset").fetchall()


READERS = {"deltalake": with_deltalake, "polars": with_polars, "duckdb": with_duckdb}


def numbers(uri: str, options: dict[str, str]) -> list[int]:
    """The publication of each version of the table, the oldest first."""
    history = DeltaTable(uri, storage_options=options).history()
    return [version["nightjar"]["publication"] for version in reversed(history)]


def make_foreign(uri: str, options: dict[str, str]) -> None:
    """A table that some other program made."""
    DeltaTable.create(uri, Schema.from_arrow(pa.schema([("id", pa.int64())])), storage_options=options)


def append(uri: str, options: dict[str, str], date: str | None, night: str) -> None:
    """Some other program appends one row, with the id 0."""
    day = dt.date.fromisoformat(date) if date else None
    row = pa.table({"night": [night], "id": [0], "date": pa.array([day], pa.date32())})
    write_deltalake(uri, row, mode="append", storage_options=options)


def compact(uri: str, options: dict[str, str]) -> None:
    """Some other program puts the files of each date together, and vacuums what nobody needs any more."""
    table = DeltaTable(uri, storage_options=options)
    table.optimize.compact()
    table.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)


def delete(uri: str, options: dict[str, str], date: str) -> None:
    """Some other program deletes the rows of a date."""
    DeltaTable(uri, storage_options=options).delete(f"date = DATE '{date}'")


def restore(uri: str, options: dict[str, str], version: int) -> None:
    """A person puts the table back."""
    DeltaTable(uri, storage_options=options).restore(version)

"""Delta tables as their readers see them, for the tests of publication targets.

DuckDB's own extension for Delta is a download, so DuckDB reads here what deltalake hands it as an Arrow dataset.
"""

from __future__ import annotations

from typing import Any

import duckdb
import pyarrow as pa

from lazily import lazily

pl = lazily("polars")
DeltaTable = lazily("deltalake", "DeltaTable")
Schema = lazily("deltalake", "Schema")

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

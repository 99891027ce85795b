"""Write the flights of prepare.py into a Delta table, `lake/flights/`, in three commits.

Version 0 has January to June, version 1 all months, and version 2 no longer has the flights that never arrived. What is
committed already is not done again.
"""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable, write_deltalake
from prepare import HERE, MONTHS, TRAIN_MONTHS, month_file

TABLE = HERE / "lake" / "flights"


def append(months: Iterable[int]) -> None:
    """Add these months' flights in one commit, each month as a partition."""
    flights = pa.concat_tables(pq.read_table(month_file(month)) for month in months)
    write_deltalake(TABLE, flights, mode="append", partition_by=["month"])


def remove_flights_that_never_arrived() -> None:
    """Delete the rows without a label."""
    DeltaTable(TABLE).delete("late is null")


def main() -> None:
    """Make the commits that are missing."""
    commits = (
        lambda: append(TRAIN_MONTHS),
        lambda: append(set(MONTHS) - set(TRAIN_MONTHS)),
        remove_flights_that_never_arrived,
    )
    there = DeltaTable(TABLE).version() + 1 if DeltaTable.is_deltatable(str(TABLE)) else 0
    for commit in commits[there:]:
        commit()
    for version in range(len(commits)):
        rows = DeltaTable(TABLE, version=version).count()
        print(f"{TABLE} version {version}: {rows:>7,} flights")


if __name__ == "__main__":
    main()

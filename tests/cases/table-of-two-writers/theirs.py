"""Another program compacts and vacuums the table, and appends a row of that date. Then the night gets a new file."""

import datetime as dt

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq

table = deltalake.DeltaTable("table")
table.optimize.compact()
table.vacuum(0, enforce_retention_duration=False, dry_run=False)
row = {
    "id": pa.array([999], pa.int64()),
    "score": [0.5],
    "_file": ["theirs"],
    "_row": [0],
    "date": [dt.date(2026, 11, 19)],
}
deltalake.write_deltalake(table, pa.table(row), mode="append")
pq.write_table(pa.table({"id": [3]}), "data/more.parquet")

import datetime as dt
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import write_deltalake

# 1001-01-01 as Spark 2.4 stores it: the same number of days is 1001-01-07 in Arrow's calendar.
old = dt.date(1001, 1, 7)
table = pa.table({"id": [1, 2], "d": [old, dt.date(2024, 10, 4)]})
marks = {"org.apache.spark.version": "2.4.8", "org.apache.spark.legacyDateTime": ""}
Path("data").mkdir()
pq.write_table(table.replace_schema_metadata(marks), "data/a.parquet")
write_deltalake("table", table)
(file,) = Path("table").glob("*.parquet")
pq.write_table(table.replace_schema_metadata(marks), file)
log = Path("table/_delta_log/00000000000000000000.json")
lines = log.read_text().splitlines()
# As Spark writes the log: with the file's size, and statistics of the days as they are meant.
actions = [json.loads(line) for line in lines]
for action in actions:
    if add := action.get("add"):
        add["size"] = file.stat().st_size
        add["stats"] = add["stats"].replace("1001-01-07", "1001-01-01")
log.write_text("\n".join(map(json.dumps, actions)))

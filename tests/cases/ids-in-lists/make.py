from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

Path("data").mkdir()
large = 2**53 + 1
rows = {
    "id": pa.array([large, None, 3]),
    "seen": pa.array([[large, None], [1, 2], None], pa.list_(pa.int64())),
    "user": pa.array([{"id": large}, {"id": None}, {"id": 3}]),
}
pq.write_table(pa.table(rows), "data/a.parquet")

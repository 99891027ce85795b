from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

Path("data").mkdir()
pairs = pa.array([{"a": 1, "A": 2}] * 2, pa.struct([("a", pa.int64()), ("A", pa.int64())]))
pq.write_table(pa.table({"id": [1, 2], "Score": [0.1, 0.2], "pair": pairs}), "data/a.parquet")

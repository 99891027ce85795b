from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

Path("data").mkdir()
pq.write_table(pa.table({"id": [1, 2, 3, 4], "x": [3.0, 1.0, 2.0, 0.5]}), "data/a.parquet")

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

Path("data").mkdir()
pq.write_table(pa.table({"x": [1.0, 2.0], "score": [7.0, 8.0]}), "data/a.parquet")

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

Path("data").mkdir()
pq.write_table(pa.table({"x": [0, 1, 2]}), "data/a.parquet")

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

Path("data").mkdir()
pq.write_table(pa.table({"x": [float(row) for row in range(12)]}), "data/a.parquet")

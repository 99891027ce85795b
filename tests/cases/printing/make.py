from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

Path("data").mkdir()
pq.write_table(pa.table({"id": list(range(20))}), "data/a.parquet")

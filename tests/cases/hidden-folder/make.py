from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

Path("data").mkdir()
pq.write_table(pa.table({"id": [1, 2], "_region": ["de", "fr"]}), "data/a.parquet")

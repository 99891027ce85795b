from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

Path("data").mkdir()
xs = pa.array([1.0, 2.0, 3.0], pa.float32())
pq.write_table(pa.table({"x": xs, "v": [[1.0, 2.0]] * 3, "s": ["a", "b", "c"]}), "data/a.parquet")

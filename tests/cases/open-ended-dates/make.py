from datetime import datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

Path("data").mkdir()
until = pa.array([datetime(9999, 12, 31, 23, 59, 59), datetime(1, 1, 2), datetime(2026, 1, 1, 0, 0, 0, 123456)])
pq.write_table(pa.table({"x": [1.0, 2.0, 3.0], "until": until}), "data/a.parquet", use_deprecated_int96_timestamps=True)

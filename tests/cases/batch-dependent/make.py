"""Rows of two groups; in `late/` the first rows of the file are all alike."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

for folder in ("data", "late"):
    Path(folder).mkdir()
x = np.array([0.0, 2.0, 10.0, 12.0])
pq.write_table(pa.table({"id": range(4), "x": x}), "data/few.parquet")
late = np.concatenate([np.ones(32), np.arange(68.0)])
pq.write_table(pa.table({"id": range(100), "x": late}), "late/late.parquet")

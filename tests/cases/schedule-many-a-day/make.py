from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

for number, time in enumerate(("0000", "0005")):
    folder = Path("data/2026/11/19") / time
    folder.mkdir(parents=True)
    pq.write_table(pa.table({"id": [number], "x": [number + 1.0]}), folder / "a.parquet")

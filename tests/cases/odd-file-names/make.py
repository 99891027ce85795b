import unicodedata
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

Path("data").mkdir()
names = ["a#1", "b?x=1", "c%20d", "c d", "e*", "f[1]", "g+h", "h&i", "j;k", "u:v", "w=1", "é"]
for number, name in enumerate([*names, unicodedata.normalize("NFD", "é")]):
    pq.write_table(pa.table({"x": [float(number)], "named": [name]}), f"data/{name}.parquet")

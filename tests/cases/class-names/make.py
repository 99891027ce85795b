from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import skops.io
from sklearn.linear_model import LogisticRegression

Path("data").mkdir()
x = np.array([[0.0], [1.0], [10.0], [11.0]])
skops.io.dump(LogisticRegression(C=1e6).fit(x, ["cat", "cat", "dog", "dog"]), "pets.skops")
pq.write_table(pa.table({"x": [-1000.0, 1000.0]}), "data/a.parquet")

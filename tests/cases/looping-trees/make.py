"""A model of LightGBM in which each node of a tree leads back to the first one."""

import re
from pathlib import Path

import lightgbm
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

Path("data").mkdir()
x = np.arange(40, dtype="f8")
pq.write_table(pa.table({"x": x}), "data/a.parquet")
made = lightgbm.train({"verbose": -1, "min_data_in_leaf": 2}, lightgbm.Dataset(x.reshape(-1, 1), x), 1)
# A child that is no leaf has a number of 0 or more. No length changes: the file says how long its trees are.
head, tree = made.model_to_string().split("Tree=0", 1)
turned = re.sub(
    r"^(left|right)_child=.*$",
    lambda line: re.sub(r"-?\d+", lambda number: "0".zfill(len(number[0])), line[0]),
    tree,
    flags=re.MULTILINE,
)
Path("trees.txt").write_text(f"{head}Tree=0{turned}")

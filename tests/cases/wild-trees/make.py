"""A model of XGBoost in which the first node of a tree has a child that is not there."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import xgboost

Path("data").mkdir()
x = np.arange(20, dtype="f4")
pq.write_table(pa.table({"x": x}), "data/a.parquet")
xgboost.train({}, xgboost.DMatrix(x.reshape(-1, 1), x), num_boost_round=1).save_model("trees.json")
model = json.loads(Path("trees.json").read_text())
model["learner"]["gradient_booster"]["model"]["trees"][0]["left_children"][0] = 900_000_000
Path("trees.json").write_text(json.dumps(model))

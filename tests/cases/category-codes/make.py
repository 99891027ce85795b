"""Files whose categories have dictionaries of their own."""

from pathlib import Path

import pandas as pd

Path("data").mkdir()
for number, values in enumerate((["a", "b"], ["c", "a"], ["b", None])):
    kinds = pd.Categorical(values, categories=[value for value in values[::-1] if value])
    pd.DataFrame({"id": range(2 * number, 2 * number + 2), "kind": kinds}).to_parquet(f"data/{number}.parquet")

"""The table has the night's second revision once, and the other program's row."""

import deltalake

found = sorted(deltalake.DeltaTable("table").to_pyarrow_table()["id"].to_pylist())
assert found == [1, 2, 3, 999], found

import polars

IDS = [2**53 + 1, None, 5]


def nearest(batch):
    return {"id": polars.Series([IDS[x] for x in batch["x"]], dtype=polars.Int64)}

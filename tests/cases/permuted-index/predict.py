def frame(df):
    return df.sort_values("x").rename(columns={"x": "score"})


def series(df):
    return {"score": df["x"].sort_values(), "rank": df["x"].rank()}


def prepare(df):
    return df.sort_values("x")


def double(df):
    return df["x"] * 2

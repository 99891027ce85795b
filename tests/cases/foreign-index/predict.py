import pandas as pd


def by_id(df):
    return df.set_index("id")["x"].sort_index()


def twice(df):
    large = df["x"] > 1
    return pd.concat([df[large].reset_index(), df[~large].reset_index()])[["x"]].rename(columns={"x": "score"})


def prepare(df):
    return df.set_index("id")


def beside(df):
    ranked = df.sort_values("x")
    return {"score": ranked["x"], "rank": list(range(len(ranked)))}

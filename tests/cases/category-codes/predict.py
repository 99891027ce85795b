"""Codes of the batch's own categories, and codes of a list that the training left."""

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

KINDS = ["a", "b", "c"]


def own(frame):
    return {"code": frame["kind"].cat.codes}


def arrow(table):
    return {"code": table["kind"].combine_chunks().indices}


def of_batch(frame):
    return {"code": frame["kind"].astype("category").cat.codes}


def learnt(frame):
    return {"code": frame["kind"].astype(pd.CategoricalDtype(KINDS)).cat.codes}


def looked_up(table):
    return {"code": pc.fill_null(pc.index_in(table["kind"], value_set=pa.array(KINDS, table["kind"].type)), -1)}

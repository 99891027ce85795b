"""What the user's code returns in pandas is joined to the rows by its index or refused; all else by position."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from nightjar.inference.errors import BatchesBroken, IndexInvalid, LengthInvalid
from nightjar.inference.predictors.scorer import RowsRaised, aligned, normalise
from nightjar.inference.scoring.assignment import BatchSize
from nightjar.inference.scoring.broken_batches import Cuts
from nightjar.inference.scoring.microbatches import drained
from nightjar.inference.scoring.prepared_batches import part
from predicting import score_table

TYPES = {"score": pa.float64()}
FRAME = pd.DataFrame({"x": [3.0, 1.0, 2.0, 0.5], "id": [3, 1, 2, 0]})
SORTED = FRAME.sort_values("x")


def scores(raw: Any, rows: int = 4) -> list[float]:
    found: list[float] = normalise(raw, TYPES, rows)["score"].to_pylist()
    return found


@pytest.mark.parametrize(
    "raw",
    [
        SORTED.rename(columns={"x": "score"}),
        SORTED["x"],
        {"score": SORTED["x"]},
        {"score": SORTED["x"], "not an output": np.arange(4)},
        SORTED["x"].set_axis(pd.Index(SORTED.index, dtype="Int64")),
        FRAME["x"],
        FRAME["x"].to_numpy(),
        pd.Index(FRAME["x"]),
    ],
    ids=["DataFrame", "Series", "dict", "beside another", "nullable", "in order", "array", "Index"],
)
def test_a_permuted_index_leads_each_value_to_its_row(raw: Any) -> None:
    assert scores(raw) == [3.0, 1.0, 2.0, 0.5]


def test_each_output_of_a_dict_is_aligned_by_its_own_index() -> None:
    found = normalise({"score": SORTED["x"], "id": FRAME["id"]}, {**TYPES, "id": pa.int64()}, 4)
    assert [found["score"].to_pylist(), found["id"].to_pylist()] == [[3.0, 1.0, 2.0, 0.5], [3, 1, 2, 0]]


def test_lists_and_exceptions_are_aligned_too() -> None:
    found = normalise({"v": SORTED[["x", "id"]]}, {"v": pa.list_(pa.float64(), 2)}, 4)
    assert found["v"].to_pylist() == [[3, 3], [1, 1], [2, 2], [0.5, 0]]
    with pytest.raises(RowsRaised) as some:
        scores(pd.Series([1.0, ValueError("bad"), 3.0, 4.0], index=[3, 2, 1, 0]))
    assert list(some.value.raised) == [2]
    assert some.value.outputs["score"].to_pylist() == [4.0, 3.0, 1.0]


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (FRAME.set_index("id")["x"], r"the index 'id' \[3, 1, 2, …\]"),
        (FRAME.set_index("id")["x"].sort_index(), r"the index 'id' \[0, 1, 2, …\]"),
        (FRAME["x"].set_axis(list("abcd")), r"the index \['a', 'b', 'c', …\]"),
        (FRAME["x"].set_axis([1, 2, 3, 4]), r"the index \[1, 2, 3, …\]"),
        (FRAME["x"].set_axis([0, 1, 1, 2]), r"the index \[0, 1, 1, …\]"),
        (FRAME["x"].set_axis(pd.date_range("2026-11-19", periods=4)), "the index"),
        (FRAME["x"].set_axis(pd.MultiIndex.from_product([[0, 1], [0, 1]])), r"the index \[\(0, 0\)"),
    ],
    ids=["a column", "a column, sorted", "texts", "from 1", "twice", "times", "several levels"],
)
def test_an_index_that_does_not_say_which_row_is_refused(raw: Any, said: str) -> None:
    """Also one that is 0 to n - 1 by accident, as the ids of a small input are: it has the name of its column."""
    with pytest.raises(IndexInvalid, match=said) as refused:
        scores(raw)
    assert ".reset_index(drop=True)" in str(refused.value)
    assert str(pickle.loads(pickle.dumps(refused.value))) == str(refused.value)


def test_an_array_beside_a_permuted_series_is_refused() -> None:
    """Nobody knows whether the array is in the order of the batch, or of the sorted frame."""
    with pytest.raises(IndexInvalid, match=r"'score', which .* in another order, and 'rank' has no index"):
        normalise({"score": SORTED["x"], "rank": np.arange(4)}, {**TYPES, "rank": pa.int64()}, 4)


def test_fewer_rows_are_told_by_their_number() -> None:
    with pytest.raises(LengthInvalid, match="has 2 values for a batch of 4 rows"):
        scores(FRAME.loc[FRAME["x"] > 1, "x"])


def test_pieces_of_a_generator_have_their_own_labels_or_those_of_the_batch() -> None:
    def pieces(*given: Any) -> Iterator[Any]:
        yield from given

    x = FRAME["x"]
    assert scores(pieces(x[:2].sort_values(), x[2:].sort_values())) == [3.0, 1.0, 2.0, 0.5]
    assert scores(pieces(x[:2], pd.Series([2.0, 0.5], index=[1, 0]))) == [3.0, 1.0, 0.5, 2.0]
    with pytest.raises(IndexInvalid, match=r"the index \[3, 1\]"):
        scores(pieces(SORTED["x"][:2], SORTED["x"][2:]))


def test_a_preprocess_is_held_to_the_same() -> None:
    found = aligned(SORTED, "preprocess")
    assert found.to_dict("list") == FRAME.to_dict("list")
    assert list(aligned({"x": SORTED["x"]}, "preprocess")["x"]) == list(FRAME["x"])
    with pytest.raises(IndexInvalid, match="the DataFrame, which preprocess returned, has the index 'id'"):
        aligned(FRAME.set_index("id"), "preprocess")


@pytest.mark.parametrize("batch", [FRAME, {"x": FRAME["x"]}], ids=["DataFrame", "dict"])
def test_a_part_of_a_prepared_batch_has_the_labels_of_a_batch(batch: Any) -> None:
    """Else an actor that scores half of a batch of the CPU stage would refuse what the model returns."""
    assert list(part(batch, 2, 4)["x"].index) == [0, 1]


def test_an_index_that_only_single_rows_have_right_ends_the_attempt() -> None:
    """Row by row each would get a value. But the code is wrong, and other batches may have been."""

    def score(table: pa.Table) -> dict[str, pa.Array]:
        rows = table.num_rows
        return normalise(pd.Series(np.zeros(rows), index=np.zeros(rows, int)), TYPES, rows)

    steps = score_table(pa.table({"x": np.arange(8)}), score, BatchSize(8), {**TYPES}, cuts=Cuts())
    with pytest.raises(BatchesBroken, match=r"the index \[0, 0, 0, …\].* \(rows 0 to 7\), and smaller batches of rows"):
        drained(steps)

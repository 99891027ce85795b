"""Columns of Arrow's view types, which it cannot filter and whose rows it cannot take, are compared as any others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from nightjar.inference.history import joins
from nightjar.inference.history.joins import Join, Pairing
from nightjar.inference.metrics.columns import plain

VIEWS: dict[pa.DataType, list[Any]] = {
    pa.string_view(): ["b", None, "a"],
    pa.binary_view(): [b"b", None, b"a"],
    pa.list_(pa.string_view()): [["b", None], None, []],
    pa.struct([("x", pa.binary_view())]): [{"x": b"b"}, None, {"x": None}],
    pa.map_(pa.string_view(), pa.string_view()): [[("b", "c")], None, []],
}


def column(kind: pa.DataType) -> pa.ChunkedArray:
    return pa.chunked_array([pa.array(VIEWS[kind], kind)])


@pytest.mark.parametrize("kind", VIEWS, ids=str)
def test_rows_with_views_are_brought_together(
    kind: pa.DataType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With rows of another run, and with late labels, also if they are divided."""
    for rows in (1 << 20, 1):
        monkeypatch.setattr(joins, "BLOCK_ROWS", rows)
        table = pa.table({"id": [1, 2, 3], "out": column(kind)})
        (tmp_path / f"{rows}").mkdir()
        found: dict[Any, Any] = {}
        for pairs in Pairing(tmp_path / f"{rows}", ["id"], 3, 0).pairs([table], [table], ["id", "out"]):
            assert pairs.before.equals(pairs.now)
            found |= dict(zip(pairs.now["id"].to_pylist(), pairs.now["out"].to_pylist(), strict=True))
        assert found == dict(zip([1, 2, 3], VIEWS[kind], strict=True))
        join = Join(tmp_path / f"{rows}-labels", ["id"], 3)
        join.folder.mkdir()
        labels = [("f", pa.table({"id": [3, 1], "y": [30, 10]}))]
        said = {
            (index, label)
            for block, labelled in join.joined([table], ["id", "out"], labels, "y")
            for index, label in zip(block["id"].to_pylist(), labelled.to_pylist(), strict=True)
        }
        assert said == {(1, 10), (2, None), (3, 30)}


def test_categories_of_views_are_plain_too() -> None:
    coded = pa.DictionaryArray.from_arrays(pa.array([0, None, 0], pa.int8()), pa.array(["a"], pa.string_view()))
    assert plain(pa.chunked_array([coded])).to_pylist() == ["a", None, "a"]

"""What the CPU stage hands over arrives as it was, and belongs to whoever takes it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lazily import lazily
from nightjar.inference.errors import OutputInvalid
from nightjar.inference.input.sources.rows import RowsRead
from nightjar.inference.records import RowFailure
from nightjar.inference.scoring.prepared_batches import PACKED, Batch, Parcel, Pickled, found, part, unpacked

torch = lazily("torch")

TABLE = pa.table({"x": pa.array(range(6), pa.float32()), "name": [f"row {i}" for i in range(6)]})
READ = RowsRead(TABLE, {2: RowFailure(2, "InputCorrupt", "no number", "", "x,y")})
PIXELS = np.arange(6 * 2 * 2, dtype=np.uint8).reshape(6, 2, 2)
CONTENTS: dict[str, Any] = {
    "numpy": {"pixels": PIXELS, "name": np.array(["ä", None, "c", "d", "e", "f"], object)},
    "pandas": pd.DataFrame({"x": range(6), "name": list("abcdef")}),
    "pyarrow": TABLE,
    "torch": lambda: {"pixels": torch.from_numpy(PIXELS.copy())},
}


def content_of(form: str) -> Any:
    """One of them; torch makes its tensors now."""
    content = CONTENTS[form]
    return content() if callable(content) else content


def rows_of(content: Any) -> list[Any]:
    """The rows of any kind of batch, as plain values."""
    if isinstance(content, pa.Table):
        return content.to_pylist()
    if isinstance(content, pd.DataFrame):
        return [tuple(row) for row in content.itertuples(index=False)]
    return list(zip(*(values.tolist() for values in content.values()), strict=True))


@pytest.mark.parametrize("form", CONTENTS)
def test_a_parcel_arrives_as_it_was(form: str) -> None:
    content = content_of(form)
    shipped = {"": [Batch(range(6), Pickled(content))], "other": [Batch([7, 9], Pickled({"x": np.ones(2)}))]}
    parcel = Parcel((READ, READ), shipped, 12.5, 3)
    packed = parcel.packed()
    assert (packed.type, len(packed)) == (PACKED, 1)
    block = pa.Table.from_arrays([packed], schema=pa.schema([("parcel", PACKED)]))
    arrived = unpacked(block["parcel"][0])
    assert arrived.reads == (READ, READ)
    assert (arrived.started_at, arrived.retries) == (12.5, 3)
    ((first,), (second,)) = arrived.batches[""], arrived.batches["other"]
    assert (first.rows, second.rows) == (range(6), [7, 9])
    assert rows_of(first.content) == rows_of(content)
    assert type(first.content) is type(content)


def test_a_few_rows_of_a_large_row_group_are_sent_alone() -> None:
    """Arrow pickles a slice with all that lies beside it."""
    group = pa.table({"x": pa.array(range(100_000)), "name": ["ten letters"] * 100_000})
    rows, kept = group.slice(5_000, 100), pa.arange(0, 100_000).slice(5_000, 100)
    packed = Parcel((RowsRead(rows, kept=kept),), {"": [Batch(range(100), Pickled(rows))]}, 0.0, 0).packed()
    assert packed.nbytes < 10_000
    arrived = unpacked(packed[0])
    assert arrived.reads == (RowsRead(rows, kept=kept),)
    assert arrived.batches[""][0].content.equals(rows)


def test_what_arrives_may_be_written_to() -> None:
    """Blocks of the object store are shared and read-only; a model may normalise its batch in place."""
    packed = Parcel((READ,), {"": [Batch(range(6), Pickled({"pixels": PIXELS.copy()}))]}, 0.0, 0).packed()
    one, other = (unpacked(packed[0]).batches[""][0].content["pixels"] for _ in range(2))
    one += 1
    np.testing.assert_array_equal(other, PIXELS)


def test_what_cannot_be_pickled_is_refused_by_its_key() -> None:
    content = {"x": np.ones(2), "made": [lambda: 0, lambda: 1]}
    said = (
        r"^preprocess: what it returns cannot be pickled \(\w+: .*lambda.*\), so that no worker of the CPU stage can "
        r"hand it over to the model's actors\. Return arrays, tensors, DataFrames or Tables of plain values, or write "
        r"placement: fused$"
    )
    with pytest.raises(OutputInvalid, match=said):
        Pickled(content)


def test_memory_that_is_too_small_is_no_fault_of_what_is_handed_over() -> None:
    class Huge:
        def __reduce__(self) -> str:
            raise MemoryError

    with pytest.raises(MemoryError):
        Pickled({"x": [Huge()]})


@pytest.mark.parametrize("form", CONTENTS)
@given(data=st.data())
def test_a_part_of_a_batch_is_those_rows(form: str, data: st.DataObject) -> None:
    low = data.draw(st.integers(0, 5))
    high = data.draw(st.integers(low, 6))
    assert rows_of(part(content_of(form), low, high)) == rows_of(content_of(form))[low:high]


@given(skipped=st.sets(st.integers(0, 19), max_size=6), size=st.integers(1, 8), data=st.data())
def test_rows_are_found_where_they_lie_side_by_side_in_one_batch(
    skipped: set[int], size: int, data: st.DataObject
) -> None:
    left = [[row for row in range(low, min(20, low + size)) if row not in skipped] for low in range(0, 20, size)]
    shipped = [Batch(rows, {"row": np.array(rows)}) for rows in left if rows]
    wanted = sorted(data.draw(st.sets(st.integers(0, 19), min_size=1)))
    held = found(shipped, wanted)
    text = ",".join(map(str, wanted))
    beside = any(f",{text}," in f",{','.join(map(str, batch.rows))}," for batch in shipped)
    assert (held is not None) == beside
    if held is not None:
        assert held["row"].tolist() == wanted


@pytest.mark.parametrize("form", CONTENTS)
def test_a_batch_weighs_what_is_handed_over(form: str) -> None:
    pickled = Pickled(content_of(form))
    alone, packed = (Parcel((), {"": batches}, 0.0, 0).packed() for batches in ([], [Batch(range(6), pickled)]))
    assert 0 < packed.nbytes - alone.nbytes - pickled.size < 500

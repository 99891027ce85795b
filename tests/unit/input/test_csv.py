"""CSV and TSV: which record is which row, what a column is, and what is said of a file that is none."""

from __future__ import annotations

import csv
import gzip
import io
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import pyarrow as pa
import pyarrow.csv as pv
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from constants import set_constants
from lazily import lazily
from nightjar.inference.arrow_types import arrow_type
from nightjar.inference.engine import LOCAL
from nightjar.inference.errors import InputCorrupt, JobError, NightjarError, SchemaMismatch
from nightjar.inference.input.plan import discover
from nightjar.inference.input.sources import lines as bounds
from nightjar.inference.input.sources.csv import SOURCE, Csv
from nightjar.inference.input.sources.csvrecords import Records
from nightjar.inference.input.sources.fitting import mark_declared
from nightjar.inference.input.sources.lines import opened
from nightjar.inference.input.sources.reading import read_piece
from nightjar.inference.records import UNKNOWN, Piece
from nightjar.inference.storage.lake import LakeStorage
from support import Lake

pl = lazily("polars")

STORAGE = LakeStorage()


def described(path: Path) -> tuple[dict[str, str], tuple[int, ...]]:
    found = SOURCE.describe(STORAGE, STORAGE.stat(str(path)))
    return {field.name: str(field.type) for field in found.schema}, found.rows


def columns(tmp_path: Path, content: bytes, name: str = "a.csv") -> dict[str, str]:
    (tmp_path / name).write_bytes(content)
    return described(tmp_path / name)[0]


def whole(path: Path, rows: int = UNKNOWN, units: tuple[int, int] = (0, 1)) -> Piece:
    entry = STORAGE.stat(str(path))
    return Piece(entry.uri, entry.size, entry.version, 0, rows, units)


def read(path: Path, schema: pa.Schema | None = None) -> pa.Table:
    """The whole file, with its own columns unless told."""
    entry = STORAGE.stat(str(path))
    found = SOURCE.describe(STORAGE, entry)
    schema = schema or pa.schema([f.with_type(pa.string()) if pa.types.is_null(f.type) else f for f in found.schema])
    return SOURCE.read(STORAGE, whole(path), schema).table.cast(schema)


def rows(tmp_path: Path, content: bytes, schema: pa.Schema | None = None, name: str = "a.csv") -> list[dict[str, Any]]:
    (tmp_path / name).write_bytes(content)
    found: list[dict[str, Any]] = read(tmp_path / name, schema).to_pylist()
    return found


@pytest.mark.parametrize(
    "content",
    [
        b"x,y\n1,a\n2,b\n",
        b"x,y\n1,a\n2,b",
        b"x,y\r\n1,a\r\n2,b\r\n",
        b"\xef\xbb\xbfx,y\n1,a\n2,b\n",
        b"\n\r\nx,y\n\n1,a\n\n\n2,b\n\n",
        b'"x","y"\n"1","a"\n"2","b"\n',
        b"x;y\n1;a\n2;b\n",
        b"x|y\n1|a\n2|b\n",
        b"x\ty\n1\ta\n2\tb\n",
    ],
)
def test_a_record_is_a_line_that_is_not_blank(tmp_path: Path, content: bytes) -> None:
    """Below the header, whose first separator is the one of the file."""
    assert rows(tmp_path, content) == [{"x": 1, "y": "a"}, {"x": 2, "y": "b"}]
    assert described(tmp_path / "a.csv")[1] == (2,)


@pytest.mark.parametrize("content", [b"", b"\n\n", b"x,y\n", b"x,y", b"\xef\xbb\xbf"])
def test_a_file_without_records_has_no_rows(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.csv").write_bytes(content)
    assert described(tmp_path / "a.csv")[1] == (0,)
    assert len(SOURCE.read(STORAGE, whole(tmp_path / "a.csv"), pa.schema([("x", pa.int64())])).table) == 0


@pytest.mark.parametrize("name", ["a.csv", "a.csv.gz"])
@pytest.mark.parametrize("encoding", ["cp1252", "latin-1", "utf-16", "utf-16-le", "utf-8"])
def test_a_file_in_another_encoding_is_read_as_if_it_were_utf8(
    tmp_path: Path, encoding: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However few bytes are read at once. Nobody can begin in its middle, so it is one unit."""
    for bound in ("UNIT_BYTES", "BLOCK_BYTES", "SAMPLE_BYTES"):
        monkeypatch.setattr(bounds, bound, 40)
    monkeypatch.setattr(Csv.__module__ + "._HEADER_BYTES", 1)
    content = "id;größe\r\n" + "".join(f'{row};"é;\n{row}"\r\n' for row in range(30))
    data = content.encode(encoding)
    (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    source = SOURCE.with_options({"encoding": encoding})
    found = source.describe(STORAGE, STORAGE.stat(str(tmp_path / name)))
    assert found.schema == pa.schema([("id", pa.int64()), ("größe", pa.string())])
    if encoding != "utf-8":
        assert found.rows == (UNKNOWN,)
        read = source.read(STORAGE, whole(tmp_path / name), found.schema)
        assert read.table.to_pylist() == [{"id": row, "größe": f"é;\n{row}"} for row in range(30)]


def test_bytes_that_were_given_back_stay_when_the_next_ones_are_a_part_of_a_character(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes("abcd".encode("utf-16-le"))
    with opened(STORAGE, str(tmp_path / "a.csv"), "utf-16-le") as file:
        file.unread(file.read(4))
        assert file.read(3) + file.read(9) == b"abcd"


def test_a_byte_that_its_encoding_lacks_costs_its_row(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b"id,x\n1,\x81\n2,\xe9\n")
    source = SOURCE.with_options({"encoding": "cp1252"})
    found = source.read(STORAGE, whole(path), source.describe(STORAGE, STORAGE.stat(str(path))).schema)
    assert found.table["x"].to_pylist() == [None, "é"]
    assert found.failures[0].message == f"{path}: line 2 is not cp1252 text (input.options.encoding)"
    path.write_bytes(b"n,\x81\n")
    with pytest.raises(InputCorrupt, match=r"line 1 is not cp1252 text \(input\.options\.encoding\)$"):
        source.describe(STORAGE, STORAGE.stat(str(path)))
    with pytest.raises(JobError, match=r"input.options.encoding: 'cp125' is not one of utf-8, .*did you mean 'cp125"):
        SOURCE.with_options({"encoding": "cp125"})


def test_quoted_fields_hold_anything_and_a_quote_elsewhere_is_a_character(tmp_path: Path) -> None:
    content = b'x,y\n"a\nb, ""c"" \r\nd",1\n5" pipe,2\nsay "hi",3\n"a"b"c,4\n"",5\n,6\n'
    assert [row["x"] for row in rows(tmp_path, content)] == [
        'a\nb, "c" \r\nd', '5" pipe', 'say "hi"', 'ab"c', "", None,
    ]  # fmt: skip


@pytest.mark.parametrize("begin", [b"", b"\xef\xbb\xbf", b"\r\n"])
@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
@pytest.mark.parametrize("size", [1, 1 << 16])
@pytest.mark.parametrize(
    ("header", "delimiter", "names"),
    [
        (b'"name\n(first, last)";c', b";", ["name\n(first, last)", "c"]),
        (b'c;"name\n(first, last)"', b";", ["c", "name\n(first, last)"]),
        (b'"a,b"|"c;\nd"', b"|", ["a,b", "c;\nd"]),
        (b'"say ""a,\nb"""\tc', b"\t", ['say "a,\nb"', "c"]),
        (b'5", wide;7" wide', b",", ['5"', ' wide;7" wide']),
        (b'size 5";size 7"', b";", ['size 5"', 'size 7"']),
        (b'"a\nb",c', b",", ["a\nb", "c"]),
    ],
)
def test_the_delimiter_is_the_first_outside_quotes_in_a_header_of_any_lines(
    tmp_path: Path,
    begin: bytes,
    end: bytes,
    size: int,
    header: bytes,
    delimiter: bytes,
    names: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """However the file begins, its lines end, and it is read."""
    monkeypatch.setattr(Csv.__module__ + "._HEADER_BYTES", size)
    found = rows(tmp_path, begin + header + end + b"1" + delimiter + b"2" + end)
    assert found == [dict(zip(names, (1, 2), strict=True))]


def test_tabs_separate_the_fields_of_tsv_whatever_the_header_holds(tmp_path: Path) -> None:
    assert rows(tmp_path, b"a,b\tc\n1,5\tx\n", name="a.tsv") == [{"a,b": "1,5", "c": "x"}]
    assert rows(tmp_path, b"a,b\n1,x\n", name="a.TSV") == [{"a,b": "1,x"}]


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (["1", "-2", " 3"], "int64"),
        (["1", "2.5", "1e3", "nan", "inf"], "double"),
        (["true", "False", "TRUE"], "bool"),
        (["0", "1"], "int64"),
        (["2026-11-19", "9999-12-31"], "date32[day]"),
        (["2026-11-19 10:00", "2026-11-19"], "timestamp[us]"),
        (["2026-11-19T10:00:00.123456"], "timestamp[us]"),
        (["2026-11-19T10:00:00.123456789"], "string"),
        (["2026-11-19T10:00:00Z", "2026-11-19T10:00:00+01:00"], "timestamp[us, tz=UTC]"),
        (["10:30", "11:45:00"], "string"),
        (["01234", "99999"], "string"),
        (["0", "0.5"], "double"),
        (["+491234", "12"], "string"),
        (["0x1F"], "string"),
        (["9223372036854775807"], "int64"),
        (["12345678901234567890"], "string"),
        (["1,5"], "string"),
        (["yes"], "string"),
        (["NA", "1"], "int64"),
        (["", "null", "2.5"], "double"),
        (["NULL", "true"], "bool"),
        (["NA", "DE"], "string"),
        (["", ""], "null"),
        (["NA", ""], "null"),
    ],
)
def test_a_column_has_the_type_of_which_no_digit_is_lost(tmp_path: Path, values: list[str], kind: str) -> None:
    content = "n,x\n" + "".join(f'0,"{each}"\n' if "," in each else f"0,{each}\n" for each in values)
    assert columns(tmp_path, content.encode())["x"] == kind


@pytest.mark.parametrize("delimiter", [",", ";", "|"])
def test_digits_that_a_number_does_not_keep_cost_their_row(tmp_path: Path, delimiter: str) -> None:
    """Types come from the beginning of a file, and of most files, so a code may come when its column is of numbers."""
    numbers, codes = ["0", "-0", "10", "105", ""], ["01234", "0x1F", '"-07"', "  007", "00", "+5"]
    text = "".join(f"2026-01-02 03:04:05,{each},0.05\n" for each in numbers + codes) + "07:08:09,1,1.05\n"
    (tmp_path / "a.csv").write_text(("t,n,f\n" + text).replace(",", delimiter))
    kinds = pa.schema([("n", pa.int64()), ("t", pa.string()), ("f", pa.float64())])
    found = SOURCE.read(STORAGE, whole(tmp_path / "a.csv"), kinds)
    assert found.table["n"].to_pylist() == [0, 0, 10, 105, None, *[None] * len(codes), 1]
    assert [*found.failures] == list(range(len(numbers), len(numbers + codes)))
    assert found.failures[5].message.endswith(
        "line 7: column 'n' holds '01234' (string), in most of the input it is int64; "
        "it would lose digits: declare the column's type in input.schema"
    )
    declared = SOURCE.read(STORAGE, whole(tmp_path / "a.csv"), pa.schema([mark_declared(kinds.field("n"))]))
    assert declared.table["n"].to_pylist()[5:] == [1234, 31, -7, 7, 0, None, 1]


def test_digits_are_kept_where_blanks_separate_the_fields(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("t n\n1 12345\n1 01234\n10 105\n")
    source = SOURCE.with_options({"delimiter": " "})
    found = source.read(STORAGE, whole(tmp_path / "a.csv"), pa.schema([("n", pa.int64())]))
    assert found.table["n"].to_pylist() == [12345, None, 105]
    assert list(found.failures) == [1]


def test_whole_numbers_that_a_float_does_not_hold_cost_their_row(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("f\n0.5\n9007199254740993\n9007199254740992\n72057594037927940\n1e300\n01\n+1\n")
    found = SOURCE.read(STORAGE, whole(tmp_path / "a.csv"), pa.schema([("f", pa.float64())]))
    assert found.table["f"].to_pylist() == [0.5, None, 2.0**53, 2.0**56, 1e300, None, None]
    assert columns(tmp_path, b"f\n0.5\n9007199254740993\n") == {"f": "string"}


@pytest.mark.parametrize(
    "field",
    [pa.field("f", pa.float64()), *(mark_declared(pa.field("f", arrow_type(f"float{bits}"))) for bits in (64, 32, 16))],
)
def test_a_number_that_its_column_makes_infinite_costs_its_row(tmp_path: Path, field: pa.Field) -> None:
    (tmp_path / "a.csv").write_text("f\n0.5\n1e400\n-1e400\ninf\n -Infinity\nNA\n1e-400\n")
    found = SOURCE.read(STORAGE, whole(tmp_path / "a.csv"), pa.schema([field]))
    assert found.table["f"].to_pylist() == [0.5, None, None, float("inf"), float("-inf"), None, 0.0]
    assert [*found.failures] == [1, 2]
    assert columns(tmp_path, b"f\n0.5\n1e400\n") == {"f": "string"}


def test_a_number_is_no_bool_unless_the_job_declares_it(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("b\ntrue\n1\nFALSE\n0\nyes\nfalse\n")
    field = pa.field("b", pa.bool_())
    found = SOURCE.read(STORAGE, whole(tmp_path / "a.csv"), pa.schema([field]))
    assert found.table["b"].to_pylist() == [True, None, False, None, None, False]
    assert [*found.failures] == [1, 3, 4]
    found = SOURCE.read(STORAGE, whole(tmp_path / "a.csv"), pa.schema([mark_declared(field)]))
    assert found.table["b"].to_pylist() == [True, True, False, False, None, False]
    assert columns(tmp_path, b"b\ntrue\n1\n") == {"b": "string"}


def test_nothing_is_null_and_a_number_may_be_missing_in_other_words(tmp_path: Path) -> None:
    content = b'n,t\n1,NA\nNA,null\n"",""\n,\n\\N,x\n'
    assert rows(tmp_path, content) == [
        {"n": 1, "t": "NA"},
        {"n": None, "t": "null"},
        {"n": None, "t": ""},
        {"n": None, "t": None},
        {"n": None, "t": "x"},
    ]


N = pa.schema([("n", pa.int64())])


@pytest.mark.parametrize(
    ("content", "kind", "said"),
    [
        ("n,y\n1,ä\n".encode("utf-16"), InputCorrupt, "line 1 is not UTF-8 text: invalid start byte: it is UTF-16"),
        (b'n,y\n1,a\n2,"b\n3,c\n', InputCorrupt, "line 3 opens a quote that is never closed"),
        (b'n,y\n1,a\n"2,b\n3,c\n', InputCorrupt, "line 3 opens a quote that is never closed"),
        (b"n,y\n1,a\r2,b\n", InputCorrupt, "line 2 has a carriage return that no line feed follows"),
        (b"n,y\r1,a\r2,b\r", InputCorrupt, "line 1 has a carriage return that no line feed follows"),
        (b"n,,y\n", InputCorrupt, "line 1: the header has no name for column 2"),
        (b",n\n0,1\n", InputCorrupt, "line 1: the header has no name for column 1; pandas writes its index so, and"),
        (b"\nn,y,n\n", InputCorrupt, "line 2: the header has the name 'n' twice"),
        (b"N,y\n1,2\n", SchemaMismatch, "column 'n' is missing: the header has 'N', 'y'"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_file_is_named_with_its_line(
    tmp_path: Path, content: bytes, kind: type[NightjarError], said: str
) -> None:
    """Of a file of which no record can be read, that is the first record's error."""
    path = tmp_path / "a.csv"
    path.write_bytes(content)
    with pytest.raises(kind, match=re.escape(f"a.csv: {said}")):
        SOURCE.read(STORAGE, whole(path), N)


def test_only_the_columns_that_are_asked_for_are_looked_at(tmp_path: Path) -> None:
    assert rows(tmp_path, b"n,y\n1,2026-11-19\n2,not a date\n", N) == [{"n": 1}, {"n": 2}]


@pytest.mark.parametrize("kind", ["duration[us]", "list<int64>", "float32[2]", "uint8[2, 2]"])
def test_a_type_that_no_text_has_is_told_with_its_column(tmp_path: Path, kind: str) -> None:
    (tmp_path / "a.csv").write_text("n,y\n1,\n")
    schema = pa.schema([*N, mark_declared(pa.field("y", arrow_type(kind)))])
    with pytest.raises(
        SchemaMismatch, match=re.escape(f"column 'y' is text in a CSV file, input.schema declares {kind}")
    ):
        SOURCE.read(STORAGE, whole(tmp_path / "a.csv"), schema)


def test_a_record_without_an_end_does_not_fill_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "LONGEST_BYTES", 1000)
    monkeypatch.setattr(bounds, "BLOCK_BYTES", 100)
    (tmp_path / "a.csv").write_bytes(b'n,y\n1,a\n2,"' + b"b\n" * 5000)
    with pytest.raises(InputCorrupt, match=r"a\.csv: line 3 begins a record of more than 1,000 bytes"):
        SOURCE.read(STORAGE, whole(tmp_path / "a.csv"), N)


PARTS = st.sampled_from(['"', '""', ",", "\n", "\r\n", "a", "1", '5"', 'x"y', '","', '"\n', "ä"])


@given(st.lists(PARTS, max_size=30).map("".join))
@example('a,"b"c"\nd,e')
@example('"a""\n"')
def test_records_begin_where_arrow_begins_them(text: str) -> None:
    content = text.encode()
    found = Records(content, b",")
    starts, stops = found.spans()
    records = [content[low:high] for low, high in zip(starts, stops, strict=True)]
    expected = list(_as_arrow(content, len(records)))
    assert [_fields(each) for each in records] == expected


def _as_arrow(content: bytes, count: int) -> Iterator[int]:
    """The number of fields of each record, as Arrow parses the whole."""
    noted: list[int] = []

    def note(row: pv.InvalidRow) -> str:
        noted.append(row.actual_columns)
        return "skip"

    if not count:
        return
    wide = [f"c{index}" for index in range(200)]  # more than any record has, so that each is noted
    options = pv.ParseOptions(newlines_in_values=True, invalid_row_handler=note)
    pv.read_csv(io.BytesIO(content), pv.ReadOptions(column_names=wide, use_threads=False), options)
    yield from noted


def _fields(record: bytes) -> int:
    return next(_as_arrow(record, 1))


FIELD = st.text(st.sampled_from(list("ab,;\"\n\t äé🐦'")), min_size=1, max_size=12)
ROWS = st.lists(st.tuples(st.integers(-(2**63), 2**63 - 1), FIELD, FIELD), min_size=1, max_size=20)
WRITERS: list[Callable[..., Any]] = [
    lambda table, path: table.to_pandas().to_csv(path, index=False),
    lambda table, path: table.to_pandas().to_csv(path, index=False, quoting=csv.QUOTE_ALL, lineterminator="\r\n"),
    lambda table, path: pl.from_arrow(table).write_csv(path),
    lambda table, path: duckdb.from_arrow(table).write_csv(str(path)),
]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("csv")


@given(found=ROWS, write=st.sampled_from(WRITERS), unit=st.integers(5, 80), block=st.integers(1, 60))
def test_what_others_wrote_comes_back_wherever_the_file_is_cut(
    shared: Path, found: list[tuple[int, str, str]], write: Callable[..., Any], unit: int, block: int
) -> None:
    """Values and order, read in one piece and in pieces of one unit; line ends in quotes at any place."""
    table = pa.table(dict(zip(("id", "t", "ü"), map(list, zip(*found, strict=True)), strict=True)))
    path = shared / "cut.csv"
    path.unlink(missing_ok=True)
    write(table, path)
    schema = pa.schema([("id", pa.int64()), ("t", pa.string()), ("ü", pa.string())])
    with pytest.MonkeyPatch.context() as patched:
        for name, size in (("UNIT_BYTES", unit), ("BLOCK_BYTES", block), ("SAMPLE_BYTES", 1)):
            patched.setattr(bounds, name, size)
        assert in_units(path, schema).equals(table.cast(schema))
    assert SOURCE.read(STORAGE, whole(path), schema).table.equals(table.cast(schema))


PLACES = ["", "a", '5"', 'x"y', '""', '"q"', '"a\nb"', '"a""b"', '"\n"', '"a,b"', '"a"b', '5""', '"""\r\n"""']
RAW = st.sampled_from(PLACES)


@given(found=st.lists(st.tuples(RAW, RAW), min_size=1, max_size=15), unit=st.integers(6, 50), block=st.integers(1, 40))
def test_quotes_in_odd_places_are_what_arrow_makes_of_them_wherever_the_file_is_cut(
    shared: Path, found: list[tuple[str, str]], unit: int, block: int
) -> None:
    path = shared / "raw.csv"
    path.write_bytes(("x,y\n" + "".join(f"{x},{y}\n" for x, y in found)).encode())
    schema = pa.schema([("x", pa.string()), ("y", pa.string())])
    options = pv.ConvertOptions(
        column_types=schema, null_values=[""], strings_can_be_null=True, quoted_strings_can_be_null=False
    )
    theirs = pv.read_csv(path, parse_options=pv.ParseOptions(newlines_in_values=True), convert_options=options)
    with pytest.MonkeyPatch.context() as patched:
        for name, size in (("UNIT_BYTES", unit), ("BLOCK_BYTES", block), ("SAMPLE_BYTES", 1)):
            patched.setattr(bounds, name, size)
        assert in_units(path, schema).equals(theirs)


def in_units(path: Path, schema: pa.Schema, source: Csv = SOURCE) -> pa.Table:
    """The whole file, in pieces of one unit, or more where the next is empty."""
    counts = source.describe(STORAGE, STORAGE.stat(str(path))).rows
    begins = [at for at, count in enumerate(counts) if count or not at]
    pieces = []
    for low, high in zip(begins, [*begins[1:], len(counts)], strict=True):
        rows = sum(counts[low:high]) if len(counts) > 1 else UNKNOWN
        pieces.append(source.read(STORAGE, whole(path, rows, (low, high)), schema).table)
        assert rows in (UNKNOWN, len(pieces[-1]))
    return pa.concat_tables(pieces)


def test_records_behind_a_cut_between_two_quotes_are_in_the_unit_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The two bytes at the cut do not tell whether they are a quote within a field, or the end of one and a quote."""
    monkeypatch.setattr(bounds, "UNIT_BYTES", 20)
    path = tmp_path / "a.csv"
    path.write_bytes(b'n,y\n1,a\n2,b\n3,"dddd""\n5,e\n"\n6,f\n7,g\n8,h\n9,i\n')
    assert path.read_bytes()[19:21] == b'""'
    counts = SOURCE.describe(STORAGE, STORAGE.stat(str(path))).rows
    assert counts == (6, 0, 0, 0, 1, 0)
    found = [
        SOURCE.read(STORAGE, whole(path, sum(counts[low:high]), (low, high)), N).table["n"].to_pylist()
        for low, high in ((0, 4), (4, 6))
    ]
    assert found == [[1, 2, 3, 6, 7, 8], [9]]


def test_numbers_dates_and_bools_are_what_pandas_polars_and_duckdb_read(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text(
        "i,f,b,d,t,s\n1,0.1,true,2026-11-19,2026-11-19 10:00:00,a\n"
        '-9223372036854775808,1e-300,false,1970-01-01,1999-12-31 23:59:59.5,"b\nc"\n,,,,,\n'
    )
    ours = read(path)
    with_pandas = pd.read_csv(path, dtype={"i": "Int64", "b": "boolean"}, parse_dates=["d", "t"])
    with_polars = pl.read_csv(path, try_parse_dates=True)
    with_duckdb = duckdb.sql(f"select * from read_csv('{path}')")
    for theirs in (pa.Table.from_pandas(with_pandas), with_polars.to_arrow(), with_duckdb.to_arrow_table()):
        assert theirs.cast(ours.schema).equals(ours)


def to_csv(lake: Lake, **changes: Callable[[str], str]) -> None:
    """The lake's Parquet files as CSV. changes: of the text of a file, by its name, for `part_01` …"""
    for path in sorted((lake.folder / "data").glob("*.parquet")):
        frame = pd.read_parquet(path)
        frame["name"] += frame["id"].map(lambda value: "\n" * (value % 3) + '"')
        text = frame.to_csv(index=False)
        path.with_suffix(".csv").write_text(changes.get(path.stem.replace("-", "_"), str)(text))
        path.unlink()


def test_a_lake_of_csv_is_scored_in_units_and_a_bad_line_costs_its_row(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_constants(monkeypatch, bounds.__name__, SAMPLE_BYTES=2000, UNIT_BYTES=30_000, BLOCK_BYTES=5000)
    lake.ready(input__shard_rows=None, retry__attempts=1)
    to_csv(lake, part_01=lambda text: text.replace("\n3500,", "\nx3500,"))
    found = discover(STORAGE, lake.request().job)
    assert all(len(counts) > 3 for counts in found.files["rows"].to_pylist())
    assert found.rows == 8000
    lake.run(engine=LOCAL, run_id="bad")
    assert lake.published("bad")["id"].tolist() == [row for row in range(8000) if row != 3500]
    (lost,) = lake.quarantined(run_id="bad").to_dict("records")
    assert (Path(lost["_file"]).name, lost["_row"], lost["error"]) == ("part-01.csv", 1500, "SchemaMismatch")
    assert "holds 'x3500' (string), in most of the input it is int64" in lost["message"]
    assert lost["raw"].startswith("x3500,")
    path = lake.folder / "data" / "part-01.csv"
    path.write_text(path.read_text().replace("x3500", "3500"))
    lake.run(engine=LOCAL)
    frame = lake.published()
    assert frame["id"].tolist() == list(range(8000))
    assert (frame["_row"] == frame["id"] % 2000).all()
    assert (frame["score"] == frame["id"] * 2).all()
    assert frame["name"].tolist() == [f"row {i}" + "\n" * (i % 3) + '"' for i in range(8000)]


def test_types_are_those_of_the_files_together(lake: Lake) -> None:
    """A column without values in one file, whole numbers in another: no file fails for that."""
    lake.ready(input__shard_rows=None)
    for path in (lake.folder / "data").iterdir():
        path.unlink()
    texts = ["id,x,name\n1,,\n", "name,id,x\na,2,2\n", "id,x,name\n3,2.5,b\n", "id,x,name\n4,4,c\n"]
    for index, text in enumerate(texts):
        (lake.folder / "data" / f"{index}.csv").write_text(text)
    schema = discover(STORAGE, lake.request().job).schema
    assert schema.equals(pa.schema([("id", pa.int64()), ("x", pa.float64()), ("name", pa.string())]))
    job = lake.request().job
    found = [
        read_piece(STORAGE, job, whole(lake.folder / "data" / f"{index}.csv", 1), schema).table.to_pylist()[0]
        for index in range(4)
    ]
    assert [row["x"] for row in found] == [None, 2.0, 2.5, 4.0]
    assert [row["name"] for row in found] == [None, "a", "b", "c"]


HEADERLESS = {"delimiter": ";", "decimal": ",", "names": ["id", "amount", "note"]}


@pytest.mark.parametrize("begin", [b"", b"\xef\xbb\xbf", b"\n\r\n"])
def test_the_job_names_the_columns_of_files_without_a_header(
    tmp_path: Path, begin: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Separators and decimals, too. pandas, told the same, reads the same, and so do units."""
    path = tmp_path / "a.csv"
    path.write_bytes(begin + b"".join(b'%d;%d,25;"a,\n%d"\n' % (row, row, row) for row in range(40)))
    source = SOURCE.with_options(HEADERLESS)
    theirs = pa.Table.from_pandas(pd.read_csv(path, sep=";", decimal=",", header=None, names=HEADERLESS["names"]))
    schema = source.describe(STORAGE, STORAGE.stat(str(path))).schema
    assert schema == pa.schema([("id", pa.int64()), ("amount", pa.float64()), ("note", pa.string())])
    assert source.read(STORAGE, whole(path), schema).table.equals(theirs.cast(schema))
    for name, size in (("UNIT_BYTES", 60), ("BLOCK_BYTES", 30), ("SAMPLE_BYTES", 1)):
        monkeypatch.setattr(bounds, name, size)
    assert in_units(path, schema, source).equals(theirs.cast(schema))


@pytest.mark.parametrize(
    ("text", "options", "rows"),
    [
        ("3,5;a\n4,25;b\n", {"names": ["x", "t"], "decimal": ","}, [{"x": 3.5, "t": "a"}, {"x": 4.25, "t": "b"}]),
        ('"1;,\n2";a\n', {"names": ["x", "t"]}, [{"x": "1;,\n2", "t": "a"}]),
        ("a, b|c\nd", {"names": ["t"], "delimiter": "~"}, [{"t": "a, b|c"}, {"t": "d"}]),
        ("n;x\n1;3,5\n", {"decimal": ","}, [{"n": 1, "x": 3.5}]),
        ("x,y\n3,5\n", {"decimal": ","}, [{"x,y": 3.5}]),
    ],
)
def test_what_separates_fields_is_no_decimal(
    tmp_path: Path, text: str, options: dict[str, Any], rows: list[dict[str, Any]]
) -> None:
    (tmp_path / "a.csv").write_text(text)
    source = SOURCE.with_options(options)
    schema = source.describe(STORAGE, STORAGE.stat(str(tmp_path / "a.csv"))).schema
    assert source.read(STORAGE, whole(tmp_path / "a.csv"), schema).table.to_pylist() == rows


def test_a_record_without_a_header_is_named_by_its_line_and_the_key_that_counts_the_fields(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b"\n1;2,5;a\n2;3,5\n")
    source, schema = SOURCE.with_options(HEADERLESS), pa.schema([("amount", pa.float64())])
    found = source.read(STORAGE, whole(path), schema)
    assert found.table.num_rows == 2
    assert [failure.message for failure in found.failures.values()] == [
        f"{path}: line 3 has 2 fields, input.options.names has 3: '2;3,5'"
    ]
    with pytest.raises(
        SchemaMismatch, match=r"column 'x' is missing: input\.options\.names has 'id', 'amount', 'note'"
    ):
        source.read(STORAGE, whole(path), pa.schema([("x", pa.int64())]))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"delimiter": ";;"}, "delimiter: write one ASCII character, not ';;'"),
        ({"delimiter": '"'}, "delimiter: '\"' cannot separate fields"),
        ({"delimiter": ",", "decimal": ","}, "delimiter: ',' cannot separate fields"),
        ({"delimiter": "."}, "delimiter: '.' cannot separate fields"),
        ({"decimal": ";"}, "decimal: write a dot or a comma, not ';'"),
        ({"names": []}, "names: write "),
        ({"names": ["a", "a"]}, "names: write "),
        ({"header": False}, "header: the CSV format knows only the options delimiter, decimal, names"),
    ],
)
def test_an_option_that_cannot_be_is_said(options: dict[str, Any], said: str) -> None:
    with pytest.raises(JobError, match=re.escape(f"input.options.{said}")):
        SOURCE.with_options(options)

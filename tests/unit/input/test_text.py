"""Plain text: which line is which row, and which files are text that is to be scored."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nightjar.inference.input.sources import lines as bounds
from nightjar.inference.input.sources.text import SOURCE
from nightjar.inference.records import UNKNOWN, Piece
from nightjar.inference.storage.lake import LakeStorage

STORAGE = LakeStorage()
TEXT = pa.schema([("text", pa.string())])


def read(path: Path, units: tuple[int, int] = (0, 1)) -> list[str]:
    entry = STORAGE.stat(str(path))
    table = SOURCE.read(STORAGE, Piece(entry.uri, entry.size, entry.version, 0, UNKNOWN, units), TEXT).table
    found: list[str] = table["text"].to_pylist()
    return found


@pytest.mark.parametrize(
    ("content", "rows"),
    [
        (b"a\nb\n", ["a", "b"]),
        (b"a\nb", ["a", "b"]),
        (b"a\r\nb\r\n", ["a", "b"]),
        (b"\xef\xbb\xbfa\nb\n", ["a", "b"]),
        (b"\n a,\t\n\n\n", ["", " a,\t", "", ""]),
        (b"\n", [""]),
        (b"\r\n\r\n", ["", ""]),
        (b"", []),
        (b"a\rb\x0bc\x00\xc2\x85d\n", ["a\rb\x0bc\x00\x85d"]),
    ],
)
def test_each_line_is_a_row_also_a_blank_one(tmp_path: Path, content: bytes, rows: list[str]) -> None:
    """A line ends with a line feed, and with nothing else that some languages call the end of a line."""
    path = tmp_path / "a.txt"
    path.write_bytes(content)
    assert read(path) == rows
    assert SOURCE.describe(STORAGE, STORAGE.stat(str(path))).rows == (len(rows),)


def test_a_line_that_is_not_of_the_named_encoding_costs_its_row_and_is_named_so(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes("日\n".encode("shift_jis") + b"\xff\nb\n")
    entry = STORAGE.stat(str(path))
    piece = Piece(entry.uri, entry.size, entry.version, 0, UNKNOWN, (0, 1))
    found = SOURCE.with_options({"encoding": "shift_jis"}).read(STORAGE, piece, TEXT)
    assert found.table["text"].to_pylist() == ["日", None, "b"]
    assert found.failures[1].message == f"{path}: line 2 is not shift_jis text (input.options.encoding)"


LINES = st.lists(st.sampled_from(["", " ", "a", "ü" * 20, "\ufeffb", '"']), min_size=1, max_size=12)


@given(
    found=LINES,
    unit=st.integers(1, 60),
    block=st.integers(1, 60),
    end=st.sampled_from(["\n", "\r\n"]),
    last=st.booleans(),
)
def test_wherever_a_file_is_cut_each_line_is_in_one_unit(
    tmp_path_factory: pytest.TempPathFactory, found: list[str], unit: int, block: int, end: str, last: bool
) -> None:
    path = tmp_path_factory.getbasetemp() / "cut.txt"
    path.write_bytes((end.join(["first", *found, "last"]) + end * last).encode())
    with pytest.MonkeyPatch.context() as patched:
        for name, size in (("UNIT_BYTES", unit), ("BLOCK_BYTES", block), ("SAMPLE_BYTES", 1)):
            patched.setattr(bounds, name, size)
        counts = SOURCE.describe(STORAGE, STORAGE.stat(str(path))).rows
        units = [read(path, (at, at + 1)) for at in range(len(counts))]
    assert [line for lines in units for line in lines] == ["first", *found, "last"]
    if len(counts) > 1:
        assert [len(lines) for lines in units] == list(counts)

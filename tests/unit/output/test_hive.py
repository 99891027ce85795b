"""Hive folders: rows are divided by values and put together again, and pyarrow reads back every name."""

from __future__ import annotations

import datetime as dt

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nightjar.inference.errors import FoldersInvalid
from nightjar.inference.output import hive

TEXTS = st.text(st.characters(codec="utf-8"), max_size=80).filter(lambda text: len(text.encode()) < 84)


@settings(deadline=None, max_examples=50)
@given(st.lists(st.none() | TEXTS, min_size=1, max_size=8))
def test_pyarrow_reads_each_folder_as_the_values_of_its_rows(texts: list[str | None]) -> None:
    table = pa.table({"c": pa.array(texts, pa.string()), "i": range(len(texts))})
    division = hive.divide(table, ["c"])
    assert len(division.folders) == len(set(texts))
    for folder, rows in division.folders.items():
        (value,) = {texts[row] for row in rows}
        assert hive.as_read(folder, pa.schema([("c", pa.string())])) == {"c": value}
        assert hive.texts_of(folder) == {"c": value}
        assert "/" not in folder
        assert len(folder.encode()) <= hive.MAX_NAME


@settings(deadline=None, max_examples=30)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["a", "b", "", None]),
            st.integers(-128, 127) | st.none(),
            st.booleans() | st.none(),
            st.dates() | st.none(),
        ),
        max_size=30,
    )
)
def test_rows_that_are_divided_and_joined_are_what_they_were(found: list[tuple[str, int, bool, dt.date]]) -> None:
    types = {"text": pa.string(), "number": pa.int8(), "flag": pa.bool_(), "day": pa.date32()}
    columns = dict(zip(types, zip(*found, strict=True) if found else [[]] * 4, strict=True))
    table = pa.table({name: pa.array(columns[name], kind) for name, kind in types.items()})
    table = table.append_column("at", pa.array(range(len(found)), pa.int64()))
    table = pa.concat_tables([table.slice(0, 3), table.slice(3)])
    division = hive.divide(table, list(types))
    parts = dict(division.split(table))
    assert sum(part.num_rows for part in parts.values()) == len(found)
    for folder, part in parts.items():
        assert part.column_names == ["at"]
        values = hive.as_read(folder, pa.schema(list(types.items())))
        assert {found[at] for at in part["at"].to_pylist()} == {tuple(values[name] for name in types)}
        assert part["at"].to_pylist() == sorted(part["at"].to_pylist())
    if found:
        assert division.joined(list(parts.values()))["at"].to_pylist() == list(range(len(found)))


@pytest.mark.parametrize(
    "kind", [pa.large_string(), pa.string_view(), pa.dictionary(pa.int8(), pa.string()), pa.date64(), pa.uint64()]
)
def test_other_kinds_of_texts_dates_and_integers_name_folders_too(kind: pa.DataType) -> None:
    given: dict[bool, list[object]] = {True: [dt.date(2026, 1, 2), None], False: ["x", None]}
    values = [2**64 - 1, None] if pa.types.is_integer(kind) else given[pa.types.is_date(kind)]
    table = pa.table({"c": pa.chunked_array([pa.array(values, kind), pa.array(values[:1], kind)]), "i": range(3)})
    division = hive.divide(table, ["c"])
    assert {name: rows.tolist() for name, rows in division.folders.items()} == {
        f"c={values[0]}": [0, 2],
        f"c={hive.NULL}": [1],
    }
    assert hive.reader_type(kind) in (pa.string(), pa.date32(), pa.uint64())


@pytest.mark.parametrize(
    "kind",
    [pa.float32(), pa.list_(pa.int8()), pa.struct([("a", pa.int8())]), pa.timestamp("us"), pa.binary(), pa.time32("s")],
)
def test_other_types_name_none(kind: pa.DataType) -> None:
    assert hive.reader_type(kind) is None


def test_the_limit_is_of_folders_and_names_the_column_with_the_most_values() -> None:
    ids = list(range(hive.MAX_FOLDERS))
    assert len(hive.divide(pa.table({"id": ids}), ["id"]).folders) == hive.MAX_FOLDERS
    with pytest.raises(FoldersInvalid, match="'id' has 1,001 distinct values here"):
        hive.divide(pa.table({"id": [*ids, -1]}), ["id"])
    pairs = pa.table({"few": [each % 40 for each in range(1640)], "more": [each % 41 for each in range(1640)]})
    with pytest.raises(FoldersInvalid, match="1,640 folders or more, and a night may have 1,000: 'more' has 41"):
        hive.divide(pairs, ["few", "more"])
    hive.check_number(f"id={each}" for each in ids * 2)


def test_a_table_without_rows_has_no_folders() -> None:
    assert hive.divide(pa.table({"c": pa.array([], pa.string())}), ["c"]).folders == {}


def test_what_cannot_name_a_folder_is_known_by_its_row() -> None:
    longest = "x" * (hive.MAX_NAME - len("name="))
    texts = ["a", longest, f"{longest}x", None, "/" * 84, "/" * 83, hive.NULL, "ü" * 126]
    found = hive.unfit("name", pa.chunked_array([texts]))
    assert {row: "too long" in why for row, why in found.items()} == {2: True, 4: True, 6: False, 7: True}
    assert hive.unfit("n", pa.chunked_array([[1]])) == {}

"""Whether a file has the columns of the input, and where it differs."""

from __future__ import annotations

import pyarrow as pa
import pytest

from nightjar.inference.errors import SchemaMismatch
from nightjar.inference.input.sources.fitting import check_columns, mark_declared

INT, TEXT = pa.int64(), pa.large_string()
WIDE = {f"field_{index}": INT for index in range(400)}


def struct(**fields: pa.DataType) -> pa.DataType:
    return pa.struct(fields)


@pytest.mark.parametrize(
    ("found", "wanted", "said"),
    [
        (TEXT, INT, "'doc' is large_string, in most of the input it is int64"),
        (INT, pa.null(), "'doc' is int64, in most of the input it is null"),
        (
            struct(**WIDE | {"field_399": TEXT}),
            struct(**WIDE),
            "'doc': doc.field_399 is large_string, in most of the input it is int64",
        ),
        (struct(a=struct(b=INT, c=TEXT)), struct(a=struct(b=TEXT, c=INT)), "'doc': doc.a.b is int64, in most of the "),
        (struct(a=INT), struct(a=INT, b=TEXT), "'doc': doc.b is missing, in most of the input it is large_string"),
        (struct(a=INT, b=TEXT), struct(a=INT), "'doc': doc.b is large_string, most of the input has no such field"),
        (
            pa.list_(struct(a=pa.null(), b=INT)),
            pa.list_(struct(a=INT, b=TEXT)),
            "'doc': doc[].b is int64, in most of the input it is large_string",
        ),
        (pa.list_(INT, 2), pa.list_(INT, 3), "'doc' is int64[2], in most of the input it is int64[3]"),
        (pa.list_(INT), INT, "'doc' is list<int64>, in most of the input it is int64"),
        (struct(a=INT, b=TEXT), struct(b=TEXT, a=INT), "'doc' is struct<a: int64, b: large_string>, in most of the "),
    ],
)
def test_the_first_place_that_differs_is_named(found: pa.DataType, wanted: pa.DataType, said: str) -> None:
    """A struct of hundreds of fields would be cut before it."""
    with pytest.raises(SchemaMismatch) as caught:
        check_columns("a.parquet", pa.schema({"doc": found}), pa.schema({"doc": wanted}))
    assert str(caught.value).startswith(f"a.parquet: column {said}")


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (struct(a=TEXT), "'doc': doc.a is large_string, input.schema declares int64"),
        (struct(a=INT, b=INT), "'doc': doc.b is int64, input.schema declares no such field"),
    ],
)
def test_a_declared_type_is_named_as_such(found: pa.DataType, said: str) -> None:
    with pytest.raises(SchemaMismatch, match=rf"column {said}$"):
        check_columns("a", pa.schema({"doc": found}), pa.schema([mark_declared(pa.field("doc", struct(a=INT)))]))


@pytest.mark.parametrize("names", [[], ["doc", "doc"]])
def test_a_column_is_there_once(names: list[str]) -> None:
    with pytest.raises(SchemaMismatch, match=r"column 'doc' is (missing|there twice)"):
        check_columns("a", pa.schema([(name, INT) for name in names]), pa.schema({"doc": INT}))

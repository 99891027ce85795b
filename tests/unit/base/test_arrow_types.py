"""What kind an Arrow type is of: asked in one place, so that no type is forgotten in one of several."""

from __future__ import annotations

import re

import pyarrow as pa
import pytest

from nightjar.inference.arrow_types import holds_floats, is_list, is_native_number, is_number, is_text, list_of
from support import ROOT

PACKAGE = ROOT / "inference"
KINDS = {
    is_list: [pa.list_(pa.int8()), pa.large_list(pa.int8()), pa.list_(pa.int8(), 2), pa.list_view(pa.int8())],
    is_text: [pa.string(), pa.large_string(), pa.string_view()],
    is_native_number: [pa.bool_(), pa.uint8(), pa.int64(), pa.float16(), pa.float64()],
    is_number: [pa.bool_(), pa.int8(), pa.float32(), pa.decimal128(4, 2), pa.decimal256(4, 2)],
}
OTHERS = [pa.null(), pa.binary(), pa.date32(), pa.struct([("a", pa.int8())]), pa.dictionary(pa.int8(), pa.string())]


@pytest.mark.parametrize("predicate", KINDS)
def test_a_type_is_of_its_kind(predicate: object) -> None:
    assert callable(predicate)
    assert [kind for kind in KINDS[predicate] if not predicate(kind)] == []
    strangers = [*OTHERS, *(KINDS[is_text] if predicate is not is_text else KINDS[is_list])]
    assert [kind for kind in strangers if predicate(kind)] == []


@pytest.mark.parametrize("kind", [*KINDS[is_list], pa.large_list_view(pa.int8())])
def test_a_list_of_other_values_is_of_the_same_kind(kind: pa.DataType) -> None:
    value = pa.field("other", pa.string())
    assert str(list_of(kind, value)) == str(kind).replace("item: int8", "other: string")


def test_no_other_module_lists_the_types_of_a_kind() -> None:
    """Normalisation is about the very differences between these types, and so is what the readers of a table take."""
    lists = {
        str(path.relative_to(PACKAGE)) for path in PACKAGE.rglob("*.py") if re.search("is_large_[ls]", path.read_text())
    }
    assert lists == {"arrow_types.py", "input/schemas.py", "output/targets/delta.py"}


@pytest.mark.parametrize(
    ("kind", "holds"),
    [
        (pa.float16(), True),
        (pa.list_(pa.float32(), 3), True),
        (pa.large_list(pa.list_view(pa.float64())), True),
        (pa.fixed_shape_tensor(pa.float32(), [2, 2]), True),
        (pa.fixed_shape_tensor(pa.int8(), [2]), False),
        (pa.list_(pa.string()), False),
        (pa.decimal128(5, 2), False),
        (pa.struct([("x", pa.float32())]), False),
    ],
    ids=str,
)
def test_which_types_hold_floats(kind: pa.DataType, holds: bool) -> None:
    assert holds_floats(kind) is holds

"""What lies in storage as it always lay there: schemas of the files of records, and each kind of line of the ledger."""

from __future__ import annotations

import pyarrow as pa
import pytest

from nightjar.inference.arrow_types import record_schema
from nightjar.inference.input.plan import SHARDS
from nightjar.inference.output.outcomes import NO_PARTS, OUTCOMES

PIECE = pa.struct(
    [
        ("uri", pa.string()),
        ("size", pa.int64()),
        ("version", pa.string()),
        ("first_row", pa.int64()),
        ("rows", pa.int64()),
        ("row_groups", pa.list_(pa.int32(), 2)),
    ]
)
PART = pa.struct([("name", pa.string()), ("rows", pa.int64()), ("size", pa.int64()), ("checksum", pa.string())])
PLANNED = pa.schema([("shard", pa.string()), ("rows", pa.int64()), ("pieces", pa.list_(PIECE))])
SCORED = pa.schema(
    [
        *PLANNED,
        ("status", pa.string()),
        ("attempt", pa.int32()),
        ("epoch", pa.int32()),
        ("worker", pa.string()),
        ("rows_in", pa.int64()),
        ("rows_out", pa.int64()),
        ("rows_quarantined", pa.int64()),
        ("data", PART),
        ("quarantine", PART),
        ("seconds", pa.float32()),
        ("started_at", pa.float64()),
        ("retries", pa.int32()),
        ("batch_rows", pa.int32()),
        ("adopted_from", pa.string()),
        ("cuts", pa.int32()),
    ]
)


@pytest.mark.parametrize(
    ("derived", "written"),
    [(SHARDS, PLANNED), (OUTCOMES, SCORED), (NO_PARTS.schema, pa.schema(list(PART)))],
    ids=["plan", "shards", "parts"],
)
def test_the_schemas_of_the_records_are_those_of_every_file_there_is(derived: pa.Schema, written: pa.Schema) -> None:
    """Field by field, in order: a plan is compared with that of an earlier command, whole."""
    assert derived.equals(written, check_metadata=True)


def test_what_has_no_arrow_type_is_refused() -> None:
    class Untold:
        whatever: complex

    with pytest.raises(KeyError, match="complex"):
        record_schema(Untold)

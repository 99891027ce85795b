"""What lies in storage as it always lay there: schemas of the files of records, and each kind of line of the ledger."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

from nightjar.inference.arrow_types import record_schema
from nightjar.inference.errors import AuditFailed
from nightjar.inference.input.plan import SHARDS
from nightjar.inference.ledger.holders import Holder
from nightjar.inference.ledger.lines import (
    Closed,
    Doing,
    Line,
    Opened,
    Packages,
    Planned,
    Preflight,
    Revoked,
    Split,
    encode,
)
from nightjar.inference.output.outcomes import NO_PARTS, OUTCOMES
from nightjar.inference.output.publications import Intent, Published, PublishedAs
from nightjar.inference.run import steps
from support import Lake

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


# ---- the ledger ---------------------------------------------------------------------------------------------

WRITER = Holder("score", "f1", "night-7", 12, 1.5, "n1", "2026-11-20T11:35:58+00:00", 0.5)
ENTRY = Published(1, "runs/d/r1/manifest-000001.json", "abc", "d")
LINES = {
    '{"t":"opened","writer":{"task":"score","flow_run":"f1","host":"night-7","pid":12,"process_started":1.5,'
    '"nonce":"n1","at":"2026-11-20T11:35:58+00:00","booted":0.5}}': Opened(WRITER),
    '{"t":"closed"}': Closed(),
    '{"t":"doing","step":"load"}': Doing("load"),
    '{"t":"planned","file":"plan-000001.parquet","fingerprint":"6c","date":"d","shards":3,"rows":30,"done_shards":1,'
    '"rows_out":9,"rows_quarantined":1,"cuts":2,"identity":"identity-000001.json","adopts":0,"again":["x changed"]}': (
        Planned("plan-000001.parquet", "6c", "d", 3, 30, 1, 9, 1, 2, 0, "identity-000001.json", 0, ("x changed",))
    ),
    '{"t":"planned","file":"p","fingerprint":"6c","date":"d","shards":3,"rows":0,"done_shards":0,"rows_out":0,'
    '"rows_quarantined":0,"cuts":0,"uncounted":3,"identity":"i","adopts":2,"again":[]}': (
        Planned("p", "6c", "d", 3, 0, 0, 0, 0, 0, 3, "i", 2, ())
    ),
    '{"t":"split","shard":"s","why":"b.parquet: broken","into":3}': Split("s", "b.parquet: broken", 3),
    '{"t":"revoked","shard":"s","attempt":2,"cause":"PartDamaged","message":"gone","terminal":false,"died":false,'
    '"uri":"a.parquet","row":-1,"rows":0,"worker":"","rows_out":9,"rows_quarantined":1,"cuts":0}': (
        Revoked("s", 2, "PartDamaged", "gone", uri="a.parquet", rows_out=9, rows_quarantined=1)
    ),
    '{"t":"packages","loaded":{"mylib":{"version":"1.0"}}}': Packages({"mylib": {"version": "1.0"}}),
    '{"t":"packages","loaded":{},"adopted_from":"r1"}': Packages({}, "r1"),
    '{"t":"preflight","notes":["slow"]}': Preflight(("slow",)),
    '{"t":"intent","number":4,"published":{"revision":1,"manifest":"runs/d/r1/manifest-000001.json","checksum":"abc",'
    '"date":"d"}}': Intent(4, ENTRY),
    '{"t":"published","number":4}': PublishedAs(4),
}


@pytest.mark.parametrize(("line", "record"), LINES.items())
def test_each_kind_of_line_has_one_form(line: str, record: Line) -> None:
    assert json.dumps(encode(record), separators=(",", ":")) == line
    assert encode(record) == json.loads(line), "a writer's own state is that of who reads it back"


KEYS = {
    "opened": "writer",
    "planned": "file fingerprint date shards rows done_shards rows_out rows_quarantined cuts identity adopts again",
    "doing": "step",
    "packages": "loaded",
    "receipt": "shard attempt epoch worker rows_in rows_out rows_quarantined data quarantine seconds started_at "
    "retries batch_rows adopted_from cuts",
    "revoked": "shard attempt cause message terminal died uri row rows worker rows_out rows_quarantined cuts",
    "failed": "shard attempt cause message terminal died uri row rows worker",
    "intent": "number published",
    "published": "number",
    "ended": "outcome step at error message gates publish",
    "closed": "",
}


def test_the_lines_of_a_run_are_those_they_always_were(lake: Lake) -> None:
    """A run whose part is damaged before the audit, repeated: each kind of line, its keys in their order."""
    lake.write_model(
        "def score(batch):\n    if 1234 in batch['x']:\n        raise ValueError('1234')\n"
        "    return {'score': batch['x'] * 2}\n"
    )
    request = lake.ready(retry__max_quarantined=0.01).request(engine="local")
    found = steps.discover(request)
    scored = steps.score(request, found, ())
    next((lake.revision() / "data").iterdir()).write_bytes(b"damaged")
    with pytest.raises(AuditFailed):
        steps.validate(request, scored, found, ())
    lake.run(engine="local")
    ledger = [path.read_text().split("\n")[1:] for path in sorted((lake.revision() / "ledger").iterdir())]
    lines = [json.loads(line) for segment in ledger for line in segment]
    assert {line["t"] for line in lines} >= {*KEYS} - {"failed"}
    for line in lines:
        kind, *keys = line
        assert (kind, " ".join(keys)) == ("t", KEYS[line["t"]])

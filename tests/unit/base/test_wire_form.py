"""What lies in storage as it always lay there: schemas of the files of records, and each kind of line of the ledger."""

from __future__ import annotations

import json
import time
from dataclasses import replace

import pyarrow as pa
import pytest

import steps
from faults import FaultyStorage, pause
from nightjar.inference.arrow_types import record_schema
from nightjar.inference.errors import AuditFailed
from nightjar.inference.input.plan import SHARDS
from nightjar.inference.jsonform import of_json, to_json
from nightjar.inference.ledger.endings import Ended, FailedGate
from nightjar.inference.ledger.holders import Holder
from nightjar.inference.ledger.lines import (
    Closed,
    Doing,
    Intent,
    Line,
    Opened,
    Packages,
    Planned,
    Preflight,
    Published,
    PublishedAs,
    Revoked,
    Split,
    decode,
)
from nightjar.inference.metrics.columns import ColumnState
from nightjar.inference.output.outcomes import NO_PARTS, OUTCOMES
from nightjar.inference.output.revisions import RevisionFile
from nightjar.inference.records import Counts, Failed, Part, Receipt, Seen, encode
from nightjar.inference.storage.lake import LakeStorage
from nightjar.inference.validation.gates import GateResult
from nightjar.inference.validation.manifest import Totals, manifest_of
from outputs import FIRST_MANIFEST
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
        ("rows_in", pa.int64()),
        ("rows_out", pa.int64()),
        ("rows_quarantined", pa.int64()),
        ("rows_partial", pa.int64()),
        ("rows_left_out", pa.int64()),
        ("batches_cut", pa.int64()),
        ("attempt", pa.int32()),
        ("epoch", pa.int32()),
        ("worker", pa.string()),
        ("data", PART),
        ("quarantine", PART),
        ("seconds", pa.float32()),
        ("started_at", pa.float64()),
        ("retries", pa.int32()),
        ("adopted_from", pa.string()),
        ("rows_reused", pa.int64()),
        ("rows_partly_reused", pa.int64()),
        ("reused_from", pa.string()),
        ("keyed", pa.bool_()),
        ("ceilings", pa.list_(pa.int32())),
        record_schema(Receipt).field("usage"),
        record_schema(Receipt).field("spent"),
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
COUNTS = Counts(rows_in=10, rows_out=9, rows_quarantined=1)
PLAN = Planned(
    file="plan-000001.parquet", fingerprint="6c", date="d", shards=3, rows=30, identity="identity-000001.json"
)
LINES = {
    '{"t":"opened","writer":{"task":"score","flow_run":"f1","host":"night-7","pid":12,"process_started":1.5,'
    '"nonce":"n1","at":"2026-11-20T11:35:58+00:00","booted":0.5}}': Opened(WRITER),
    '{"t":"closed"}': Closed(),
    '{"t":"doing","step":"load"}': Doing("load"),
    '{"t":"planned","file":"plan-000001.parquet","fingerprint":"6c","date":"d","shards":3,"rows":30,"done_shards":1,'
    '"counts":{"rows_in":10,"rows_out":9,"rows_quarantined":1,"rows_partial":0,"rows_left_out":0,"batches_cut":2},'
    '"identity":"identity-000001.json","adopts":"","again":["x changed"]}': (
        replace(PLAN, done_shards=1, counts=replace(COUNTS, batches_cut=2), again=("x changed",))
    ),
    '{"t":"planned","file":"p","fingerprint":"6c","date":"d","shards":3,"rows":0,"done_shards":0,'
    '"uncounted":3,"identity":"i","adopts":"d/r2","again":[]}': (
        replace(PLAN, file="p", rows=0, uncounted=3, identity="i", adopts="d/r2")
    ),
    '{"t":"split","shard":"s","why":"b.parquet: broken","into":3}': Split("s", "b.parquet: broken", 3),
    '{"t":"revoked","shard":"s","attempt":2,"cause":"PartDamaged","message":"gone","terminal":false,"died":false,'
    '"uri":"a.parquet","row":-1,"rows":0,"worker":"",'
    '"counts":{"rows_in":10,"rows_out":9,"rows_quarantined":1,"rows_partial":0,"rows_left_out":0,"batches_cut":0}}': (
        Revoked("s", 2, "PartDamaged", "gone", uri="a.parquet", counts=COUNTS)
    ),
    '{"t":"packages","loaded":{"mylib":"1.0"}}': Packages({"mylib": "1.0"}),
    '{"t":"preflight","notes":["slow"]}': Preflight(("slow",)),
    '{"t":"intent","number":4,"published":{"revision":1,"manifest":"runs/d/r1/manifest-000001.json","checksum":"abc",'
    '"date":"d"}}': Intent(4, ENTRY),
    '{"t":"publishedas","number":4}': PublishedAs(4),
    '{"t":"failed","shard":"s","attempt":2,"cause":"OSError","message":"no","terminal":false,"died":true,"uri":"a",'
    '"row":7,"rows":50,"worker":"w-1"}': Failed(
        "s", 2, "OSError", "no", died=True, uri="a", row=7, rows=50, worker="w-1"
    ),
    '{"t":"seen","kind":"file","name":"/a","by":"model.py:7"}': Seen("file", "/a", "model.py:7"),
    '{"t":"seen","kind":"file","name":"/a","by":"","more":true}': Seen("file", "/a", more=True),
    '{"t":"receipt","rows_in":10,"rows_out":10,"rows_quarantined":0,"rows_partial":0,"rows_left_out":0,"batches_cut":0,'
    '"shard":"s","attempt":1,"epoch":2,"worker":"w-1","data":{"name":"data/s.parquet","rows":10,"size":99,"checksum":"abc"},"quarantine":null,"seconds":0.5,'
    '"started_at":1.5,"retries":0,"adopted_from":""}': (
        Receipt("s", 1, 2, "w-1", Part("data/s.parquet", 10, 99, "abc"), None, 0.5, 1.5, rows_in=10, rows_out=10)
    ),
    '{"t":"ended","outcome":"failed","step":"validate","at":"2026-11-20","error":"GateFailed","message":"no","gates":'
    '[{"name":"rows.min","sentence":"Too few.","row":"","replay":""}],"publish":true}': (
        Ended("failed", "validate", "2026-11-20", "GateFailed", "no", (FailedGate("rows.min", "Too few."),))
    ),
}


@pytest.mark.parametrize(("line", "record"), LINES.items())
def test_each_kind_of_line_has_one_form(line: str, record: Line) -> None:
    assert json.dumps(encode(record), separators=(",", ":")) == line
    assert decode(json.loads(line)) == record, "a writer's own state is that of who reads it back"


KEYS = {
    "opened": "writer",
    "planned": "file fingerprint date shards rows done_shards identity adopts again",
    "doing": "step",
    "packages": "loaded",
    "receipt": "rows_in rows_out rows_quarantined rows_partial rows_left_out batches_cut shard attempt epoch worker "
    "data quarantine seconds started_at retries adopted_from spent",
    "revoked": "shard attempt cause message terminal died uri row rows worker counts",
    "failed": "shard attempt cause message terminal died uri row rows worker",
    "intent": "number published",
    "publishedas": "number",
    "ended": "outcome step at error message gates publish",
    "closed": "",
}


def a_moment(_: object) -> None:
    """Not a lambda: preflight gets the storage in a process of its own."""
    time.sleep(0.02)


def test_the_lines_of_a_run_are_those_they_always_were(lake: Lake) -> None:
    """A run whose part is damaged before the audit, repeated: each kind of line, its keys in their order."""
    lake.write_model(
        "def score(batch):\n    if 1234 in batch['x']:\n        raise ValueError('1234')\n"
        "    return {'score': batch['x'] * 2}\n"
    )
    # Else a shard that is scored while another one is written may take no millisecond, and say nothing of its time.
    slow = FaultyStorage(LakeStorage(), [pause("write", "*/data/*", nth=None, before=a_moment)])
    request = lake.ready(retry__max_quarantined=0.01).request(engine="local", storage=slow)
    found = steps.discover(request)
    scored = steps.score(request, found)
    next((lake.revision() / "data").iterdir()).write_bytes(b"damaged")
    with pytest.raises(AuditFailed):
        steps.validate(request, scored, found)
    lake.run(engine="local", storage=slow)
    ledger = [path.read_text().split("\n")[1:] for path in sorted((lake.revision() / "ledger").iterdir())]
    lines = [json.loads(line) for segment in ledger for line in segment]
    assert {line["t"] for line in lines} >= {*KEYS} - {"failed"}
    for line in lines:
        kind, *keys = line
        assert (kind, " ".join(keys)) == ("t", KEYS[line["t"]])


# ---- manifests ----------------------------------------------------------------------------------------------


MANIFEST_KEYS = (
    "job run_id date revision fingerprint input identity code model packages outside loaded preflight again libraries "
    "totals shards judging audit gates metrics failed_attempts validated_at"
)


def test_a_manifest_is_read_as_it_was_written(lake: Lake) -> None:
    """Its keys are those of before, in their order, and what is read of it is written as the same bytes."""
    lake.ready(checks=[{"column": "score", "finite": True}]).run(engine="local")
    (path,) = lake.revision().glob("manifest-*.json")
    raw = path.read_bytes()
    assert " ".join(json.loads(raw)) == MANIFEST_KEYS
    assert json.dumps(to_json(manifest_of(raw, "manifest.json")), indent=1).encode() == raw


def test_a_manifest_of_the_first_version_is_read() -> None:
    """What it does not say has its default."""
    read = manifest_of(json.dumps(FIRST_MANIFEST).encode(), "manifest.json")
    assert (read.totals, read.shards) == (
        Totals(3, 5862, rows_in=2300, rows_out=2299, rows_quarantined=1),
        RevisionFile("shards-000003.parquet", "abc", 9),
    )
    assert read.gates == (GateResult("complete", True, "3 of 3 shards", "all", "All."),)
    assert (read.metrics.columns["score"].max, read.metrics.evaluation, read.code, read.again) == (1, None, None, ())


def test_a_value_that_is_seldom_there_is_left_out() -> None:
    """Of a column's figures those of infinity."""
    finite = ColumnState(rows=3, nulls=1)
    found = {"kind": "", "rows": 3, "nulls": 1, "nonfinite": 0, "min": None, "max": None}
    assert to_json(finite) == found
    infinite = replace(finite, nonfinite=3, plus_inf=2)
    assert to_json(infinite) == {**found, "nonfinite": 3, "plus_inf": 2}
    assert infinite.nan == 1
    assert of_json(ColumnState, to_json(infinite)) == infinite

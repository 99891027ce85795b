"""A revision that is published as a run does it, without a run; and a rollback, without its command."""

from __future__ import annotations

import json
from typing import Any

from nightjar.inference.ledger.epochs import open_epoch
from nightjar.inference.ledger.holders import this_holder
from nightjar.inference.ledger.lines import Published
from nightjar.inference.output import publications as publish
from nightjar.inference.output import visibility
from nightjar.inference.output.parts import checksum
from nightjar.inference.storage.lake import LakeStorage
from nightjar.inference.storage.protocol import Storage, join
from outputs import EMPTY_LIST, FIRST_MANIFEST, LISTS_NOTHING


def finished(output: str, run: str, revision: int = 1, date: str = "") -> Published:
    """Publish a revision as a run does, with a manifest and `_SUCCESS`."""
    storage, manifest = LakeStorage(), f"runs/{run}/r{revision}/manifest-000001.json"
    rows = {"rows": 9, "excluded_null_labels": 0, "excluded_scores": 0, "positives": 4}
    evaluation = {"label": "y", "score": "p", **rows, "task": "binary", "metrics": {"auroc": {"value": 0.75}}}
    content: dict[str, Any] = {
        "validated_at": "2099-01-01T00:00:00+00:00",
        "metrics": {"columns": {}, "evaluation": evaluation},
    }
    content |= {"run_id": run, "revision": revision, "shards": LISTS_NOTHING}
    raw = json.dumps(FIRST_MANIFEST | content).encode()
    storage.write(join(output, manifest), raw)
    storage.write(join(output, "runs", run, f"r{revision}", "shards-000001.parquet"), EMPTY_LIST)
    entry = Published(revision, manifest, checksum(raw), date or run)
    uri = join(output, "runs", run, f"r{revision}")
    writer = open_epoch(storage, uri, this_holder("publish"))
    number = publish.publish(writer, output, run, entry)
    writer.stop(release=True)
    storage.create(join(uri, "_SUCCESS"), json.dumps({"publication": number, "manifest": manifest}).encode())
    return entry


def roll_back(storage: Storage, output: str, to: int | None) -> publish.Snapshot:
    """As `nightjar rollback`. to: as in `visibility.back`."""
    return visibility.rollback(storage, output, visibility.back(storage, output, to))

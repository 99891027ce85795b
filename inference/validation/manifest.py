"""What a validated revision says of itself: totals, gates, metrics, versions, and where every shard is listed."""

from __future__ import annotations

import datetime as dt
import json
import platform
from contextlib import suppress
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import pyarrow as pa

from nightjar.inference.identity.identity import Identity
from nightjar.inference.job.model import Job
from nightjar.inference.ledger.ledger import LedgerWriter
from nightjar.inference.output import outcomes
from nightjar.inference.output.parts import checksum
from nightjar.inference.predictors.adapter import frameworks
from nightjar.inference.storage.protocol import join
from nightjar.inference.validation.audit import Audited
from nightjar.inference.validation.gates import GateResult
from nightjar.inference.validation.rescore import Rescored

LIBRARIES = ("nightjar-batch", "ray", "pyarrow", "numpy", "pandas", "prefect")


def write_manifest(
    job: Job,
    run_id: str,
    date: str,
    revision: int,
    identity: Identity,
    writer: LedgerWriter,
    uri: str,
    table: pa.Table,
    audited: Audited,
    metrics: dict[str, Any],
    gates: tuple[GateResult, ...],
    rescored: Rescored | None,
) -> tuple[str, str, str]:
    """Write `shards-<epoch>.parquet` and `manifest-<epoch>.json`; returns the manifest's name and checksum, and the
    name of the former. Names are relative to the output."""
    storage, epoch = writer.ledger.storage, writer.epoch
    shards = outcomes.to_parquet(table, writer.state)
    shards_name = f"shards-{epoch:06d}.parquet"
    storage.create(join(uri, shards_name), shards)
    manifest = {
        "job": job.name,
        "run_id": run_id,
        "date": date,
        "revision": revision,
        "fingerprint": identity.fingerprint,
        "input": job.input.uri,
        "identity": identity.job,
        "code": {"digest": identity.code_digest, "files": identity.code},
        "model": {"digest": identity.model_digest, "files": identity.model},
        "packages": identity.packages,
        **writer.state.about.as_json(),
        "libraries": _versions(),
        "totals": {
            "shards": len(table),
            "rows_in": audited.rows_in,
            "rows_out": audited.rows_out,
            "rows_quarantined": audited.rows_quarantined,
            "bytes": audited.size,
            "batches_cut": outcomes.total(table, "cuts"),
        },
        "shards": {"file": shards_name, "checksum": checksum(shards), "size": len(shards)},
        "audit": {
            "cover": "every row index" if job.output.lineage else "row counts (output.lineage is false)",
            "shards": audited.shards,
            "checksums": "xxh3-128",
            "rescored": asdict(rescored) if rescored else None,
        },
        "gates": [asdict(gate) for gate in gates],
        "metrics": metrics,
        "failed_attempts": sum(len(failures) for failures in writer.state.failures.values()),
        "validated_at": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
    }
    raw = json.dumps(manifest, indent=1).encode()
    name = f"manifest-{epoch:06d}.json"
    storage.create(join(uri, name), raw)
    folder = f"runs/{run_id}/r{revision}"
    return f"{folder}/{name}", checksum(raw), f"{folder}/{shards_name}"


def _versions() -> dict[str, str]:
    found = {name: version(name) for name in LIBRARIES}
    for name in (each for framework in frameworks() for each in framework.libraries):
        with suppress(PackageNotFoundError):  # an extra that is not installed
            found[name] = version(name)
    return {"python": platform.python_version(), **found}

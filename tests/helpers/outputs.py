"""Outputs with revisions made by hand: what lies in storage after a run, without the run."""

from __future__ import annotations

import datetime as dt
import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from nightjar.inference.ledger.lines import Published
from nightjar.inference.output import latest_view
from nightjar.inference.output import publications as publish
from nightjar.inference.output.outcomes import OUTCOMES
from nightjar.inference.output.parts import checksum
from nightjar.inference.output.publications import Origin, Snapshot
from nightjar.inference.run.request import date_named
from nightjar.inference.storage.lake import LakeStorage
from nightjar.inference.storage.protocol import Storage, is_local, join

JOB = "delays"
NIGHT = "2026-11-19"
PARTS, ROWS = 4, 5

FIRST_MANIFEST: dict[str, Any] = {
    "job": "delays",
    "run_id": "2026-11-19",
    "date": "2026-11-19",
    "revision": 1,
    "fingerprint": "6c",
    "input": "/lake/data/",
    "identity": {"carry": [], "model": {"uses": "model:score"}},
    "libraries": {"python": "3.11.9", "ray": "2.60.0"},
    "totals": {"shards": 3, "rows_in": 2300, "rows_out": 2299, "rows_quarantined": 1, "bytes": 5862},
    "shards": {"file": "shards-000003.parquet", "checksum": "abc", "size": 9},
    "audit": {"cover": "every row index", "shards": 3, "checksums": "xxh3-128"},
    "gates": [{"name": "complete", "passed": True, "observed": "3 of 3 shards", "limit": "all", "sentence": "All."}],
    "metrics": {
        "columns": {"score": {"rows": 2299, "nulls": 0, "nonfinite": 0, "min": 0.5, "max": 1, "kind": "number"}},
        "evaluation": None,
    },
    "failed_attempts": 3,
    "validated_at": "2026-11-20T11:35:58+00:00",
}
"""A manifest with the keys that the first version gave it."""


def _empty_list() -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(OUTCOMES.empty_table(), sink)
    return sink.getvalue().to_pybytes()


EMPTY_LIST = _empty_list()
"""A list of no shards, for revisions of which nobody reads the rows."""

LISTS_NOTHING = {"file": "shards-000001.parquet", "checksum": checksum(EMPTY_LIST), "size": len(EMPTY_LIST)}
"""How a manifest names it."""


def rows_of(night: str) -> list[tuple[str, int]]:
    """The rows of a revision, named as `run rN`."""
    return [(night, index) for index in range(PARTS * ROWS)]


@dataclass
class Output:
    """An output whose revisions have four parts of five rows, which say what they belong to."""

    uri: str
    storage: Storage = field(default_factory=LakeStorage)

    def revision(self, run: str, number: int = 1, *, swept: bool = True, parts: int = PARTS) -> Published:
        """Write one, as it lies before it is published."""
        folder = join(self.uri, "runs", run, f"r{number}")
        lines = []
        for index in range(parts):
            rows = self.rows(f"{run} r{number}", index)
            sink = pa.BufferOutputStream()
            pq.write_table(rows, sink)
            name = f"data/{index}-000001-{number:08x}.parquet"
            self._write(join(folder, name), sink.getvalue())
            lines.append({"data": {"name": name, "rows": ROWS, "size": sink.getvalue().size, "checksum": "-"}})
        sink = pa.BufferOutputStream()
        pq.write_table(pa.Table.from_pylist(lines, schema=OUTCOMES), sink)
        self._write(join(folder, "shards-000001.parquet"), sink.getvalue())
        shards = {"file": "shards-000001.parquet", "checksum": checksum(sink.getvalue()), "size": 1}
        manifest = json.dumps({"shards": shards}).encode()
        self._write(join(folder, "manifest-000001.json"), pa.py_buffer(manifest))
        if swept:
            self.swept(run, number)
        return Published(
            number, f"runs/{run}/r{number}/manifest-000001.json", checksum(manifest), date_named(run) or run[:10]
        )

    def rows(self, night: str, index: int) -> pa.Table:
        """One part."""
        return pa.table({"night": [night] * ROWS, "id": range(index * ROWS, (index + 1) * ROWS)})

    def swept(self, run: str, number: int = 1) -> None:
        """Its data folder holds what is published, and nothing else."""
        self._write(join(self.uri, "runs", run, f"r{number}", "_SUCCESS"), pa.py_buffer(b"{}"))

    def _write(self, uri: str, data: pa.Buffer) -> None:
        if not is_local(uri):
            self.storage.write(uri, data)
            return
        # Nobody looks before it is published: nothing needs to be durable first.
        Path(uri).parent.mkdir(parents=True, exist_ok=True)
        Path(uri).write_bytes(data)

    def publish(self, run: str, number: int = 1, *, swept: bool = True, parts: int = PARTS) -> None:
        """Make a revision and show it to readers, as a new snapshot."""
        entry, now = self.revision(run, number, swept=swept, parts=parts), self.now()
        publish.add(self.storage, self.uri, now.number + 1, {**now.runs, run: entry}, Origin("publish", run, number))

    def now(self) -> Snapshot:
        """What readers see."""
        return publish.newest(self.storage, self.uri)


def aged(output: str | Path, days: int, *runs: str) -> None:
    """Let all that was done so far in an output on a disk be done so many days earlier. runs: only what was done to
    these.
    """
    folder = Path(output)
    notes = [*folder.glob("runs/*/r*/ledger/*.jsonl"), *folder.glob("runs/*/*.json")]
    for path in notes if runs else [*notes, *folder.glob("publications/*.json")]:
        if not runs or path.relative_to(folder).parts[1] in runs:
            path.write_text(text_of_earlier(path.read_text(), days))


def text_of_earlier(text: str, days: int) -> str:
    """What a file says, with all its times so many days earlier."""
    return re.sub(r'"(at|seen)": ?"([^"]+)"', lambda found: f'"{found[1]}":"{earlier(found[2], days)}"', text)


def earlier(at: str, days: int) -> str:
    """A time of a ledger, so many days earlier."""
    return (dt.datetime.fromisoformat(at) - dt.timedelta(days=days)).isoformat(timespec="seconds")


@dataclass
class Placed(Output):
    """An output and its places for readers."""

    def refresh(self, date: str | None = None, storage: Storage | None = None) -> str:
        return latest_view.refresh(storage or self.storage, self.uri, JOB, date)

    def night(self, place: str) -> str | None:
        """What all that lies in one place says readers see: `run rN`, if each file of it says so."""
        folder = join(self.uri, place)
        found = json.loads(self.storage.read(join(folder, "files.json")))
        links = self.storage.read(join(folder, "_symlink_format_manifest", "manifest")).decode().split()
        assert [link.removeprefix("file://") for link in links] == [file["uri"] for file in found["files"]]
        view = self.storage.read(join(folder, "view.sql")).decode()
        assert all(f"'{file['uri']}'" in view for file in found["files"])
        assert view.count(".parquet'") == len(links) == PARTS
        return f"{found['run']} r{found['revision']}"

    def empty(self, place: str) -> bool:
        """Whether nothing lies there."""
        return not list(self.storage.list(join(self.uri, place)))

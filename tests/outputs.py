"""Outputs with revisions made by hand: what lies in storage after a run, without the run."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from nightjar.inference.output import publications as publish
from nightjar.inference.output.outcomes import OUTCOMES
from nightjar.inference.output.parts import checksum
from nightjar.inference.output.publications import Origin, Published, Snapshot
from nightjar.inference.storage.lake import LakeStorage
from nightjar.inference.storage.protocol import Storage, is_local, join

PARTS, ROWS = 4, 5


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
        shards = {"file": "shards-000001.parquet", "checksum": checksum(sink.getvalue())}
        manifest = json.dumps({"shards": shards}).encode()
        self._write(join(folder, "manifest-000001.json"), pa.py_buffer(manifest))
        if swept:
            self.swept(run, number)
        return Published(number, f"runs/{run}/r{number}/manifest-000001.json", checksum(manifest), run[:10])

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

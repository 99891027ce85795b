"""What readers see: the newest publication must be whole at every moment, and equal to that of a quiet night."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from nightjar.inference.errors import StorageError, Transient
from nightjar.inference.jsonform import to_json
from nightjar.inference.ledger.ledger import Ledger
from nightjar.inference.output import outcomes
from nightjar.inference.output import publications as publish
from nightjar.inference.output.nights import published_run
from nightjar.inference.records import encode
from nightjar.inference.storage.protocol import Storage, join
from nightjar.inference.validation.manifest import read_manifest

LOOK_S = 1.0


@dataclass(frozen=True)
class Rows:
    """All that a published run says: its rows, its quarantine, its metrics."""

    data: pa.Table
    quarantine: pa.Table
    metrics: dict[str, Any]

    def differences(self, other: Rows) -> list[str]:
        """In what the other one differs, in words."""
        found = [f"metrics: {self.metrics} and {other.metrics}"] if self.metrics != other.metrics else []
        for kind in ("data", "quarantine"):
            ours, theirs = getattr(self, kind), getattr(other, kind)
            if ours.schema != theirs.schema:
                found.append(f"{kind}: columns {ours.schema} and {theirs.schema}")
            elif ours.num_rows != theirs.num_rows:
                found.append(f"{kind}: {ours.num_rows} and {theirs.num_rows} rows: {_only_in_one(ours, theirs)}")
            else:
                wrong = [name for name in ours.column_names if not ours[name].equals(theirs[name])]
                found += [f"{kind}: the column {name} differs: {_first(ours, theirs, name)}" for name in wrong]
        return found


def _only_in_one(ours: pa.Table, theirs: pa.Table) -> list[tuple[str, int]]:
    """The first rows, by file and number, that one has and the other has not."""
    keys = [set(zip(t["_file"].to_pylist(), t["_row"].to_pylist(), strict=True)) for t in (ours, theirs)]
    return sorted(keys[0] ^ keys[1])[:5]


def _first(ours: pa.Table, theirs: pa.Table, name: str) -> str:
    pairs = zip(ours[name].to_pylist(), theirs[name].to_pylist(), strict=True)
    return next((f"row {i}: {a!r} and {b!r}" for i, (a, b) in enumerate(pairs) if a != b), "in encoding only")


def rows_of(storage: Storage, output: str, run_id: str) -> Rows:
    """The published rows of a run in the order of the input, without what names the run itself."""
    kinds: dict[str, list[pa.Table]] = {"data": [], "quarantine": []}
    for uri, kind, _, _ in parts_of(storage, output, run_id):
        kinds[kind].append(pq.read_table(storage.open(uri)))
    order = [("_file", "ascending"), ("_row", "ascending")]
    data, quarantine = (pa.concat_tables(tables).sort_by(order).combine_chunks() for tables in kinds.values())
    _, entry = published_run(publish.newest(storage, output), output, run_id)
    metrics = to_json(read_manifest(storage, output, entry).metrics)
    return Rows(data, _impersonal(quarantine, run_id), metrics)


def _impersonal(quarantine: pa.Table, run_id: str) -> pa.Table:
    """Without the run's name in the replay command, and the folder of the code in tracebacks."""
    for name, pattern in (("replay", re.escape(run_id)), ("traceback", r'(?<=File ")[^"]*/')):
        texts = [re.sub(pattern, "", text) for text in quarantine[name].to_pylist()]
        quarantine = quarantine.set_column(quarantine.column_names.index(name), name, pa.array(texts, pa.string()))
    return quarantine


def parts_of(storage: Storage, output: str, run_id: str) -> Iterator[tuple[str, str, int, int]]:
    """Every part of a published run: URI, kind, rows, bytes, as what was published lists them."""
    _, entry = published_run(publish.newest(storage, output), output, run_id)
    manifest = read_manifest(storage, output, entry)
    folder = join(output, "runs", run_id, f"r{entry.revision}")
    for line in outcomes.lines(outcomes.read(storage.read(join(folder, manifest.shards.file)))):
        for kind in ("data", "quarantine"):
            if part := line[kind]:
                yield join(folder, part["name"]), kind, part["rows"], part["size"]


def records_of(storage: Storage, output: str, run_id: str) -> list[dict[str, Any]]:
    """What is in the ledger of a run's first revision."""
    ledger = Ledger(storage, join(output, "runs", run_id, "r1"))
    return [encode(line) for segment in ledger.segments() for line in segment.lines]


def strays(storage: Storage, output: str, run_id: str) -> list[str]:
    """Parts in a published run's folder that it does not list: a reader may take the folder as it is."""
    listed = {uri for uri, _, _, _ in parts_of(storage, output, run_id)}
    folder = join(output, "runs", run_id, "r1")
    there = {entry.uri for kind in ("data", "quarantine") for entry in storage.list(join(folder, kind))}
    return sorted(there - listed)


@dataclass(eq=False)
class Readers(threading.Thread):
    """Looks at the newest publication again and again, and at how far the run of tonight is.

    problems: what a reader should never have seen. looks: how often all was found whole. signs: how much is in
    the ledger of `tonight`.
    """

    storage: Storage
    output: str
    tonight: str = ""
    signs: int = 0
    looks: int = 0
    problems: list[str] = field(default_factory=list)
    _number: int = 0
    _runs: set[str] = field(default_factory=set)
    _seen: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        super().__init__(daemon=True, name="readers")
        self._done = threading.Event()

    def run(self) -> None:
        """Until `stop`. Storage that is away is no problem of readers."""
        while not self._done.wait(LOOK_S):
            try:
                self._look()
                self.signs = len(records_of(self.storage, self.output, self.tonight)) if self.tonight else 0
            except Transient:
                continue
            except (StorageError, ValueError, LookupError, AssertionError) as error:
                problem = f"a reader saw {type(error).__name__}: {error}"
                self.problems += [problem] if problem not in self.problems else []

    def stop(self) -> None:
        """Look a last time, and end."""
        self._done.set()
        self.join(120)

    def _look(self) -> None:
        now = publish.newest(self.storage, self.output)
        assert now.number >= self._number, f"publication {self._number} is gone; now it is {now.number}"
        assert self._runs <= set(now.runs), f"of {self._runs} publication {now.number} shows only {set(now.runs)}"
        for run_id in now.runs:
            sizes = {uri: (rows, size) for uri, _, rows, size in parts_of(self.storage, self.output, run_id)}
            folder = join(self.output, "runs", run_id)
            there = {entry.uri: entry.size for entry in self.storage.list(folder)}
            for uri, (rows, size) in sizes.items():
                assert there.get(uri) == size, f"{uri}: {there.get(uri)} bytes, not {size}, in publication {now.number}"
                if uri not in self._seen:
                    found = pq.read_metadata(self.storage.open(uri)).num_rows
                    assert found == rows, f"{uri}: {found} rows, not {rows}, in publication {now.number}"
                    self._seen.add(uri)
        self._number, self._runs = now.number, set(now.runs)
        self.looks += 1

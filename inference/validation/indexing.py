"""Makes the index of a night's rows while the audit reads the parts, and proves what was reused.

As for the search for rows with one key (`unique`), each block of shards has a sorted file of its keys. A range of keys
of all these files becomes one file of the index. A key that several rows have is there once, for the first of them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from nightjar.inference.errors import AuditFailed
from nightjar.inference.job.model import Job
from nightjar.inference.job.sections import LINEAGE
from nightjar.inference.jsonform import of_bytes
from nightjar.inference.messages import clip
from nightjar.inference.output.parts import KEYS_KEY, DataPart, keys_name, read_data, read_sidecar
from nightjar.inference.output.revisions import uri_named
from nightjar.inference.output.rowindex import (
    ENTRY,
    INDEX,
    NOWHERE,
    REUSED_KEY,
    IndexFile,
    ModelIndex,
    NightIndex,
    PartsList,
    ReusedRows,
    RowKeys,
    entries_to_bytes,
    key_order,
    keys_from_bytes,
    parts_to_bytes,
)
from nightjar.inference.scoring.neighbours import differences
from nightjar.inference.storage.protocol import Storage, join
from nightjar.inference.validation.sorted_runs import Each, SortedRun, counts_of, ranges, results

_RUNS = "keyruns"
"""The folder of the sorted files of blocks, while the index is made."""


@dataclass(frozen=True, slots=True)
class KeyRun(SortedRun):
    """Entries of an index, whose parts are counted from the block's first. model: its place in the job."""

    model: int


class BlockKeys:
    """Collects the keys of one block of shards, given in order."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._found: list[list[npt.NDArray[Any]]] = [[] for _ in job.models] if job.reuse == "rows" else []
        self._first, self._shards, self._named = "", 0, hashlib.sha256()
        self._lists: dict[tuple[str, str], PartsList] = {}

    def look(self, storage: Storage, revision: str, line: Mapping[str, Any], part: DataPart) -> None:
        """Take one shard's, and prove what its part says that it has of an earlier night.

        line: of `outcomes.OUTCOMES`.

        Raises:
            AuditFailed: The keys are not what was written, or a value is not that of the earlier night.
            Missing: The file of the keys was removed, or what was reused was.
        """
        place, self._shards = self._shards, self._shards + 1
        self._first = self._first or line["shard"]
        self._named.update(part.name.encode())
        if not self._found or not line["keyed"]:
            return
        keys = keys_from_bytes(read_sidecar(storage, revision, keys_name(part.name), part.footer[KEYS_KEY]))
        if not line["adopted_from"] and REUSED_KEY in part.footer:
            said = of_bytes(ReusedRows, part.footer[REUSED_KEY])
            prove_reused(storage, self._job, part, keys, said, self._list_of_parts(storage, said))
        for found, each in zip(self._found, keys, strict=True):
            found.append(_entries(each, place))

    def _list_of_parts(self, storage: Storage, said: ReusedRows) -> PartsList:
        """The list of the parts of the night that rows were taken from."""
        if (said.source, said.parts.sha256) not in self._lists:
            uri = join(uri_named(self._job.output.uri, said.source), said.parts.name)
            content = storage.read(uri)
            if hashlib.sha256(content).hexdigest() != said.parts.sha256:
                raise AuditFailed(f"{uri}: not the list of parts that rows were taken from")
            self._lists[said.source, said.parts.sha256] = PartsList(pa.py_buffer(content))
        return self._lists[said.source, said.parts.sha256]

    def written(self, storage: Storage, revision: str) -> list[KeyRun]:
        """Write the files. A file that is written again has the same content."""
        return [self._write(storage, revision, model) for model, found in enumerate(self._found) if found]

    def _write(self, storage: Storage, revision: str, model: int) -> KeyRun:
        entries = _sorted(self._found[model])
        name = f"{_RUNS}/{self._named.hexdigest()[:32]}-{model}"
        storage.write(join(revision, name), entries.tobytes())
        return KeyRun(name, self._first, counts_of(entries["high"]), model)


def _entries(keys: RowKeys, part: int) -> npt.NDArray[Any]:
    rows = np.flatnonzero((keys.high != 0) | (keys.low != 0))
    found = np.empty(rows.size, ENTRY)
    found["high"], found["low"], found["part"], found["row"] = keys.high[rows], keys.low[rows], part, rows
    return found


def _sorted(entries: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    """The entries in the order of their keys. Of a key that several have the first one stays."""
    whole = np.concatenate(entries)
    whole = whole.take(key_order(whole["high"]))  # `take` copies an entry as a whole, an index does not
    again = (whole["high"][1:] == whole["high"][:-1]) & (whole["low"][1:] == whole["low"][:-1])
    return np.delete(whole, np.flatnonzero(again) + 1) if again.any() else whole


def indexed(
    each: Each,
    storage: Storage,
    revision: str,
    job: Job,
    table: pa.Table,
    runs: Sequence[KeyRun],
    identities: Mapping[str, str],
    epoch: int,
) -> Generator[NightIndex | None, None, None]:
    """Make the index of a revision; yields None on a tick, and the index at the end.

    each: carries out the work. table: the revision's `outcomes.OUTCOMES`. runs: of all blocks. Their files are deleted,
    as is an index of an earlier epoch.
    identities: what scores, by the name of the model. epoch: of the writer.
    """
    firsts = {run.first for run in runs}
    bases = {shard: at for at, shard in enumerate(table["shard"].to_pylist()) if shard in firsts}
    models, rows = list[ModelIndex](), 0
    for place, model in enumerate(job.models):
        own = [run for run in runs if run.model == place]
        merge = partial(_merged, storage, revision, own, [bases[run.first] for run in own], f"{place}-{epoch:06d}")
        files = yield from results(each(merge, ranges(sum(run.rows for run in own)), job, "index"))
        models.append(ModelIndex(identities[model.name], model.prefix, tuple(files)))
        rows = max(rows, sum(run.rows for run in own))
    parts = _kept(storage, revision, f"{INDEX}/parts-{epoch:06d}.arrow", parts_to_bytes(table))
    made_now = {join(revision, file.name) for file in (parts, *(file for each in models for file in each.files))}
    there = (entry.uri for folder in (_RUNS, INDEX) for entry in storage.list(join(revision, folder)))
    storage.delete(uri for uri in there if uri not in made_now)
    yield NightIndex(parts, rows, tuple(models), row_seconds(table))


def _merged(
    storage: Storage, revision: str, runs: Sequence[KeyRun], bases: Sequence[int], name: str, buckets: tuple[int, int]
) -> IndexFile:
    """Make one file of an index from its range of all runs. bases: the place of the first shard of each run."""
    low, high = buckets
    found = []
    for run, base in zip(runs, bases, strict=True):
        entries = run.read(storage, revision, buckets, ENTRY)
        entries["part"] += base
        found.append(entries)
    content = entries_to_bytes(_sorted(found))
    return replace(_kept(storage, revision, f"{INDEX}/{name}-{low:03d}.arrow", content), low=low, high=high)


def _kept(storage: Storage, revision: str, name: str, content: pa.Buffer) -> IndexFile:
    storage.write(join(revision, name), content)
    return IndexFile(name, hashlib.sha256(content).hexdigest())


_FEW_ROWS = 1000
"""Fewer scored rows say nothing of the time for a row."""


def row_seconds(table: pa.Table) -> float:
    """The seconds for which a worker prepares and scores a row; 0 if that is not known. table: as in `indexed`."""
    scored = table.filter(pc.equal(table["adopted_from"], ""))
    rows = (pc.sum(scored["rows_in"]).as_py() or 0) - (pc.sum(scored["rows_reused"]).as_py() or 0)
    if rows < _FEW_ROWS:
        return 0.0
    spent = scored["spent"].combine_chunks()
    seconds = sum(float(pc.sum(pc.struct_field(spent, name)).as_py() or 0.0) for name in ("prepare", "predict"))
    return seconds / rows


def prove_reused(
    storage: Storage, job: Job, part: DataPart, keys: Sequence[RowKeys], said: ReusedRows, parts: PartsList
) -> None:
    """Prove that each value that was taken from an earlier night equals the value in the part that it was taken from.

    said: of the part. parts: of the earlier night.

    Raises:
        AuditFailed: One does not, or that part is not as it was.
        Missing: That part was removed.
    """
    folder, table = uri_named(job.output.uri, said.source), part.table()
    for place in np.unique(np.concatenate([each.part for each in keys])).tolist():
        if place == NOWHERE:
            continue
        shard, earlier = parts.part(place)
        data = read_data(storage, folder, earlier, shard)
        for model, each, prefix in zip(job.models, keys, said.prefixes, strict=True):
            rows = np.flatnonzero(each.part == place)
            if not rows.size:
                continue
            before = data.table([f"{prefix}{name}" for name in model.outputs]).take(each.row[rows])
            for name, taken in zip(model.outputs, before.columns, strict=True):
                written = f"{model.prefix}{name}"
                differs, _ = differences(taken, table[written].take(rows), 0.0)
                if differs.any():
                    at = rows[int(differs.argmax())]
                    file, row = (table[column][int(at)].as_py() for column in LINEAGE)
                    raise AuditFailed(
                        f"row {row} of {file}: {written!r} is not what {said.source} has, from which it was taken: "
                        f"{clip(repr(taken[int(differs.argmax())].as_py()))}"
                    )

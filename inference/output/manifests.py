"""The files of a published revision with recorded checksums: the manifest, and the list of shards that it names."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from nightjar.inference.errors import JobError
from nightjar.inference.jsonform import of_json
from nightjar.inference.ledger.lines import Published
from nightjar.inference.output import outcomes
from nightjar.inference.output.parts import checksum
from nightjar.inference.output.publications import published_run
from nightjar.inference.output.revisions import revision_in
from nightjar.inference.storage.protocol import Storage, join


@dataclass(frozen=True, slots=True)
class RevisionFile:
    """A file that the manifest vouches for. file: its name in the revision."""

    file: str
    checksum: str
    size: int


@dataclass(frozen=True, slots=True)
class _Listing:
    """The part of a manifest that this room reads; `validation.manifest` reads all of it."""

    shards: RevisionFile | None = None
    exports: tuple[str, ...] = ()
    partitioned_by: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PublishedParts:
    """The data files of a published run.

    table: name (relative to its revision), rows, size, checksum of each, in input order. exports: the forms in which
    each part was exported. partitioned_by: the columns that name the folders of the files, outermost first, with their
    types.
    """

    table: pa.Table
    exports: tuple[str, ...]
    partitioned_by: Mapping[str, str]


def read_verified(storage: Storage, output: str, published: Published) -> bytes:
    """The manifest of a published revision, checked against the snapshot.

    Raises:
        JobError: it is not the file that was published.
    """
    raw = storage.read(join(output, published.manifest))
    if checksum(raw) != published.checksum:
        raise JobError(f"{join(output, published.manifest)}: not the manifest that was published; restore it")
    return raw


def data_files(storage: Storage, output: str, run_id: str | None) -> Iterator[str]:
    """The exact data files of a published run (default: of the latest night), in input order."""
    run, entry = published_run(storage, output, run_id)
    uri = revision_in(output, run, entry.revision)
    return (join(uri, name) for name in data_parts(storage, output, run, entry).table["name"].to_pylist())


def data_parts(storage: Storage, output: str, run: str, entry: Published) -> PublishedParts:
    """The data files of a published run.

    Raises:
        JobError: the manifest or the list of shards is not what was published.
    """
    found = of_json(_Listing, json.loads(read_verified(storage, output, entry)))
    listed = found.shards
    if listed is None:
        raise JobError(f"{join(output, entry.manifest)}: names no list of shards; restore it")
    file = join(revision_in(output, run, entry.revision), listed.file)
    raw = storage.read(file)
    if checksum(raw) != listed.checksum:
        raise JobError(f"{file}: not the file that was published; restore it")
    return PublishedParts(outcomes.data_files(raw), found.exports, found.partitioned_by)

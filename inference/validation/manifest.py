"""The manifest of a revision that was judged, also of one that a gate refused: totals, gates, metrics, versions, and
the name of the list of shards.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from nightjar.inference.errors import Damaged, JobError
from nightjar.inference.identity.identity import Identity
from nightjar.inference.identity.packages import added, installed_packages
from nightjar.inference.job.model import Job
from nightjar.inference.jsonform import SELDOM, of_bytes, to_bytes
from nightjar.inference.ledger.endings import utc
from nightjar.inference.ledger.epochs import LedgerWriter
from nightjar.inference.ledger.lines import Published
from nightjar.inference.ledger.progress import lowest
from nightjar.inference.ledger.remarks import Remarks
from nightjar.inference.metrics.figures import Figures
from nightjar.inference.metrics.profile import Profile
from nightjar.inference.output import outcomes
from nightjar.inference.output.parts import checksum
from nightjar.inference.output.revisions import RevisionFile, read_verified
from nightjar.inference.output.rowindex import NightIndex
from nightjar.inference.predictors.adapter import frameworks
from nightjar.inference.records import NO_USAGE, Counts, Seen, Usage
from nightjar.inference.storage.protocol import Storage, join
from nightjar.inference.validation.audit import Audited
from nightjar.inference.validation.gates import GateResult
from nightjar.inference.validation.rescore import Rescored
from nightjar.inference.witness.seen import Collection

LIBRARIES = ("nightjar-batch", "ray", "pyarrow", "numpy", "pandas", "prefect")


@dataclass(frozen=True, slots=True)
class Content:
    """What scored, by content. files: by name, with their SHA-256."""

    digest: str
    files: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Totals(Counts):
    """Of all shards. bytes: of the data parts. files_left_out: the number of files that could not match `input.where`,
    by what their paths or the table say, and were not read. ceilings: as in `Progress`. usage: of language
    models.
    """

    shards: int
    bytes: int
    files_left_out: int = 0
    ceilings: tuple[int, ...] = field(default=(), metadata=SELDOM)
    usage: Usage = field(default=NO_USAGE, metadata=SELDOM)


@dataclass(frozen=True, slots=True)
class Proof:
    """What the audit proved. cover: of what that every row is there once. checksums: their kind."""

    cover: str
    shards: int
    checksums: str
    rescored: Rescored | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """`manifest-<epoch>.json`.

    fingerprint: under which all shards were scored, by `identity` (the job's keys), code, model and packages. outside,
    loaded, preflight, again, snapshots: what a person should know of that, as in `Remarks`. libraries: versions where
    it was validated. reused: the results that were taken over from earlier revisions. index: of
    the rows, with `reuse: rows`. validated_at: UTC, as ISO 8601.
    profile: of the columns that the job profiles, for comparing nights.
    """

    job: str
    run_id: str
    date: str
    revision: int
    fingerprint: str
    input: str
    identity: Mapping[str, Any]
    code: Content | None = None
    model: Content | None = None
    packages: Mapping[str, str] = field(default_factory=dict)
    outside: tuple[Seen, ...] = ()
    loaded: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    preflight: tuple[str, ...] = ()
    again: tuple[str, ...] = ()
    snapshots: tuple[str, ...] = field(default=(), metadata=SELDOM)
    libraries: Mapping[str, str]
    totals: Totals
    reused: tuple[outcomes.Reused, ...] = field(default=(), metadata=SELDOM)
    index: NightIndex | None = field(default=None, metadata=SELDOM)
    shards: RevisionFile
    profile: RevisionFile | None = field(default=None, metadata=SELDOM)
    audit: Proof
    gates: tuple[GateResult, ...]
    metrics: Figures
    failed_attempts: int
    validated_at: str

    def remarks(self) -> Remarks:
        """What a person should know, with the packages as they are installed now: nothing is loaded any more."""
        loaded = added(dict(self.loaded), installed_packages(self.loaded))
        return Remarks(self.again, self.preflight, Collection(self.outside), loaded, self.snapshots)


def manifest_of(raw: bytes, file: str) -> Manifest:
    """What a manifest says. file: its URI.

    Raises:
        JobError: This version cannot read it.
    """
    try:
        return of_bytes(Manifest, raw)
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise JobError(f"{file}: not a manifest that this version can read") from error


def read_manifest(storage: Storage, output: str, published: Published) -> Manifest:
    """The manifest of a published revision, checked against the snapshot.

    Raises:
        JobError: it is not the file that was published, or another version wrote it.
    """
    file = join(output, published.manifest)
    return manifest_of(read_verified(storage, file, published.checksum), file)


def read_profile(storage: Storage, uri: str, kept: RevisionFile) -> Profile:
    """The profile of a revision. uri: of the revision.

    Raises:
        JobError: It is not the file that was written.
        Damaged: Another version wrote it.
    """
    file = join(uri, kept.file)
    raw = read_verified(storage, file, kept.checksum)
    try:
        return Profile.from_bytes(raw)
    except ValueError as error:
        raise Damaged(f"{file}: not a profile that this version can read") from error


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
    metrics: Figures,
    gates: tuple[GateResult, ...],
    rescored: Rescored | None,
    files_left_out: int = 0,
    reused: tuple[outcomes.Reused, ...] = (),
    index: NightIndex | None = None,
) -> tuple[Published, str]:
    """Write `shards-<epoch>.parquet`, `profile-<epoch>` and `manifest-<epoch>.json`.

    Returns the revision, as readers will see it, and the name of the list of shards, relative to the output."""
    storage, epoch, about = writer.ledger.storage, writer.epoch, writer.state.about

    def kept(name: str, content: bytes) -> RevisionFile:
        storage.create(join(uri, name), content)
        return RevisionFile(name, checksum(content), len(content))

    shards = kept(f"shards-{epoch:06d}.parquet", outcomes.to_parquet(table, writer.state))
    profile = audited.metrics.profile
    libraries = (*LIBRARIES, *(each for framework in frameworks() for each in framework.libraries))
    manifest = Manifest(
        job=job.name,
        run_id=run_id,
        date=date,
        revision=revision,
        fingerprint=identity.fingerprint,
        input=job.input.shown,
        identity=identity.job,
        code=Content(identity.code_digest, identity.code),
        model=Content(identity.model_digest, identity.model),
        packages=identity.packages,
        outside=about.outside.all(),
        loaded=about.loaded,
        preflight=about.preflight,
        again=about.again,
        snapshots=about.snapshots,
        libraries={"python": platform.python_version(), **installed_packages(libraries)},
        totals=Totals(
            shards=len(table),
            bytes=audited.size,
            files_left_out=files_left_out,
            ceilings=lowest(filter(None, table["ceilings"].to_pylist())),
            **audited.counts.by_name,
            usage=outcomes.usage(table),
        ),
        reused=reused,
        index=index,
        shards=shards,
        profile=kept(f"profile-{epoch:06d}", profile.to_bytes()) if profile else None,
        audit=Proof("every row index", audited.shards, "xxh3-128", rescored),
        gates=gates,
        metrics=metrics,
        failed_attempts=sum(len(failures) for failures in writer.state.failures.values()),
        validated_at=utc(),
    )
    made = kept(f"manifest-{epoch:06d}.json", to_bytes(manifest, indent=1))
    folder = f"runs/{run_id}/r{revision}"
    return Published(revision, f"{folder}/{made.file}", made.checksum, date), f"{folder}/{shards.file}"

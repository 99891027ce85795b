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
from nightjar.inference.records import Counts, Seen
from nightjar.inference.storage.protocol import Storage, join
from nightjar.inference.usage import NO_USAGE, Usage
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
    """The totals of all shards."""

    shards: int
    """Shards of the run."""

    bytes: int
    """Bytes of the data parts."""

    files_left_out: int = 0
    """Files that could not match `input.where`, by what their paths or the table say, and were not read."""

    ceilings: tuple[int, ...] = field(default=(), metadata=SELDOM)
    """As `Progress.ceilings`: of each model, in the job's order, the lowest of all shards."""

    usage: Usage = field(default=NO_USAGE, metadata=SELDOM)
    """What language models took."""


@dataclass(frozen=True, slots=True)
class Proof:
    """What the audit proved."""

    cover: str
    """By what it is proved that every row is there once: `every row index`."""

    shards: int
    """Shards that were audited."""

    checksums: str
    """The kind of the parts' checksums: `xxh3-128`."""

    rescored: Rescored | None = None
    """The result of scoring a sample of shards again; None if no shard was."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """`manifest-<epoch>.json`."""

    job: str
    """The name of the job."""

    run_id: str
    """The name of the run."""

    date: str
    """The run's logical time: a day as `2026-11-28`, or an instant in UTC as `2026-11-28T0530`."""

    revision: int
    """The number of the revision."""

    fingerprint: str
    """The fingerprint under which all shards were scored, by `identity`, code, model and packages."""

    input: str
    """The input, for people: its list, or its first location and the number of the others."""

    identity: Mapping[str, Any]
    """The job's keys that the fingerprint covers."""

    code: Content | None = None
    """The user's code that scored."""

    model: Content | None = None
    """The model's files."""

    packages: Mapping[str, str] = field(default_factory=dict)
    """Package, file or folder that the fingerprint covers → its version, a hash of its content, or both."""

    outside: tuple[Seen, ...] = ()
    """As in `Remarks`: what predictors used that the fingerprint does not cover."""

    loaded: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """As in `Remarks`: package → its versions with which preflights loaded the model."""

    preflight: tuple[str, ...] = ()
    """As in `Remarks`: the last preflight's notes, a sentence each."""

    again: tuple[str, ...] = ()
    """As in `Remarks`: why shards with a result were scored again, a sentence each."""

    snapshots: tuple[str, ...] = field(default=(), metadata=SELDOM)
    """As in `Remarks`: of the table that is the input, the first plan's snapshot and the last one's."""

    libraries: Mapping[str, str]
    """Python and installed libraries → their versions where the run was validated."""

    totals: Totals
    """The totals of all shards."""

    reused: tuple[outcomes.Reused, ...] = field(default=(), metadata=SELDOM)
    """The results that were taken over from earlier revisions."""

    index: NightIndex | None = field(default=None, metadata=SELDOM)
    """The index of the rows, with `reuse: rows`; else None."""

    shards: RevisionFile
    """The list of the shards with their outcomes, `shards-<epoch>.parquet`."""

    profile: RevisionFile | None = field(default=None, metadata=SELDOM)
    """The profile of the columns that the job profiles, for comparing nights; None if the job profiles none."""

    judging: str = ""
    """A digest of what the run was judged by, as of a `ScoringSet`."""

    audit: Proof
    """What the audit proved."""

    gates: tuple[GateResult, ...]
    """The verdict of each gate."""

    metrics: Figures
    """The figures of all rows."""

    failed_attempts: int
    """Attempts of all commands that failed, and receipts that an audit revoked."""

    validated_at: str
    """When the run was validated, in UTC, as ISO 8601."""

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
    judging: str,
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
        judging=judging,
        audit=Proof("every row index", audited.shards, "xxh3-128", rescored),
        gates=gates,
        metrics=metrics,
        failed_attempts=sum(len(failures) for failures in writer.state.failures.values()),
        validated_at=utc(),
    )
    made = kept(f"manifest-{epoch:06d}.json", to_bytes(manifest, indent=1))
    folder = f"runs/{run_id}/r{revision}"
    return Published(revision, f"{folder}/{made.file}", made.checksum, date), f"{folder}/{shards.file}"

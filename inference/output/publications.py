"""Snapshots: the one atomic act that makes a revision visible. `visibility` takes it back.

`publications/00000042.json` is created if absent and never rewritten. It maps every run to the manifest
readers use; the newest one counts. A writer says in the ledger which number it will try, and with which
manifest, then tries that number alone: whoever continues after a crash finds out what became of it.
"""

from __future__ import annotations

import datetime as dt
import json
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar

import pyarrow as pa

from nightjar.inference.errors import (
    AlreadyExists,
    Held,
    JobError,
    Missing,
)
from nightjar.inference.ledger.ledger import LedgerWriter
from nightjar.inference.ledger.lines import encode
from nightjar.inference.output import outcomes
from nightjar.inference.output.parts import checksum
from nightjar.inference.records import known
from nightjar.inference.storage.protocol import Storage, join

_MAX_TRIES = 100


@dataclass(frozen=True, slots=True)
class Published:
    """Where one run's published revision is. `manifest` is relative to the output; `date` its logical date."""

    revision: int
    manifest: str
    checksum: str
    date: str


@dataclass(frozen=True, slots=True)
class Intent:
    """A line of the ledger: which number the writer tries next, and what it publishes there."""

    t: ClassVar[str] = "intent"
    number: int
    published: Published


@dataclass(frozen=True, slots=True)
class PublishedAs:
    """A line of the ledger: the snapshot of this number shows the revision."""

    t: ClassVar[str] = "published"
    number: int


@dataclass(frozen=True, slots=True)
class Origin:
    """What made a snapshot. act: `publish`, `rollback`, `unpublish` or `republish`; `other` if nobody can say.

    run, revision: what was published, taken back or shown again. to: the publication a rollback went back to.
    """

    act: str
    run: str = ""
    revision: int = 0
    to: int = 0

    def __str__(self) -> str:
        if self.act == "rollback":
            return f"rollback to publication {self.to}"
        return f"{'run' if self.act == 'publish' else self.act} {self.run} revision {self.revision}"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What readers see: run id → published revision. `note` says for people why it was made."""

    number: int
    runs: dict[str, Published] = field(default_factory=dict)
    at: str = ""
    note: str = ""
    origin: Origin = Origin("other")

    def latest(self) -> str | None:
        """The run of the highest logical date."""
        return next(reversed(self.nights().values()), None)

    def nights(self) -> dict[str, str]:
        """The run of each logical date, in order; a run named by its date before others of that date."""
        runs = sorted(self.runs, key=lambda run: (self.runs[run].date, run == self.runs[run].date, run))
        return {self.runs[run].date: run for run in runs}


def claim_output(storage: Storage, output: str, name: str) -> None:
    """Make the output this job's, or find that it is.

    Raises:
        JobError: it belongs to another job; names `output.uri`.
    """
    uri = join(output, "job.json")
    try:
        storage.create(uri, json.dumps({"job": name, "since": now_utc()}).encode())
    except AlreadyExists:
        check_owner(storage, output, name)


def check_owner(storage: Storage, output: str, name: str) -> None:
    """Whether the output is free or this job's; changes nothing.

    Raises:
        JobError: it belongs to another job.
    """
    uri = join(output, "job.json")
    try:
        owner = json.loads(storage.read(uri))["job"]
    except Missing:
        return
    except (ValueError, TypeError, LookupError):
        raise JobError(f"output.uri: {uri} was not written by Nightjar; give {name!r} a place of its own") from None
    if owner != name:
        raise JobError(f"output.uri: {output} belongs to the job {owner!r}; give {name!r} a place of its own")


def newest(storage: Storage, output: str) -> Snapshot:
    """What readers see now; number 0 before anything was published."""
    there = numbers(storage, output)
    return snapshot(storage, output, there[-1]) if there else Snapshot(0)


def snapshot(storage: Storage, output: str, number: int) -> Snapshot:
    """One snapshot by number.

    Raises:
        JobError: there is none of that number.
    """
    try:
        content = json.loads(storage.read(_uri(output, number)))
    except Missing:
        raise JobError(f"there is no publication {number} in {output}; `nightjar publications` lists them") from None
    runs = {run: known(Published, published) for run, published in content["runs"].items()}
    origin = known(Origin, content["origin"]) if "origin" in content else _told(content["note"])
    return Snapshot(content["number"], runs, content["at"], content["note"], origin)


def _told(note: str) -> Origin:
    """What made a snapshot of an older release, which kept only the sentence."""
    if found := re.fullmatch(r"rollback to publication (\d+)", note):
        return Origin("rollback", to=int(found[1]))
    if found := re.fullmatch(r"run (\S+) revision (\d+)", note):
        return Origin("publish", found[1], int(found[2]))
    return Origin("other")


def add(storage: Storage, output: str, number: int, runs: dict[str, Published], origin: Origin) -> Snapshot:
    """Create snapshot `number`, unless it is there; returns what is there. Every snapshot is made here.

    By its origin and runs the caller sees whether it is what was wanted.
    """
    new = Snapshot(number, runs, now_utc(), str(origin), origin)
    try:
        storage.create(_uri(output, number), _encode(new))
    except AlreadyExists:
        return snapshot(storage, output, number)
    return new


def publish(writer: LedgerWriter, output: str, run_id: str, published: Published) -> int:
    """Publish one revision; returns the number of its snapshot. Settles an intent left by a crash first.

    Raises:
        Held: a later revision of the run was published meanwhile.
        Fenced: another writer continues this publication.
    """
    storage, below = writer.ledger.storage, None
    for _ in range(_MAX_TRIES):
        intent = writer.state.intent
        if intent is not None:
            published = known(Published, intent["published"])
            # Of an intent that was found nobody looked below its number yet.
            before = below or newest_below(storage, output, intent["number"])
            if _try(storage, output, before, intent["number"], run_id, published):
                writer.append([encode(PublishedAs(intent["number"]))])
                return int(intent["number"])
        below = newest(storage, output)
        writer.append([encode(Intent(below.number + 1, published))])
    raise JobError(f"publications in {output} are created faster than this run can publish; try again")


def published_run(storage: Storage, output: str, run_id: str | None) -> tuple[str, Published]:
    """The published run of that id, or the latest night; with where it is.

    Raises:
        JobError: it is not published; says what is.
    """
    return seen(newest(storage, output), output, run_id)


def seen(now: Snapshot, output: str, run_id: str | None) -> tuple[str, Published]:
    """As `published_run`, in a snapshot that was read already."""
    run = run_id or now.latest()
    if run is None:
        raise JobError(f"nothing is published in {output} yet; `nightjar run` publishes")
    if run not in now.runs:
        known = ", ".join(sorted(now.runs)[-5:]) or "none"
        raise JobError(f"the run {run!r} is not published in {output}; published: {known}")
    return run, now.runs[run]


def data_files(storage: Storage, output: str, run_id: str | None) -> Iterator[str]:
    """The exact data files of a published run (default: of the latest night), in input order."""
    run, entry = published_run(storage, output, run_id)
    uri = join(output, "runs", run, f"r{entry.revision}")
    return (join(uri, name) for name in data_parts(storage, output, run, entry)["name"].to_pylist())


def data_parts(storage: Storage, output: str, run: str, entry: Published) -> pa.Table:
    """The data files of a published run, in input order: name (relative to its revision), rows, size, checksum.

    Raises:
        JobError: the manifest or the list of shards is not what was published.
    """
    listed = read_manifest(storage, output, entry).get("shards")
    if listed is None:
        raise JobError(f"{join(output, entry.manifest)}: names no list of shards; restore it")
    file = join(output, "runs", run, f"r{entry.revision}", listed["file"])
    raw = storage.read(file)
    if checksum(raw) != listed["checksum"]:
        raise JobError(f"{file}: not the file that was published; restore it")
    return outcomes.parts(raw, "data")


def _try(storage: Storage, output: str, before: Snapshot, number: int, run_id: str, published: Published) -> bool:
    """Create snapshot `number`, or find that we did; False when another run took it.

    before: the snapshot that it builds on. Below a number that was free nothing appears any more.
    """
    shown = before.runs.get(run_id)
    if shown is not None and shown.revision > published.revision:
        raise Held(f"revision {shown.revision} of the run {run_id!r} was published meanwhile; this one stays unseen")
    origin = Origin("publish", run_id, published.revision)
    there = add(storage, output, number, {**before.runs, run_id: published}, origin)
    return there.origin == origin and there.runs.get(run_id) == published


def shown(storage: Storage, output: str, run_id: str) -> Published | None:
    """What readers see of this run now; None if they see nothing of it."""
    return newest(storage, output).runs.get(run_id)


def newest_below(storage: Storage, output: str, number: int) -> Snapshot:
    """The snapshot that `number` builds on."""
    below = [n for n in numbers(storage, output) if n < number]
    return snapshot(storage, output, below[-1]) if below else Snapshot(0)


def numbers(storage: Storage, output: str) -> list[int]:
    """The numbers of all snapshots, ascending."""
    names = (entry.uri.rsplit("/", 1)[-1] for entry in storage.list(join(output, "publications")))
    return sorted(int(name.removesuffix(".json")) for name in names if name.endswith(".json"))


def _uri(output: str, number: int) -> str:
    return join(output, "publications", f"{number:08d}.json")


def _encode(content: Snapshot) -> bytes:
    return json.dumps(asdict(content), indent=1).encode()


def now_utc() -> str:
    """This moment, as records keep it."""
    return dt.datetime.now(dt.UTC).isoformat(timespec="milliseconds")


def read_manifest(storage: Storage, output: str, published: Published) -> dict[str, Any]:
    """The manifest of a published revision, checked against the snapshot.

    Raises:
        JobError: it is not the file that was published.
    """
    raw = storage.read(join(output, published.manifest))
    if checksum(raw) != published.checksum:
        raise JobError(f"{join(output, published.manifest)}: not the manifest that was published; restore it")
    manifest: dict[str, Any] = json.loads(raw)
    return manifest

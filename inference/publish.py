"""Snapshots: the one atomic act that makes a revision visible, and taking it back.

`publications/00000042.json` is created if absent and never rewritten. It maps every run to the manifest
readers use; the newest one counts. A writer says in the ledger which number it will try, and with which
manifest, then tries that number alone: whoever continues after a crash finds out what became of it.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from nightjar.inference import outcomes
from nightjar.inference.errors import AlreadyExists, Held, JobError, Missing
from nightjar.inference.ledger import LedgerWriter
from nightjar.inference.shards import known
from nightjar.inference.sink import checksum
from nightjar.inference.storage import Storage, join

_MAX_TRIES = 100


@dataclass(frozen=True, slots=True)
class Published:
    """Where one run's published revision is. `manifest` is relative to the output; `date` its logical date."""

    revision: int
    manifest: str
    checksum: str
    date: str


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What readers see: run id → published revision. `note` says why it was made."""

    number: int
    runs: dict[str, Published] = field(default_factory=dict)
    at: str = ""
    note: str = ""

    def latest(self) -> str | None:
        """The run of the highest logical date; a run named by its date before others of that date."""
        return max(self.runs, key=lambda run: (self.runs[run].date, run == self.runs[run].date, run), default=None)


def claim_output(storage: Storage, output: str, name: str) -> None:
    """Make the output this job's, or find that it is.

    Raises:
        JobError: it belongs to another job; names `output.uri`.
    """
    uri = join(output, "job.json")
    try:
        storage.create(uri, json.dumps({"job": name, "since": _now()}).encode())
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
    numbers = _numbers(storage, output)
    return snapshot(storage, output, numbers[-1]) if numbers else Snapshot(0)


def snapshot(storage: Storage, output: str, number: int) -> Snapshot:
    """One snapshot by number.

    Raises:
        JobError: there is none of that number.
    """
    try:
        content = json.loads(storage.read(_uri(output, number)))
    except Missing:
        raise JobError(f"there is no publication {number} in {output}") from None
    runs = {run: known(Published, published) for run, published in content["runs"].items()}
    return Snapshot(content["number"], runs, content["at"], content["note"])


def publish(writer: LedgerWriter, output: str, run_id: str, published: Published) -> int:
    """Publish one revision; returns the number of its snapshot. Settles an intent left by a crash first.

    Raises:
        Held: a later revision of the run was published meanwhile.
        Fenced: another writer continues this publication.
    """
    storage = writer.ledger.storage
    for _ in range(_MAX_TRIES):
        intent = writer.state.intent
        if intent is not None:
            published = known(Published, intent["published"])
            if _try(storage, output, intent["number"], run_id, published):
                writer.append([{"t": "published", "number": intent["number"]}])
                return int(intent["number"])
        number = newest(storage, output).number + 1
        writer.append([{"t": "intent", "number": number, "published": asdict(published)}])
    raise JobError(f"publications in {output} are created faster than this run can publish; try again")


def published_run(storage: Storage, output: str, run_id: str | None) -> tuple[str, Published]:
    """The published run of that id, or the latest night; with where it is.

    Raises:
        JobError: it is not published; says what is.
    """
    now = newest(storage, output)
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
    manifest = read_manifest(storage, output, entry)
    uri = join(output, "runs", run, f"r{entry.revision}")
    raw = storage.read(join(uri, manifest["shards"]["file"]))
    if checksum(raw) != manifest["shards"]["checksum"]:
        raise JobError(f"{join(uri, manifest['shards']['file'])}: not the file that was published; restore it")
    return (join(uri, name) for name in outcomes.part_names(outcomes.read(raw), "data"))


def rollback(storage: Storage, output: str, to: int | None) -> Snapshot:
    """Let readers see an earlier publication again, as a new snapshot.

    to: its number; default: the one before the newest that was no rollback itself.

    Raises:
        JobError: there is nothing to go back to.
    """
    now = newest(storage, output)
    target = to if to is not None else _before(storage, output, now)
    if target is None:
        raise JobError(f"{output} has no earlier publication to go back to")
    earlier = snapshot(storage, output, target) if target else Snapshot(0)
    back = Snapshot(now.number + 1, earlier.runs, _now(), f"rollback to publication {target}")
    try:
        storage.create(_uri(output, back.number), _encode(back))
    except AlreadyExists:
        there = snapshot(storage, output, back.number)
        if there != back:
            # What the person wanted undone is no longer the newest: going on would undo something else.
            raise JobError(
                f"publication {there.number} ({there.note}) appeared meanwhile and nothing was rolled back; "
                f"look again, then repeat with --to {target} if that is still what readers should see"
            ) from None
    return back


def _before(storage: Storage, output: str, now: Snapshot) -> int | None:
    """The publication before the one readers effectively see; repeated rollbacks go further back."""
    effective = now.number
    while (found := snapshot(storage, output, effective) if effective else now).note.startswith("rollback to "):
        effective = int(found.note.rsplit(" ", 1)[-1])
        if not effective:
            return None
    return effective - 1 if effective > 1 else None


def _try(storage: Storage, output: str, number: int, run_id: str, published: Published) -> bool:
    """Create snapshot `number`, or find that we did; False when another run took it."""
    before = newest_below(storage, output, number)
    shown = before.runs.get(run_id)
    if shown is not None and shown.revision > published.revision:
        raise Held(f"revision {shown.revision} of the run {run_id!r} was published meanwhile; this one stays unseen")
    after = Snapshot(number, {**before.runs, run_id: published}, _now(), f"run {run_id} revision {published.revision}")
    try:
        storage.create(_uri(output, number), _encode(after))
    except AlreadyExists:
        there = snapshot(storage, output, number)
        return there.note == after.note and there.runs.get(run_id) == published
    return True


def newest_below(storage: Storage, output: str, number: int) -> Snapshot:
    """The snapshot that `number` builds on."""
    below = [n for n in _numbers(storage, output) if n < number]
    return snapshot(storage, output, below[-1]) if below else Snapshot(0)


def _numbers(storage: Storage, output: str) -> list[int]:
    names = (entry.uri.rsplit("/", 1)[-1] for entry in storage.list(join(output, "publications")))
    return sorted(int(name.removesuffix(".json")) for name in names if name.endswith(".json"))


def _uri(output: str, number: int) -> str:
    return join(output, "publications", f"{number:08d}.json")


def _encode(content: Snapshot) -> bytes:
    return json.dumps(asdict(content), indent=1).encode()


def _now() -> str:
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

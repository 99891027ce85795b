"""Snapshots: the one atomic act that makes a revision visible. `visibility` takes it back.

`publications/00000042.json` is created if absent and never rewritten. It maps every run to the manifest
readers use; the newest one counts. A writer says in the ledger which number it will try, and with which
manifest, then tries that number alone: whoever continues after a crash finds out what became of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial

from nightjar.inference.errors import AlreadyExists, Held, JobError, Missing
from nightjar.inference.jsonform import of_bytes, to_bytes
from nightjar.inference.ledger.endings import utc
from nightjar.inference.ledger.epochs import LedgerWriter
from nightjar.inference.ledger.lines import Intent, Published, PublishedAs
from nightjar.inference.storage.protocol import Storage, at_once, join, numbered, read_control

_MAX_TRIES = 100

_WITHOUT = (
    "restore it, or delete it: readers then have the publication before it, and `nightjar republish JOB RUN` shows "
    "them a night again"
)
"""What a person can do about a publication that cannot be read."""


@dataclass(frozen=True, slots=True)
class Origin:
    """What made a snapshot."""

    act: str
    """`publish`, `rollback`, `unpublish`, `republish` or `prune`; `other` if nobody knows."""

    run: str = ""
    """The run that was published, taken back or shown again; empty for other acts."""

    revision: int = 0
    """The revision of `run` that was published, taken back or shown again; 0 for other acts."""

    to: int = 0
    """The publication to which a rollback went back; 0 for other acts."""

    def __str__(self) -> str:
        if self.act == "rollback":
            return f"rollback to publication {self.to}"
        if self.act == "prune":
            return "prune of old nights"
        return f"{'run' if self.act == 'publish' else self.act} {self.run} revision {self.revision}"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What readers see."""

    number: int
    """The number of the publication, from 1; 0 before anything was published."""

    runs: dict[str, Published] = field(default_factory=dict)
    """Run id → published revision."""

    at: str = ""
    """When the snapshot was made, in UTC, as ISO 8601; empty before anything was published."""

    note: str = ""
    """Why the snapshot was made, for people."""

    origin: Origin = Origin("other")
    """What made the snapshot."""

    def latest(self) -> str | None:
        """The run of the highest logical date."""
        return next(reversed(self.nights().values()), None)

    def nights(self) -> dict[str, str]:
        """The run of each logical date, in order; a run named by its date before others of that date."""
        runs = sorted(self.runs, key=lambda run: (self.runs[run].date, run == self.runs[run].date, run))
        return {self.runs[run].date: run for run in runs}

    def without_own(self) -> Snapshot:
        """What readers saw before, as far as the snapshot itself says: the one below it may be deleted."""
        return replace(self, runs={run: each for run, each in self.runs.items() if run != self.origin.run})

    def dates_unlike(self, other: Snapshot) -> set[str]:
        """The logical dates of which the other snapshot shows another run, another revision, or nothing."""
        mine, theirs = ({(date, run, each.runs[run]) for date, run in each.nights().items()} for each in (self, other))
        return {date for date, *_ in mine ^ theirs}


def newest(storage: Storage, output: str) -> Snapshot:
    """What readers see now; number 0 before anything was published."""
    there = numbers(storage, output)
    return snapshot(storage, output, there[-1]) if there else Snapshot(0)


def snapshot(storage: Storage, output: str, number: int) -> Snapshot:
    """One snapshot by number.

    Raises:
        JobError: There is no snapshot with that number.
        Damaged: It cannot be read.
    """
    try:
        return _read(storage, output, number)
    except Missing:
        lists = "`nightjar publications JOB` lists them"
        raise JobError(f"there is no publication {number} in {output}; {lists}") from None


def snapshots(storage: Storage, output: str, wanted: Sequence[int]) -> Iterator[Snapshot]:
    """Snapshots in the order of their numbers here, without those that are deleted meanwhile, and with a bounded number
    of them in memory.

    Raises:
        Damaged: One cannot be read.
    """

    def read(number: int) -> Snapshot | None:
        with suppress(Missing):
            return _read(storage, output, number)
        return None

    yield from filter(None, at_once(read, wanted))


def _read(storage: Storage, output: str, number: int) -> Snapshot:
    return read_control(storage, uri_of(output, number), partial(of_bytes, Snapshot), "a publication", _WITHOUT)


def add(storage: Storage, output: str, number: int, runs: dict[str, Published], origin: Origin) -> Snapshot:
    """Create snapshot `number` if it does not exist, and return the one that exists. Every snapshot is made here.

    The caller sees from its origin and runs whether it is the wanted one.
    """
    new = Snapshot(number, runs, utc(), str(origin), origin)
    try:
        storage.create(uri_of(output, number), to_bytes(new, indent=1))
    except AlreadyExists:
        return snapshot(storage, output, number)
    return new


def publish(writer: LedgerWriter, output: str, run_id: str, published: Published) -> int:
    """Publish one revision, after settling an intent that a crash left. Returns the number of the snapshot.

    Raises:
        Held: A later revision of the run was published meanwhile.
        Fenced: Another writer continues this publication.
    """
    storage = writer.ledger.storage
    below = newest(storage, output)
    for _ in range(_MAX_TRIES):
        if (intent := writer.state.intent) is not None:
            published = intent.published
            if _try(storage, output, below, intent.number, run_id, published):
                writer.append([PublishedAs(intent.number)])
                return intent.number
            below = newest(storage, output)
        writer.append([Intent(below.number + 1, published)])
    raise JobError(f"publications in {output} are created faster than this run can publish; try again")


def _try(storage: Storage, output: str, below: Snapshot, number: int, run_id: str, published: Published) -> bool:
    """Create snapshot `number`, or find that an earlier try did; False if another run has this number.

    below: the newest snapshot. One of a lower number that is not there was taken, and is deleted since.
    """
    origin = Origin("publish", run_id, published.revision)
    if number <= below.number:
        there = next(snapshots(storage, output, [number]), None)
    else:
        before = below.runs.get(run_id)
        if before is not None and before.revision > published.revision:
            raise Held(
                f"revision {before.revision} of the run {run_id!r} was published meanwhile; this one stays unseen"
            )
        there = add(storage, output, number, {**below.runs, run_id: published}, origin)
    return there is not None and there.origin == origin and there.runs.get(run_id) == published


def shown(storage: Storage, output: str, run_id: str) -> Published | None:
    """The revision of this run that readers see now; None if they see none."""
    return newest(storage, output).runs.get(run_id)


def numbers(storage: Storage, output: str) -> list[int]:
    """The numbers of all snapshots, ascending."""
    return sorted(numbered(storage, join(output, "publications"), ".json"))


def uri_of(output: str, number: int) -> str:
    """The URI of a snapshot."""
    return join(output, "publications", f"{number:08d}.json")

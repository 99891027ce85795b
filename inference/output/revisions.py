"""Revisions of a run: reading one and its files, taking over results from the last one, and sweeping leftovers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice

import pyarrow as pa

from nightjar.inference.errors import AlreadyExists, Damaged, Fenced, JobError, Missing
from nightjar.inference.identity.identity import Identity
from nightjar.inference.input.plan import Plan
from nightjar.inference.jsonform import of_bytes, to_bytes
from nightjar.inference.ledger.epochs import LedgerWriter
from nightjar.inference.ledger.holders import RETIRE
from nightjar.inference.ledger.ledger import Ledger, State, replay
from nightjar.inference.output import outcomes
from nightjar.inference.output.parts import DATA, SIDECARS, checksum, epoch_of, files_of, part_name, stem_of
from nightjar.inference.records import Part, Receipt
from nightjar.inference.storage.protocol import Storage, join, read_control

_COPIES = 16

_WINDOW = 512


@dataclass(frozen=True, slots=True)
class Success:
    """The content of `_SUCCESS`: the publication's number, and the manifest's name relative to the output."""

    publication: int
    manifest: str


@dataclass(frozen=True)
class Revision:
    """One revision in the storage."""

    number: int
    """The number of the revision, from 1."""

    uri: str
    """The URI of the revision's folder."""

    ledger: Ledger
    """The ledger of the revision."""

    state: State
    """What was read of the ledger, so that reading can continue from there."""

    success: Success | None
    """The content of `_SUCCESS`; None until the revision is finished."""

    @property
    def run_id(self) -> str:
        """The run that it is of."""
        return self.uri.rsplit("/", 2)[1]

    @property
    def name(self) -> str:
        """It among all revisions of the job, as `2026-11-19/r1`."""
        return f"{self.run_id}/r{self.number}"

    @property
    def sealed(self) -> bool:
        """Whether its publication has begun, or its deletion. From then on nobody adds to the revision."""
        return self.state.intent is not None or bool(self.state.removed)

    def plan(self, limit: int | None = None) -> Plan | None:
        """As `read_plan`."""
        return read_plan(self.ledger.storage, self.uri, self.state, limit)

    def begun_by(self, flow_run: str) -> bool:
        """Whether a step of that flow run has written its ledger, other than to leave the revision."""
        return any(writer.flow_run == flow_run and writer.task != RETIRE for _, writer in self.state.openers)


def run_folder(output: str, run: str) -> str:
    """The URI of the folder with a run's revisions. output: the URI of the job's output."""
    return join(output, "runs", run)


def revision_uri(run_uri: str, number: int) -> str:
    """The URI of a revision."""
    return join(run_uri, f"r{number}")


def revision_in(output: str, run: str, number: int) -> str:
    """The URI of a run's revision. output: the URI of the job's output."""
    return revision_uri(run_folder(output, run), number)


def newest_revision(storage: Storage, run_uri: str) -> Revision | None:
    """The run's highest revision, if it has any. A run that is being deleted has none."""
    return unless_removed(highest_revision(storage, run_uri))


def unless_removed(found: Revision | None) -> Revision | None:
    """The revision, unless its run is being deleted."""
    return None if found is None or found.state.removed else found


def highest_revision(storage: Storage, run_uri: str) -> Revision | None:
    """The revision with the run's highest number, also if it is being deleted; None if there is no number."""
    number = newest_number(storage, run_uri)
    return read_revision(storage, run_uri, number) if number else None


def newest_number(storage: Storage, run_uri: str) -> int:
    """The number of the run's highest revision; 0 if it has none."""
    names = [name for name in storage.subfolders(run_uri) if re.fullmatch(r"r\d+", name)]
    return max((int(name[1:]) for name in names), default=0)


def is_finished(storage: Storage, run_uri: str, number: int) -> bool:
    """Whether a revision was published and nothing is left to do. The ledger is not read for this."""
    try:
        storage.stat(join(revision_uri(run_uri, number), "_SUCCESS"))
    except Missing:
        return False
    return True


def read_revision(storage: Storage, run_uri: str, number: int) -> Revision:
    """One revision by number."""
    uri = revision_uri(run_uri, number)
    try:
        success = read_control(
            storage,
            join(uri, "_SUCCESS"),
            partial(of_bytes, Success),
            "the end of a revision",
            "delete it, and `nightjar run JOB` of this night writes it again",
        )
    except Missing:
        success = None
    ledger = Ledger(storage, uri)
    return Revision(number, uri, ledger, replay(ledger), success)


def uri_named(output: str, name: str) -> str:
    """The URI of a revision by `Revision.name`. output: the URI of the job's output."""
    return join(output, "runs", name)


def revision_named(storage: Storage, output: str, name: str) -> Revision:
    """One revision by `Revision.name`. output: the URI of the job's output."""
    run, number = run_and_number(name)
    return read_revision(storage, run_folder(output, run), number)


def run_and_number(name: str) -> tuple[str, int]:
    """The run of a revision and its number, by `Revision.name`."""
    run, _, number = name.partition("/r")
    return run, int(number)


def mark_success(writer: LedgerWriter, uri: str, number: int, manifest: str) -> None:
    """Write `_SUCCESS`, the last file of a revision."""
    content = to_bytes(Success(number, manifest))
    # A command that continued after a crash wrote the same content.
    with suppress(AlreadyExists):
        writer.ledger.storage.create(join(uri, "_SUCCESS"), content)


def read_plan(storage: Storage, uri: str, state: State, limit: int | None = None) -> Plan | None:
    """The revision's newest plan, with its packed shards split as the ledger says. limit: of what is scored of it; it
    chooses among the shards as they were before they were split.
    """
    if state.planned is None:
        return None
    file = join(uri, state.planned.file)
    try:
        plan = Plan.from_bytes(storage.read(file)).limited(limit)
        return plan.with_splits(state.splits, state.planned.fingerprint)[0]
    except (OSError, pa.ArrowException) as error:
        raise Damaged(
            f"{file}: not a plan this version can read; restore it, or score the run anew with --fresh"
        ) from error


def identity_of_plan(storage: Storage, uri: str, state: State) -> Identity | None:
    """The identity of a revision's plan; None without a plan."""
    if state.planned is None or not state.planned.identity:
        return None
    remedy = "restore it, or score the run anew with --fresh; `nightjar replay … --live` does without it"
    file = join(uri, state.planned.identity)
    return read_control(storage, file, partial(of_bytes, Identity), "what scored a run", remedy)


def planned_by(revision: Revision | None) -> str:
    """The fingerprint of a revision's newest plan; '' if it has none."""
    planned = revision.state.planned if revision else None
    return planned.fingerprint if planned else ""


def adopt(
    writer: LedgerWriter, uri: str, plan: Plan, source: Revision, source_plan: Plan, *, states_beside: bool
) -> None:
    """Take over the results of shards that are the same in an earlier, published revision.

    Parts are copied within the storage (on a local disk by hard links), so that each revision is complete and earlier
    ones may be deleted. states_beside: as of the `Job`, the same for both revisions.
    """
    storage = writer.ledger.storage
    # A part that was found damaged here may be damaged at its source, too, so its shard is scored again.
    wanted = set(plan.ids()) - writer.state.committed - set(writer.state.revoked)
    known = set(source_plan.ids()) & wanted
    if not known:
        return
    lines = (receipt for receipt in _left_of(source) if receipt.shard in known)

    def copy(receipt: Receipt) -> tuple[Receipt, list[str]] | None:
        def copy_part(part: Part | None) -> tuple[Part | None, list[str]]:
            if part is None:
                return None, []
            name = part_name(part.name.partition("/")[0], receipt.shard, writer.epoch)
            old, new = (files_of(each, states_beside=states_beside, keyed=receipt.keyed) for each in (part.name, name))
            # The part comes last, as when it was written.
            for one, other in zip(old, new, strict=True):
                storage.copy(join(source.uri, one), join(uri, other))
            return replace(part, name=name), new

        try:
            data, files = copy_part(receipt.data)
            lost, more = copy_part(receipt.quarantine)
        except Missing:
            return None  # Somebody removed the part there, so the shard is scored again.
        copied = replace(receipt, epoch=writer.epoch, data=data, quarantine=lost, adopted_from=source.name)
        return copied, [*files, *more]

    with ThreadPoolExecutor(_COPIES) as pool:
        while window := list(islice(lines, _WINDOW)):
            copied = [done for done in pool.map(copy, window) if done is not None]
            # The results bring along what is known about how they were scored.
            remarks = writer.state.about.lacking(source.state.about) if copied else []
            try:
                writer.append([*remarks, *(receipt for receipt, _ in copied)])
            except Fenced:
                # A writer that took over may have swept already.
                storage.delete(join(uri, name) for _, names in copied for name in names)
                raise


def _left_of(source: Revision) -> Iterator[Receipt]:
    """The receipts of a revision, which may be deleted meanwhile: a shard without its receipt is scored again."""
    with suppress(Missing):
        yield from source.ledger.receipts(source.state)


def sweep(writer: LedgerWriter, uri: str, plan: Plan) -> None:
    """Delete the parts of this epoch and older that no committed receipt of the plan names, and what lies beside them.

    Only a published revision is swept, because before that another plan may need a part that this one does not. Parts
    of a newer epoch are left alone, because their receipts may be on the way. Unfinished parts of killed writers are
    deleted, too; if such a writer is still alive, it was replaced, and may fail because of this.
    """
    storage = writer.ledger.storage
    table = outcomes.outcomes(plan, writer.ledger, writer.state)
    writer.check()
    named = {stem_of(name) for kind in (DATA, "quarantine") for _, name in outcomes.parts_of_shards(table, kind)}
    begun = storage.leftovers(uri)
    # Listed afterwards, so that a file that becomes a part in between is found as a part.
    folders = DATA, "quarantine", SIDECARS
    files = (entry.uri for folder in folders for entry in storage.list(join(uri, folder)))
    dead = {file for file in files if stem_of(file) not in named and _is_older(file, writer.epoch)}
    dead |= {leftover for leftover, part in begun.items() if _is_older(part, writer.epoch)}
    if dead:
        storage.delete(sorted(dead))


def _is_older(part: str, epoch: int) -> bool:
    """Whether a part is of this epoch or an older one. False for files that no worker wrote: they are not deleted."""
    written = epoch_of(part)
    return written is not None and written <= epoch


@dataclass(frozen=True, slots=True)
class RevisionFile:
    """A file that the manifest vouches for. file: its name in the revision."""

    file: str
    checksum: str
    size: int


def read_verified(storage: Storage, file: str, expected: str) -> bytes:
    """A file of a published revision. expected: its checksum, by the snapshot or the manifest.

    Raises:
        JobError: it is not the file that was published.
    """
    raw = storage.read(file)
    if checksum(raw) != expected:
        raise JobError(f"{file}: not the file that was published; restore it")
    return raw

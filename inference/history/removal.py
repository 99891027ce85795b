"""The deletion of a run: of all its revisions, and of what lies beside them.

It can be killed at any instant, and done again. Whoever deletes a run holds the ledger of its newest revision. First
this ledger says that the run is being deleted (`Removed`), and from then on the run counts as one that was never begun:
nobody continues a revision, takes over its results or publishes it; a command that scores the run makes the revision
after it. Then the manifests go, by which readers find the parts; then all other files. The line in the ledger goes last
of all, so what is left of a deletion is never taken for a run.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from nightjar.inference.errors import Held
from nightjar.inference.ledger.epochs import LedgerWriter, open_epoch
from nightjar.inference.ledger.holders import this_holder
from nightjar.inference.ledger.ledger import State
from nightjar.inference.ledger.lines import Removed
from nightjar.inference.output.publications import newest
from nightjar.inference.output.revisions import newest_number, revision_uri
from nightjar.inference.run.request import RunRequest
from nightjar.inference.storage.local import remove_empty_folders
from nightjar.inference.storage.protocol import Storage, is_local, join

PRUNE = "prune"
"""The task of a holder that deletes a run."""

_AT_ONCE = 1000
"""The most files that are deleted by one call; between two calls it is checked whether the run is still held."""


@dataclass(frozen=True, slots=True)
class Size:
    """How much lies in storage."""

    revisions: int = 0
    files: int = 0
    bytes: int = 0

    def __add__(self, other: Size) -> Size:
        return Size(self.revisions + other.revisions, self.files + other.files, self.bytes + other.bytes)


def size_of(storage: Storage, run_uri: str) -> Size:
    """How much a run holds."""
    numbers, files, total = set(), 0, 0
    for entry in storage.list(run_uri):
        if found := re.match(r"r(\d+)/", entry.uri[len(run_uri) + 1 :]):
            numbers.add(found[1])
        files, total = files + 1, total + entry.size
    return Size(len(numbers), files, total)


def remove(request: RunRequest, date: str, seen: State | None) -> None:
    """Delete the request's run. date: its logical date. seen: the ledger's state of its newest revision, None if it has
    none.

    Raises:
        Held: Another command holds the run, has written it since it was seen, or shows it to readers; nothing was
            deleted.
    """
    storage, run_uri = request.storage, request.run_uri
    number = newest_number(storage, run_uri)
    if bool(number) != (seen is not None):
        raise Held("another command has begun this run since")
    if seen is not None:
        _remove_revisions(request, number, date, seen)
    else:
        storage.delete(_beside(storage, run_uri))
    if is_local(run_uri):
        remove_empty_folders(run_uri)


def _remove_revisions(request: RunRequest, number: int, date: str, seen: State) -> None:
    storage, run_uri = request.storage, request.run_uri
    known, uri = seen.number, revision_uri(run_uri, number)

    def check(state: State) -> None:
        if state.number != known:
            raise Held("another command has written this run since")

    writer = open_epoch(storage, uri, this_holder(PRUNE), lease_s=request.lease_s, seen=seen, check=check)
    ledger, opened, done = writer.ledger, writer.state.number, False
    try:
        if newest_number(storage, run_uri) != number:
            raise Held("another command has begun a revision of this run since")
        # Asked last, because the holder of a run may be watched for the length of a lease before.
        if request.run_id in newest(storage, request.output).runs:
            raise Held("another command shows this run to readers again")
        writer.append([Removed(date)])
        for each in range(1, number):
            _delete(writer, *_files(storage, revision_uri(run_uri, each)))
        manifests, others = _files(storage, uri)
        ours = ledger.segment_uri(opened)
        _delete(writer, manifests, [file for file in others if not (file.startswith(ledger.uri) and file >= ours)])
        if newest_number(storage, run_uri) == number:
            storage.delete(_beside(storage, run_uri))
        writer.check()
        done = True
    finally:
        writer.stop(release=not done)
    # Nobody appends any more. Whoever comes now finds a holder, and watches it for the length of a lease.
    left = list(ledger.segments(opened - 1))
    marks = [each.number for each in left if any(isinstance(line, Removed) for line in each.lines)]
    storage.delete(ledger.segment_uri(each.number) for each in left if each.number not in marks)
    storage.delete(map(ledger.segment_uri, marks))


def _files(storage: Storage, uri: str) -> tuple[list[str], list[str]]:
    """The manifests of a revision, and its other files."""
    found = sorted({*(entry.uri for entry in storage.list(uri)), *storage.leftovers(uri)})
    first = join(uri, "manifest-")
    return [file for file in found if file.startswith(first)], [file for file in found if not file.startswith(first)]


def _delete(writer: LedgerWriter, manifests: list[str], others: list[str]) -> None:
    """Delete the files of a revision, as long as the run is held: first the manifests, by which readers find others."""
    for files in (manifests, others):
        for begin in range(0, len(files), _AT_ONCE):
            writer.check()
            writer.ledger.storage.delete(files[begin : begin + _AT_ONCE])


def _beside(storage: Storage, run_uri: str) -> list[str]:
    """The files of a run beside its revisions."""
    return [entry.uri for entry in storage.list(run_uri) if "/" not in entry.uri[len(run_uri) + 1 :]]

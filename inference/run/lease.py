"""A step's lease of a revision's ledger, and the check that nobody else has held it since the previous step."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress

from nightjar.inference.errors import Held, StorageError
from nightjar.inference.ledger import endings
from nightjar.inference.ledger.epochs import LedgerWriter, open_epoch
from nightjar.inference.ledger.holders import Holder, this_holder
from nightjar.inference.ledger.ledger import Ledger, State
from nightjar.inference.ledger.lines import Opened
from nightjar.inference.output.revisions import Revision, newest_number, revision_uri
from nightjar.inference.run.request import RunRequest
from nightjar.inference.storage.protocol import Storage


@contextmanager
def leased(
    request: RunRequest, uri: str, task: str, *, keep: bool, after: int | None = None, seen: Revision | None = None
) -> Iterator[LedgerWriter]:
    """Hold the lease of a revision's ledger for this step.

    If the run ends with this step, the ledger gets the reason: an error, an interruption, no publication wanted, or a
    question to a person.

    keep: the next step of the same flow run follows, so nobody else may write in between. after: the epoch of this flow
    run's previous step; nobody else may have written since. seen: the revision, if it was read already.
    """
    writer = open_epoch(
        request.storage,
        uri,
        this_holder(task, request.flow_run, request.engine, request.fresh and task == "score"),
        lease_s=request.lease_s,
        seen=seen.state if seen else None,
        # Before it opens an epoch: the epoch alone would end the step of whoever has followed.
        check=lambda state: _check_succession(request, state, after),
    )
    released, ending = True, None
    try:
        yield writer
        asked = writer.state.question if task == "validate" and not writer.state.decision else None
        released = not keep or asked is not None
        if asked is not None:
            ending = endings.asks(task, asked.gates, asked.at, asked.until)
        elif task == "validate" and released:
            ending = endings.done(task, limited=bool(request.limit))
    except BaseException as error:
        ending = endings.of_error(error, task, publish=request.publish)
        raise
    finally:
        writer.stop(release=released, ending=ending)


def _check_succession(request: RunRequest, state: State, after: int | None) -> None:
    for epoch, other in state.openers:
        if after is not None and epoch > after and other.flow_run != request.flow_run:
            raise taken_over(other)


def taken_over(other: Holder) -> Held:
    """The error of a command that another one has replaced."""
    return Held(f"this run was taken over by {other} while this command stood still; it changes nothing more")


class Succession:
    """Detects that another flow run has followed this one, for a command whose step may never answer.

    Make it before the first step begins. It reads on where it stopped, revision by revision, and keeps only two facts
    of the ledgers, however long these are.
    """

    def __init__(self, storage: Storage, run_uri: str, flow_run: str) -> None:
        self._storage, self._run_uri, self._flow_run = storage, run_uri, flow_run
        self._revision, self._segment = 1, 0
        with suppress(StorageError):  # else reading begins with the first revision
            self._revision = max(1, newest_number(storage, run_uri))
        self._ours = False
        self._successor: Holder | None = None

    def successor(self) -> Holder | None:
        """Who opened this revision, or a newer one, after this flow run; None if nobody did, or if this flow run did so
        again.

        While the storage is away, the last answer is returned.
        """
        with suppress(StorageError):
            newest = newest_number(self._storage, self._run_uri)
            self._read_revision()
            # A revision may be finished or left, and the next one begun, between two calls.
            while self._revision < newest:
                self._revision, self._segment = self._revision + 1, 0
                self._read_revision()
        return self._successor

    def _read_revision(self) -> None:
        ledger = Ledger(self._storage, revision_uri(self._run_uri, self._revision))
        for segment in ledger.segments(self._segment):
            self._segment = segment.number
            for line in segment.lines:
                if isinstance(line, Opened):
                    ours = line.writer.flow_run == self._flow_run
                    self._ours |= ours
                    self._successor = line.writer if self._ours and not ours else None

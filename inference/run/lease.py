"""One step's lease of a revision's ledger, and whether anybody else held it since the step before."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress

from nightjar.inference.errors import Held, StorageError
from nightjar.inference.ledger import endings
from nightjar.inference.ledger.holders import Holder, this_holder
from nightjar.inference.ledger.ledger import Ledger, LedgerWriter, open_epoch
from nightjar.inference.output.revisions import Revision, newest_number, revision_uri
from nightjar.inference.records import known
from nightjar.inference.run.request import RunRequest
from nightjar.inference.storage.protocol import Storage


@contextmanager
def leased(
    request: RunRequest, uri: str, task: str, *, keep: bool, after: int | None = None, seen: Revision | None = None
) -> Iterator[LedgerWriter]:
    """This step's lease. `keep`: the next step of the same flow run follows, so do not let others in between.

    What ends the run with this step is kept: an error, an interruption, or that it is not to be published.
    after: the epoch of this flow run's previous step; nobody else may have written since. seen: the revision, where
    it was read already: its ledger is followed from there on, and its state with it.
    """
    writer = open_epoch(
        request.storage,
        uri,
        this_holder(task, request.flow_run),
        lease_s=request.lease_s,
        seen=(seen.ledger, seen.state) if seen else None,
    )
    released, ending = True, None
    try:
        if after is not None:
            _check_succession(request, writer, after)
        yield writer
        released = not keep
        if task == "validate" and released:
            ending = endings.done(task, limited=bool(request.limit))
    except BaseException as error:
        ending = endings.of_error(error, task, publish=request.publish)
        raise
    finally:
        writer.stop(release=released, ending=ending)


def _check_succession(request: RunRequest, writer: LedgerWriter, after: int) -> None:
    between = [w for epoch, w in writer.state.openers if after < epoch < writer.epoch]
    for other in between:
        if other.flow_run != request.flow_run:
            raise taken_over(other)


def taken_over(other: Holder) -> Held:
    """What a command is told that another one has replaced."""
    return Held(f"this run was taken over by {other} while this command stood still; it changes nothing more")


class Succession:
    """Whether another flow run has followed this one: for who waits for a step and might never hear of it.

    Made before the first step begins. Reads on where it stopped, revision by revision, and keeps two facts of their
    ledgers, however long these are.
    """

    def __init__(self, storage: Storage, run_uri: str, flow_run: str) -> None:
        self._storage, self._run_uri, self._flow_run = storage, run_uri, flow_run
        self._revision, self._segment = 1, 0
        with suppress(StorageError):  # else from the first one on
            self._revision = max(1, newest_number(storage, run_uri))
        self._ours = False
        self._successor: Holder | None = None

    def successor(self) -> Holder | None:
        """Who opened this revision, or a newer one, after this flow run did; None if nobody, or if it did so again.

        While storage does not say, it is who it was.
        """
        with suppress(StorageError):
            self._read_on()
        return self._successor

    def _read_on(self) -> None:
        newest = newest_number(self._storage, self._run_uri)
        self._read_revision()
        # A revision may be left, by `--fresh` or published, and the next begun between two looks.
        while self._revision < newest:
            self._revision, self._segment = self._revision + 1, 0
            self._read_revision()

    def _read_revision(self) -> None:
        ledger = Ledger(self._storage, revision_uri(self._run_uri, self._revision))
        for segment in ledger.segments(self._segment):
            self._segment = segment.number
            for record in segment.records:
                if record["t"] == "opened":
                    self._opened(known(Holder, record["writer"]))

    def _opened(self, writer: Holder) -> None:
        ours = writer.flow_run == self._flow_run
        self._ours |= ours
        self._successor = writer if self._ours and not ours else None

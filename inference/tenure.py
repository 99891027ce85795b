"""One step's tenure of a revision's ledger, and whether anybody else had it since the step before."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from nightjar.inference import endings
from nightjar.inference.errors import Held
from nightjar.inference.ledger import LedgerWriter, open_epoch
from nightjar.inference.request import RunRequest
from nightjar.inference.writers import this_writer


@contextmanager
def tenure(request: RunRequest, uri: str, task: str, *, keep: bool, after: int | None = None) -> Iterator[LedgerWriter]:
    """This step's tenure. `keep`: the same invocation's next step follows, so do not let others in between.

    What ends the run with this step is kept: an error, an interruption, or that it is not to be published.
    after: the epoch of this invocation's previous step; nobody else may have written since.
    """
    writer = open_epoch(request.storage, uri, this_writer(task, request.invocation), lease_s=request.lease_s)
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
        if other.flow_run != request.invocation:
            raise Held(f"this run was taken over by {other} while this command stood still; it changes nothing more")

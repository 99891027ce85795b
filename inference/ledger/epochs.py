"""Epochs decide who may write a ledger: one epoch at a time, whose writer keeps a lease alive.

If the number of a writer's next segment is taken, the writer reads that segment. With its own nonce, the append
succeeded and only the answer was lost. With another nonce, the writer has been replaced, and stops. A create with an
unknown outcome is tried again with the same number and bytes, so that it can succeed only once.
"""

from __future__ import annotations

import contextlib
import threading
import time
import uuid
from collections.abc import Callable, Sequence

from nightjar.inference.errors import AlreadyExists, Fenced, Held, NightjarError, StorageError
from nightjar.inference.ledger.endings import Ended
from nightjar.inference.ledger.holders import Holder, is_dead
from nightjar.inference.ledger.ledger import Ledger, Segment, State, replay
from nightjar.inference.ledger.lines import Closed, Line, Opened
from nightjar.inference.storage.protocol import Storage
from nightjar.inference.storage.retrying import RetryingStorage

LEASE_S = 10.0
"""A writer may be replaced if it creates no segment for this many seconds, by the observer's own clock."""


class LedgerWriter:
    """One epoch. Appends from any thread; keeps the lease alive between appends."""

    def __init__(self, ledger: Ledger, writer: Holder, state: State, lease_s: float = LEASE_S) -> None:
        self.ledger = ledger
        self.writer = writer
        self.state = state
        self.epoch = state.epoch
        self._lease_s = lease_s
        self._lock = threading.Lock()
        self._stopped: NightjarError | None = None
        self._last = time.monotonic()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._keep_alive, daemon=True, name="nightjar-lease")

    def append(self, lines: Sequence[Line]) -> None:
        """Make the lines durable, then fold them into the state.

        Raises:
            Fenced: Another writer replaced this one; none of `lines` was committed.
        """
        with self._lock:
            if self._stopped is not None:
                raise self._stopped
            try:
                segment = _create(self.ledger, self.state.number + 1, self.epoch, self.writer, lines)
            except NightjarError as error:
                # The append was refused, or its outcome is unknown, so this epoch must not write again.
                self._stopped = error
                raise
            self.state.apply(segment)
            self._last = time.monotonic()

    def check(self) -> None:
        """Raise what stopped this writer, if anything did."""
        if self._stopped is not None:
            raise self._stopped

    def start(self) -> LedgerWriter:
        """Begin keeping the lease alive."""
        self._thread.start()
        return self

    def stop(self, *, release: bool, ending: Ended | None = None) -> None:
        """End the lease. With `release` any writer may follow at once; else the same flow run's next task follows.

        ending: how the run ended, if it ended; it is kept with the release.
        """
        self._done.set()
        self._thread.join()
        if release and self._stopped is None:
            # A writer that replaced this one needs no release; any other waits until the lease has lapsed.
            with contextlib.suppress(Fenced, StorageError):
                self.append([*([ending] if ending else []), Closed()])

    def _keep_alive(self) -> None:
        while not self._done.wait(self._lease_s / 20):
            if time.monotonic() - self._last < self._lease_s / 4:
                continue
            try:
                self.append([])
            except NightjarError:
                return  # kept in `_stopped`: the next append or check raises it in the working thread


def _create(ledger: Ledger, number: int, epoch: int, writer: Holder, lines: Sequence[Line]) -> Segment:
    """Create a segment; or find that an earlier try created it, or that another writer has this number."""
    segment = Segment(number, epoch, writer.nonce, uuid.uuid4().hex[:12], tuple(lines))
    try:
        ledger.write(segment)
    except AlreadyExists:
        found = ledger.read(number)
        if (found.nonce, found.append) != (segment.nonce, segment.append):
            raise Fenced(_replaced(found)) from None
        return found
    return segment


def _replaced(found: Segment) -> str:
    who = next((str(line.writer) for line in found.lines if isinstance(line, Opened)), f"writer {found.nonce}")
    return f"this writer was replaced at ledger segment {found.number} by {who}; it stops and changes nothing more"


def open_epoch(
    storage: Storage,
    revision_uri: str,
    writer: Holder,
    *,
    lease_s: float = LEASE_S,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
    seen: State | None = None,
    check: Callable[[State], None] = lambda _: None,
) -> LedgerWriter:
    """Become the revision's writer, after one that closed, died, or let its lease lapse.

    seen: this ledger's state, if it was read already; reading continues from there, and updates the state. check:
    raises if this writer must not follow; it is called before anything is written.

    Raises:
        Held: Another writer is alive; the message says who.
    """
    ledger = Ledger(RetryingStorage(storage), revision_uri)
    state = replay(ledger, seen)
    check_free(ledger, state, writer, lease_s, clock, sleep)
    check(state)
    try:
        segment = _create(ledger, state.number + 1, state.epoch + 1, writer, [Opened(writer)])
    except Fenced:
        # Another writer opened an epoch, or appended, between our read and our create.
        state = replay(ledger, state)
        raise Held(_held(state)) from None
    state.apply(segment)
    return LedgerWriter(ledger, writer, state, lease_s).start()


def check_free(
    ledger: Ledger,
    state: State,
    writer: Holder,
    lease_s: float = LEASE_S,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Check that this writer could open an epoch. Continues `state`.

    Raises:
        Held: Another writer is alive; the message says who.
    """
    succeeds = state.holder is not None and writer.flow_run and state.holder.flow_run == writer.flow_run
    if not succeeds and shows_life(ledger, state, lease_s, clock, sleep):
        raise Held(_held(state))


def shows_life(
    ledger: Ledger,
    state: State,
    lease_s: float,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> bool:
    """Whether the holder creates another segment within a lease; False at once if the holder is known to be dead.

    Continues `state`. Only this process's clock counts, because the holder's may be wrong.
    """
    deadline = clock() + lease_s
    seen = state.number
    while clock() < deadline and state.holder is not None and not is_dead(state.holder):
        sleep(min(0.2, lease_s / 20))
        replay(ledger, state)
        if state.number != seen and state.holder is not None:
            return True
    return False


def _held(state: State) -> str:
    return (
        f"this run is being written by {state.holder or 'another writer'}. "
        "Wait for it, or end that process and repeat the command: it continues where the other stopped."
    )

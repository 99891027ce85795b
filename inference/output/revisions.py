"""Which revision of a run to continue, and what a new one takes over from the last."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

import pyarrow as pa

from nightjar.inference.errors import Fenced, Missing, StorageError
from nightjar.inference.input.plan import Plan
from nightjar.inference.ledger.ledger import (
    Ledger,
    LedgerWriter,
    State,
    replay,
)
from nightjar.inference.output.outcomes import outcomes, part_names
from nightjar.inference.output.parts import epoch_of, part_name
from nightjar.inference.records import Part, Receipt, encode
from nightjar.inference.storage.protocol import Storage, join

_COPIES = 16
_WINDOW = 512


@dataclass(frozen=True)
class Revision:
    """One revision as it lies in storage. `success` is the content of `_SUCCESS`, None until it is finished.

    ledger, state: what was read of it, for whoever goes on reading.
    """

    number: int
    uri: str
    ledger: Ledger
    state: State
    success: dict[str, Any] | None
    _plans: dict[str, Plan] = field(default_factory=dict, repr=False, compare=False)

    @property
    def sealed(self) -> bool:
        """Whether its publication has begun: from then on nothing in it may change."""
        return self.state.intent is not None

    def plan(self, fingerprint: str = "") -> Plan | None:
        """Its newest plan, with its packed shards split as the ledger says; read once.

        fingerprint: under which they are split. Default: that of the plan.
        """
        if self.state.planned is None:
            return None
        file = join(self.uri, self.state.planned["file"])
        if file not in self._plans:
            self._plans[file] = _read_plan(self.ledger.storage, file)
        return self._plans[file].with_splits(self.state.splits, fingerprint or self.state.planned["fingerprint"])[0]

    def begun_by(self, flow_run: str) -> bool:
        """Whether a step of that flow run has opened it."""
        return any(writer.flow_run == flow_run for _, writer in self.state.openers)


def revision_uri(run_uri: str, number: int) -> str:
    """Where a revision lies."""
    return join(run_uri, f"r{number}")


def newest_revision(storage: Storage, run_uri: str) -> Revision | None:
    """The run's highest revision, if it has any."""
    number = newest_number(storage, run_uri)
    return read_revision(storage, run_uri, number) if number else None


def newest_number(storage: Storage, run_uri: str) -> int:
    """That of the run's highest revision; 0 if it has none."""
    names = [name for name in storage.subfolders(run_uri) if re.fullmatch(r"r\d+", name)]
    return max((int(name[1:]) for name in names), default=0)


def is_finished(storage: Storage, run_uri: str, number: int) -> bool:
    """Whether a revision was published and nothing of that is left to do; its ledger is not read for it."""
    try:
        storage.stat(join(revision_uri(run_uri, number), "_SUCCESS"))
    except Missing:
        return False
    return True


def read_revision(storage: Storage, run_uri: str, number: int) -> Revision:
    """One revision by number."""
    uri = revision_uri(run_uri, number)
    try:
        success = json.loads(storage.read(join(uri, "_SUCCESS")))
    except Missing:
        success = None
    ledger = Ledger(storage, uri)
    return Revision(number, uri, ledger, replay(ledger), success)


def read_plan(storage: Storage, uri: str, state: State, fingerprint: str) -> Plan | None:
    """The revision's newest plan, with its packed shards split as the ledger says."""
    if state.planned is None:
        return None
    return _read_plan(storage, join(uri, state.planned["file"])).with_splits(state.splits, fingerprint)[0]


def _read_plan(storage: Storage, file: str) -> Plan:
    try:
        return Plan.from_bytes(storage.read(file))
    except (OSError, pa.ArrowException) as error:
        raise StorageError(
            f"{file}: not a plan this version can read; restore it, or score the run anew with --fresh"
        ) from error


def planned_by(revision: Revision | None) -> str:
    """The fingerprint under which a revision's newest plan was made; '' without one."""
    return str((revision.state.planned or {}).get("fingerprint", "")) if revision else ""


def adopt(writer: LedgerWriter, uri: str, plan: Plan, source: Revision, source_plan: Plan) -> None:
    """Take over the results of shards that are the same in an earlier, published revision.

    Parts are copied inside the storage (hard links on a local disk), so that each revision is complete in
    itself and earlier ones may be deleted.
    """
    storage = writer.ledger.storage
    # What was found damaged here may be so at its source: that is scored anew.
    wanted = set(plan.ids()) - writer.state.committed - set(writer.state.revoked)
    lines = _committed(source, source_plan, wanted)

    def copy(receipt: Receipt) -> Receipt | None:
        try:
            data = _copy(storage, source.uri, uri, receipt.shard, receipt.data, "data", writer.epoch)
            lost = _copy(storage, source.uri, uri, receipt.shard, receipt.quarantine, "quarantine", writer.epoch)
        except Missing:
            return None  # Somebody removed it there: it is scored again.
        return replace(receipt, epoch=writer.epoch, data=data, quarantine=lost, adopted_from=f"r{source.number}")

    with ThreadPoolExecutor(_COPIES) as pool:
        while window := list(islice(lines, _WINDOW)):
            receipts = [receipt for receipt in pool.map(copy, window) if receipt is not None]
            # With them, what is known of how they were scored.
            remarks = writer.state.about.lacking(source.state.about, f"r{source.number}") if receipts else []
            try:
                writer.append([*remarks, *map(encode, receipts)])
            except Fenced:
                # Whoever took over may have swept already.
                storage.delete(join(uri, name) for receipt in receipts for name in _names(receipt))
                raise


def _names(receipt: Receipt) -> list[str]:
    return [part.name for part in (receipt.data, receipt.quarantine) if part is not None]


def _committed(source: Revision, plan: Plan, wanted: set[str]) -> Iterator[Receipt]:
    known = set(plan.ids()) & wanted
    return (receipt for receipt in source.ledger.receipts(source.state) if receipt.shard in known)


def _copy(
    storage: Storage, source: str, target: str, shard: str, part: Part | None, kind: str, epoch: int
) -> Part | None:
    if part is None:
        return None
    name = part_name(kind, shard, epoch)
    storage.copy(join(source, part.name), join(target, name))
    return replace(part, name=name)


def sweep(writer: LedgerWriter, uri: str, plan: Plan) -> int:
    """Delete the parts no committed receipt of the plan names, of this epoch and older; returns how many.

    Of a published revision only: before, another plan may want a part that this one does not. A newer
    epoch's parts are left alone: their receipts may be on their way. The same goes for what was left of parts
    by writers killed in the middle; one of theirs that lives was replaced, and may fail for it.
    """
    storage = writer.ledger.storage
    table = outcomes(plan, writer.ledger, writer.state)
    writer.check()
    named = {name for kind in ("data", "quarantine") for name in part_names(table, kind)}
    begun = [each for kind in ("data", "quarantine") for each in storage.leftovers(join(uri, kind)).items()]
    # Listed after that, so that what becomes a part in between is met as one.
    dead = [
        entry.uri
        for kind in ("data", "quarantine")
        for entry in storage.list(join(uri, kind))
        if f"{kind}/{entry.uri.rsplit('/', 1)[-1]}" not in named and _is_older(entry.uri, writer.epoch)
    ]
    dead += [leftover for leftover, part in begun if _is_older(part, writer.epoch)]
    if dead:
        storage.delete(dead)
    return len(dead)


def _is_older(part: str, epoch: int) -> bool:
    """Whether a part is of this epoch or an older one. A file nobody here wrote is nobody's to delete."""
    written = epoch_of(part)
    return written is not None and written <= epoch

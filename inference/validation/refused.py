"""What the gates saw of a revision that they refused. It is kept beside the revision, for the report of the night."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from nightjar.inference.errors import GateFailed, Missing, StorageError
from nightjar.inference.jsonform import SELDOM, of_json, to_json
from nightjar.inference.ledger.endings import utc
from nightjar.inference.ledger.epochs import LedgerWriter
from nightjar.inference.metrics.figures import Figures
from nightjar.inference.output.revisions import RevisionFile
from nightjar.inference.storage.protocol import Storage, join
from nightjar.inference.validation.audit import Audited
from nightjar.inference.validation.gates import GateResult
from nightjar.inference.validation.manifest import write_profile


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """`refused-<epoch>.json`. gates: all, also those that passed. at: UTC, as ISO 8601. profile: as in `Manifest`."""

    gates: tuple[GateResult, ...]
    metrics: Figures
    at: str
    profile: RevisionFile | None = field(default=None, metadata=SELDOM)


def keep_refused(writer: LedgerWriter, uri: str, refusal: GateFailed, metrics: Figures, audited: Audited) -> None:
    """Keep what the gates saw when they refused the revision. uri: of the revision.

    The refusal is what ends the run: a storage that fails here, too, is a note to it.
    """
    storage, epoch = writer.ledger.storage, writer.epoch
    try:
        profile = write_profile(storage, uri, epoch, bytes(audited.profile)) if audited.profile else None
        kept = Refused(gates=refusal.gates, metrics=metrics, at=utc(), profile=profile)
        storage.create(join(uri, _name(epoch)), json.dumps(to_json(kept), indent=1).encode())
    except StorageError as error:
        refusal.add_note(f"what the gates saw could not be kept for the report: {error}")


def read_refused(storage: Storage, uri: str, epoch: int) -> Refused | None:
    """What the gates saw when they refused the revision in this epoch; None if they did not. uri: of the revision.

    Raises:
        StorageError: The file cannot be read, or another version wrote it.
    """
    file = join(uri, _name(epoch))
    try:
        return of_json(Refused, json.loads(storage.read(file)))
    except Missing:
        return None
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise StorageError(f"{file}: not a list of gates that this version can read") from error


def _name(epoch: int) -> str:
    return f"refused-{epoch:06d}.json"

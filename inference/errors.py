"""Every exception Nightjar raises on purpose.

NightjarError                 * marks what is worth repeating
├── JobError              the job file, its input or its model is wrong: change it, nothing was scored  (exit 2)
├── RunFailed             the run could not be completed; committed work is kept                        (exit 1)
│   ├── ClusterLost *     the cluster lost what worked for the run, or let it stand still
│   ├── PassEnded *       Ray gave up on one pass; what it had started is charged, and the next one begins
│   ├── ShardsFailed      some shards have no result
│   ├── QuarantineFull    more rows cannot be scored than the job allows
│   ├── GateFailed        a check said no: nothing was published
│   ├── AuditFailed       the files written do not prove the cover
│   ├── TakenBack         nothing was left to score, and readers do not see it: a person took it back
│   └── TablesBehind      the run is published; a table of the job does not show it yet
├── Interrupted           a person or a signal stopped the run; committed work is kept                (exit 130)
├── Held                  another writer holds the revision                                             (exit 3)
│   └── Fenced            another writer replaced this one
├── ClusterError          the Ray cluster cannot do what the job asks                                   (exit 2)
├── StorageError          object storage said no
│   ├── AlreadyExists     create-if-absent found the object there
│   ├── Missing           no such object
│   ├── Denied            credentials or permissions
│   └── Transient *       a fault that may pass; the outcome may be unknown
└── ShardError *          one attempt at one shard failed; travels as a `Failed` event, never as a crash
    ├── InputCorrupt      the file cannot be read
    ├── InputChanged      the file changed while, or before, it was read
    ├── SchemaMismatch    the file's columns are not the job's
    ├── LabelInvalid      a label is neither 0 nor 1
    ├── OverBudget        more rows of this shard were quarantined than the whole run may lose
    ├── BatchesBroken     batches fail again and again of which every row can be scored
    ├── OutsideIdentity   a strict job's predictor used something that identity does not cover
    ├── ModelChanged      a file that scores and is not copied was changed in mid-run
    ├── ShardTooSlow *    an attempt took longer than the job gives a shard
    └── OutputInvalid *   the predictor's outputs are not what the job declares

Apart from them stand `ProcessSpoilt` and `Terminated`: no `Exception`, so that no code that catches these holds them
up.

Whether to try again is decided by `repeatable` alone, an attribute of the class: that goes for a request to the
storage, for an attempt at a shard, and for a step of the flow.
Every class survives pickling, because these cross process boundaries.
"""

from __future__ import annotations

from typing import Any


class NightjarError(Exception):
    """Base of every exception raised on purpose.

    exit_code: what the command line returns. repeatable: the same may succeed when it is tried again at once, though
    nobody has mended anything.
    """

    exit_code = 1
    repeatable = False


class JobError(NightjarError):
    """The job file, its input or its model is wrong. The message names the key, file or column."""

    exit_code = 2


class ClusterError(NightjarError):
    """The Ray cluster cannot be reached, or cannot place what the job asks for."""

    exit_code = 2


class RunFailed(NightjarError):
    """The run could not be completed. What was committed stays committed."""


class ClusterLost(RunFailed):
    """The cluster lost a task that worked for the run, or let it stand still, or is lost itself."""

    repeatable = True


class PassEnded(RunFailed):
    """Ray gave up on a pass. The run goes on with another, unless several in a row start nothing."""

    repeatable = True


class ShardsFailed(RunFailed):
    """Some shards have no result. `failed` of `total` shards are missing."""

    def __init__(self, message: str, failed: int = 0, total: int = 0) -> None:
        super().__init__(message, failed, total)
        self.message, self.failed, self.total = message, failed, total

    def __str__(self) -> str:
        return self.message


class QuarantineFull(RunFailed):
    """More rows are quarantined than `retry.max_quarantined` allows."""


class GateFailed(RunFailed):
    """A gate did not pass, so nothing was published. `gates`: every gate's result, a `gates.GateResult` each."""

    def __init__(self, message: str, gates: tuple[Any, ...] = ()) -> None:
        super().__init__(message, gates)
        self.message, self.gates = message, gates

    def __str__(self) -> str:
        return self.message


class AuditFailed(RunFailed):
    """The files written do not prove that every input row is covered exactly once.

    revoked: so many shards lost their receipts for it, and are scored again by whoever continues the run.
    """

    def __init__(self, message: str, revoked: int = 0) -> None:
        super().__init__(message, revoked)
        self.message, self.revoked = message, revoked

    def __str__(self) -> str:
        return self.message


class TakenBack(RunFailed):
    """The run was published before, and rolled back or unpublished since: repeating it does not show it again."""


class TablesBehind(RunFailed):
    """What is published stays published, but a table of `output.tables` does not show it. The message says how to."""


class Interrupted(NightjarError):
    """A person or a signal stopped the run; the message says which. What was committed stays committed."""

    exit_code = 130


class Held(NightjarError):
    """Another writer holds the revision; the message says who, where and since when."""

    exit_code = 3


class Fenced(Held):
    """Another writer replaced this one while it worked."""


class StorageError(NightjarError):
    """Object storage refused or failed. The message names the object."""


class AlreadyExists(StorageError):
    """Create-if-absent found an object at that name (perhaps one's own, its answer lost)."""


class Missing(StorageError):
    """There is no object at that name."""


class Denied(StorageError):
    """Credentials are missing, wrong or not allowed to do this."""


class Transient(StorageError):
    """A fault that may pass: time-outs, server errors, dropped connections."""

    repeatable = True


class ShardError(NightjarError):
    """One attempt at one shard failed."""

    repeatable = True


class InputCorrupt(ShardError):
    """The file's bytes are not a readable file of its format."""

    repeatable = False


class InputChanged(ShardError):
    """The file is not the one that was planned: size or version differ."""

    repeatable = False


class SchemaMismatch(ShardError):
    """The file lacks a column of the job, or has it with another type."""

    repeatable = False


class LabelInvalid(ShardError):
    """A label is neither 0 nor 1 nor null."""

    repeatable = False


class OverBudget(ShardError):
    """This shard alone quarantined more rows than the run may lose. `row`: the first of them, its index in its file."""

    repeatable = False

    def __init__(self, message: str, row: int = -1) -> None:
        super().__init__(message, row)
        self.message, self.row = message, row

    def __str__(self) -> str:
        return self.message


class BatchesBroken(ShardError):
    """Batches fail again and again of which every row can be scored: row by row it would take a night."""

    repeatable = False


class OutsideIdentity(ShardError):
    """The job says `identity: strict`, and its predictor used something that identity does not cover."""

    repeatable = False


class ModelChanged(ShardError):
    """A file that scores is read where it lies, and was changed while the run went on: the run ends."""

    repeatable = False


class ShardTooSlow(ShardError):
    """The attempt took longer than `retry.shard_s`."""


class OutputInvalid(ShardError):
    """Outputs are missing, of the wrong length, or do not fit their declared type."""


class Terminated(KeyboardInterrupt):
    """SIGTERM, which ends a command as Ctrl-C does."""


class ProcessSpoilt(BaseException):
    """This process can do no more work and must end: its device is lost, or it was interrupted while it hung.

    cause: a word for counting. message: a sentence for reading.
    """

    def __init__(self, cause: str, message: str) -> None:
        super().__init__(cause, message)
        self.cause, self.message = cause, message

    def __str__(self) -> str:
        return f"{self.cause}: {self.message}"

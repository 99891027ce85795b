"""Every exception Nightjar raises on purpose.

NightjarError
├── JobError (2), ClusterError (2), TablesBehind (4), Interrupted (130)
├── RunFailed: ClusterLost *, PassEnded *, ShardsFailed, QuarantineFull, Rejected, AuditFailed, TakenBack
│   └── GateFailed: Unanswered (5)
├── Held (3): Fenced (3)
├── StorageError: AlreadyExists, Missing, Denied, Damaged, Transient *
└── ShardError: InputCorrupt, InputChanged, SchemaMismatch, LabelInvalid, OverBudget, BatchesBroken, OutsideIdentity,
    │           ModelChanged, EndpointRefused, EndpointFailed *, ShardTooSlow *, SourceFailed *
    └── OutputInvalid *: PromptInvalid *, AnswerInvalid *
        └── Unaligned *: LengthInvalid *, IndexInvalid *

* marks errors that are worth repeating. A number is the exit code of the command; without one it is 1.
`ProcessSpoilt` and `Terminated` are not in this tree, and are no `Exception`, so that no `except Exception` stops them.

Only the class attribute `repeatable` decides whether to try again: a request to the storage, an attempt at a shard, or
a step of the flow. Every class survives pickling, because errors cross process boundaries.
"""

from __future__ import annotations

from typing import Any, TypeVar

from nightjar.inference.messages import counted, raised_at, traceback_of


class NightjarError(Exception):
    """Base of every exception raised on purpose.

    exit_code: the exit code of the command line. repeatable: another try at once may succeed without any change.
    traceback: of the user's code that raised, if it was that; `--verbose` shows it.
    """

    exit_code = 1
    repeatable = False
    traceback = ""

    def __str__(self) -> str:
        """The message. Some errors have more arguments, so that they can be pickled."""
        return str(self.args[0]) if self.args else ""


class JobError(NightjarError):
    """The job file, its input or its model is wrong. The message names the key, file or column."""

    exit_code = 2


class ClusterError(NightjarError):
    """The Ray cluster cannot be reached, or has no room for the resources that the job asks for."""

    exit_code = 2


class RunFailed(NightjarError):
    """The run could not be completed. What was committed stays committed."""


class ClusterLost(RunFailed):
    """The cluster lost a task of the run, let it stand still, or is lost itself."""

    repeatable = True


class PassEnded(RunFailed):
    """A pass ended before its work was done. The run begins another, unless several passes in a row start nothing."""

    repeatable = True


class ShardsFailed(RunFailed):
    """Some shards have no result; the message says how many."""


class QuarantineFull(RunFailed):
    """More rows are quarantined than `retry.max_quarantined` allows."""


class GateFailed(RunFailed):
    """A gate did not pass, so nothing was published. `gates`: every gate's result, a `gates.GateResult` each."""

    def __init__(self, message: str, gates: tuple[Any, ...] = ()) -> None:
        super().__init__(message, gates)
        self.gates = gates


class Unanswered(GateFailed):
    """Gates that did not pass ask a person, so nothing is published yet. `gates`: every gate's result. question: as
    `Question.name`.
    """

    exit_code = 5

    def __init__(self, message: str, gates: tuple[Any, ...] = (), question: str = "") -> None:
        super().__init__(message, gates)
        self.args = (message, gates, question)
        self.question = question


class Rejected(RunFailed):
    """A person said no to what gates asked, or nobody answered in time. Nothing was published."""


class AuditFailed(RunFailed):
    """The files written do not prove that every input row is covered exactly once.

    revoked: the number of shards that lost their receipts; the next command that continues the run scores them again.
    """

    def __init__(self, message: str, revoked: int = 0) -> None:
        super().__init__(message, revoked)
        self.revoked = revoked


class TakenBack(RunFailed):
    """A run was published, and rolled back or unpublished since. Repeating a command shows no result of it again.

    run: its name. It is another one than the run that ends so, if that took over its results.
    """

    def __init__(self, message: str, run: str) -> None:
        super().__init__(message, run)
        self.run = run


class TablesBehind(NightjarError):
    """The run stays published, but tables of `output.tables` do not show it. The message names the command to run.

    behind: why each table does not show it, a sentence each.
    """

    exit_code = 4

    def __init__(self, message: str, behind: tuple[str, ...] = ()) -> None:
        super().__init__(message, behind)
        self.behind = behind


class Interrupted(NightjarError):
    """A person or a signal stopped the run; the message says which. What was committed stays committed."""

    exit_code = 130


class Held(NightjarError):
    """Another writer holds the revision; the message says who, where and since when."""

    exit_code = 3


class Fenced(Held):
    """Another writer replaced this one while this one worked."""


class StorageError(NightjarError):
    """The storage refused or failed. The message names the object."""


class AlreadyExists(StorageError):
    """Create-if-absent found an object of that name (perhaps this writer's own, if the first answer was lost)."""


class Missing(StorageError):
    """There is no object at that name."""


class Denied(StorageError):
    """Credentials are missing, wrong or not allowed to do this."""


class Damaged(StorageError):
    """A file that Nightjar wrote cannot be read: it is not as it was written, or another version wrote it."""


class Transient(StorageError):
    """An error that may pass: a time-out, a server error, a dropped connection."""

    repeatable = True


class ShardError(NightjarError):
    """One attempt at one shard failed. It travels as a `Failed` event, never as a crash."""


class InputCorrupt(ShardError):
    """The file cannot be read as a file of its format."""


class SourceFailed(ShardError):
    """The user's own source (`input.format: "module:Name"`) raised an error that is none of ours."""

    repeatable = True


class InputChanged(ShardError):
    """The file's size or version is not that of the plan."""


class SchemaMismatch(ShardError):
    """The file lacks a column of the job, or has it with another type."""


class LabelInvalid(ShardError):
    """A label is of no value that the job's label may have."""


class OverBudget(ShardError):
    """This shard alone quarantined more rows than the whole run may. row: index of the first such row in its file."""

    def __init__(self, message: str, row: int = -1) -> None:
        super().__init__(message, row)
        self.row = row


class BatchesBroken(ShardError):
    """Batches fail again and again, though each of their rows can be scored alone: row by row would take too long. Or a
    batch had not one value for each row, though smaller batches of the same rows have.
    """


class OutsideIdentity(ShardError):
    """The job says `identity: strict`, and its predictor used something that identity does not cover."""


class ModelChanged(ShardError):
    """A file that scores was not copied into the snapshot, and was changed during the run: the run ends."""


class ShardTooSlow(ShardError):
    """The attempt took longer than `retry.shard_s`."""

    repeatable = True


class OutputInvalid(ShardError):
    """Outputs are missing, of the wrong length, or do not fit their declared type; or what a preprocess returned is no
    input for the model.
    """

    repeatable = True


class Unaligned(OutputInvalid):
    """What was returned for a batch does not say which row has which value.

    found: what was returned, as a sentence. how: what to return instead.
    """

    def __init__(self, found: str, how: str) -> None:
        super().__init__(found, how)
        self.found, self.how = found, how

    def __str__(self) -> str:
        return f"{self.found}: {self.how}"


class LengthInvalid(Unaligned):
    """There is not one value for each row.

    what: whose values these are. values: how many there are. rows: of the batch. how: more on what to return.
    """

    def __init__(self, what: str, values: int, rows: int, how: str = "") -> None:
        super().__init__(
            f"{what} has {counted(values, 'value')} for a batch of {counted(rows, 'row')}",
            f"return one for each input row, in the same order{how}",
        )
        self.args = what, values, rows, how


class IndexInvalid(Unaligned):
    """The index of a pandas object is not the batch's."""


class PromptInvalid(OutputInvalid):
    """A row cannot be made into a prompt, or the model refuses the prompt. It costs the row."""


class AnswerInvalid(OutputInvalid):
    """A language model's answer has no outputs: it is cut, no JSON, or does not follow the schema. It costs the row."""


class EndpointFailed(ShardError):
    """A language model, or the endpoint that has it, did not answer, for no fault of a row."""

    repeatable = True


class EndpointRefused(ShardError):
    """The endpoint refuses what all requests have in common, as a key or the model's name: the run ends."""


class Terminated(KeyboardInterrupt):
    """SIGTERM came. It ends a command as Ctrl-C does."""


class ProcessSpoilt(BaseException):
    """This process cannot work any more and must end: its device is lost, or it was interrupted while it hung.

    cause: one word, by which errors are counted. message: a sentence for people.
    """

    def __init__(self, cause: str, message: str) -> None:
        super().__init__(cause, message)
        self.cause, self.message = cause, message

    def __str__(self) -> str:
        return f"{self.cause}: {self.message}"


def raised(error: BaseException, *, installed: bool = False) -> str:
    """What the user's code raised, and where: "KeyError: 'region' (predict.py:12, in score)"."""
    return f"{type(error).__name__}: {error}{raised_at(error, installed=installed)}"


_E = TypeVar("_E", bound=NightjarError)


def traced(error: _E, cause: BaseException) -> _E:
    """The error, with the traceback of the user's code that raised its cause."""
    error.traceback = getattr(cause, "traceback", "") or traceback_of(cause)
    return error

"""The evaluations of a published revision by labels that came after it: files beside the manifest, which never changes.

`evaluations/00000001.json` is created if absent and never rewritten; the newest one counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from nightjar.inference.errors import AlreadyExists, StorageError
from nightjar.inference.jsonform import SELDOM, of_bytes, to_bytes
from nightjar.inference.metrics.figures import Evaluation, Figures, SliceFigures
from nightjar.inference.output.revisions import revision_in
from nightjar.inference.storage.protocol import Storage, join, numbered, read_control
from nightjar.inference.validation.gates import GateResult

FOLDER = "evaluations"
_MAX_TRIES = 100


@dataclass(slots=True, kw_only=True)
class LabelsJoined:
    """How labels found the rows of a night, in rows; counted while they are joined."""

    rows: int = 0
    """Rows of the night."""

    labelled: int = 0
    """Rows of the night that have a label."""

    share: float = 0.0
    """The share of the night's rows that have a label; 0 until all labels are joined."""

    keyless: int = 0
    """Rows of the night with a null in their key, which no label can find."""

    repeated_rows: int = 0
    """Rows of the night whose key an earlier row has; each of these rows got the label of its key."""

    labels: int = 0
    """All labels that were read."""

    null_labels: int = 0
    """Labels without a value; NaN is no value."""

    unmatched_labels: int = 0
    """Labels with a value, whose key no row of the night has."""

    repeated_labels: int = 0
    """Labels that say again what another label of their key says; the labels of one key count once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LateEvaluation:
    """`evaluations/<number>.json`: one evaluation of a published revision by labels that came later."""

    number: int
    """The number of the evaluation among those of the revision, from 1; 0 until the evaluation is kept."""

    at: str
    """When the labels were evaluated, in UTC, as ISO 8601."""

    job: str
    """The name of the job."""

    run_id: str
    """The name of the run."""

    date: str
    """The run's logical time: a day as `2026-11-28`, or an instant in UTC as `2026-11-28T0530`."""

    revision: int
    """The number of the published revision."""

    labels: str
    """Where the labels were, for people: their list, or their first location and the number of the others."""

    key: tuple[str, ...]
    """The columns by which the labels found their rows."""

    joined: LabelsJoined
    """How many labels and rows found each other."""

    gates: tuple[GateResult, ...]
    """The verdicts of the job's checks on metrics, which change nothing of the publication."""

    evaluation: Evaluation
    """The figures of the labels against the scores."""

    slices: Mapping[str, SliceFigures] = field(default_factory=dict, metadata=SELDOM)
    """Column → its slices, as in `Figures`."""

    def instead_of(self, found: Figures) -> Figures:
        """The figures of the night, with these in place of what its own labels say."""
        return replace(found, evaluation=self.evaluation, slices=self.slices)


def keep(storage: Storage, revision: str, made: LateEvaluation) -> LateEvaluation:
    """Keep an evaluation, under the next number. revision: the URI of the revision's folder. Returns it, numbered.

    Raises:
        StorageError: It could not be kept.
    """
    number = _newest(storage, revision)
    for _ in range(_MAX_TRIES):
        number += 1
        numbered_ = replace(made, number=number)
        try:
            storage.create(_uri(revision, number), to_bytes(numbered_, indent=1))
        except AlreadyExists:
            continue  # another command keeps one at the same time
        return numbered_
    raise StorageError(f"{join(revision, FOLDER)}: others are kept faster than this one; repeat the command")


def latest(storage: Storage, revision: str) -> LateEvaluation | None:
    """The newest evaluation of a revision; None if there is none.

    Raises:
        Damaged: It cannot be read.
    """
    number = _newest(storage, revision)
    if not number:
        return None
    return read_control(
        storage,
        _uri(revision, number),
        partial(of_bytes, LateEvaluation),
        "an evaluation",
        "delete it, and `nightjar evaluate JOB` makes another one",
    )


def by_latest(storage: Storage, revision: str, found: Figures) -> Figures:
    """A revision's figures, with those of its newest evaluation in place of those that its manifest has."""
    made = latest(storage, revision)
    return made.instead_of(found) if made else found


def evaluation_uri(output: str, made: LateEvaluation) -> str:
    """Where an evaluation was kept. output: the URI of the job's output."""
    return _uri(revision_in(output, made.run_id, made.revision), made.number)


def _newest(storage: Storage, revision: str) -> int:
    """The highest number of an evaluation; 0 if there is none."""
    return max(numbered(storage, join(revision, FOLDER), ".json"), default=0)


def _uri(revision: str, number: int) -> str:
    return join(revision, FOLDER, f"{number:08d}.json")

"""Evaluates a published night by labels that came after it, and keeps the result with it; the night stays as it is."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pyarrow as pa

from nightjar.inference.errors import JobError, LabelInvalid, ShardError
from nightjar.inference.history.joinkeys import NOT_CARRIED, check_columns, check_kinds, declared
from nightjar.inference.history.joins import Join
from nightjar.inference.input.files import input_files
from nightjar.inference.input.plan import discover, make_plan
from nightjar.inference.input.sources.reading import read_piece, source_of
from nightjar.inference.job.input import named_input
from nightjar.inference.job.label_sections import LateLabels
from nightjar.inference.job.locations import fill
from nightjar.inference.job.model import Job
from nightjar.inference.ledger.endings import utc
from nightjar.inference.messages import clip
from nightjar.inference.metrics.evaluator import Evaluator
from nightjar.inference.metrics.slices import Slices, check_slices
from nightjar.inference.metrics.states import Metrics
from nightjar.inference.output import nights
from nightjar.inference.output.nights import blocks
from nightjar.inference.output.revisions import revision_in
from nightjar.inference.run.request import RunRequest, storage_of
from nightjar.inference.storage.protocol import Storage
from nightjar.inference.validation.evaluations import LateEvaluation, keep
from nightjar.inference.validation.gates import Evidence, Found, evaluate
from nightjar.inference.validation.gates.rules import late_gates_of


def evaluate_late(
    request: RunRequest, run_id: str | None, date: str | None, *, labels: Sequence[str] = ()
) -> LateEvaluation:
    """Join labels to the rows of a published night, and keep the night's metrics with it.

    run_id, date: the night; default: the latest one. labels: their places; default: `late_labels.input` of the job.

    Raises:
        JobError: The output belongs to another job, the night is not published, it or the labels lack a column, no
            label finds a row, or a label is wrong or contradicts another.
        StorageError: The storage refused or failed.
    """
    job = request.job
    request.check_owner()
    if (late := job.late_labels) is None:
        raise JobError("late_labels: is required: which columns do a label and its row have in common, and its label?")
    key, label = late.key, late.label
    labelled = job.model_copy(update={"label": label})
    compared = Slices.for_job(labelled)
    state = compared.whole
    night = nights.published(request.storage, request.output, run_id, date)
    rows = night.dataset().schema
    if not night.rows:
        raise JobError(f"the run {night.run_id!r} has no rows that a label could find")
    needed = _needed(job, key, state, rows)
    said = _Labels(job, late, labels, night.date, rows, state)
    with tempfile.TemporaryDirectory(prefix="nightjar-evaluate-") as folder:
        match = Join(Path(folder), key, night.rows)
        for table, found in match.joined(blocks(night, [*key, *needed]), needed, said.blocks(), label):
            compared.update(table, found)
    _check_joined(match, night.run_id, said.shown)
    evidence = Evidence(Found(0, match.counts.rows), metrics=Metrics(slices=compared))
    gates = evaluate(late_gates_of(job, label), evidence)
    made = LateEvaluation(
        number=0,
        at=utc(),
        job=job.name,
        run_id=night.run_id,
        date=night.date,
        revision=night.revision,
        labels=said.shown,
        key=key,
        joined=replace(match.counts, share=match.counts.labelled / match.counts.rows),
        gates=gates,
        evaluation=state.results(),
        slices=compared.results(),
    )
    return keep(request.storage, revision_in(request.output, night.run_id, night.revision), made)


def _needed(job: Job, key: Sequence[str], state: Evaluator, rows: pa.Schema) -> list[str]:
    """The columns of the published rows that are compared with labels, or divide them. Checks that they are there."""
    needed = {**dict.fromkeys(job.slicing, "evaluation.slices"), **state.columns}
    for named, columns in (("key", key), *((named, (name,)) for name, named in needed.items())):
        check_columns(named, columns, rows.names, "the published rows", NOT_CARRIED)
    types = dict(zip(rows.names, rows.types, strict=True))
    state.check_columns(types)
    check_slices(job, types)
    return list(needed)


class _Labels:
    """The labels of one night. shown: where they are, for people."""

    def __init__(
        self, job: Job, late: LateLabels, places: Sequence[str], date: str, rows: pa.Schema, state: Evaluator
    ) -> None:
        """places: of the command line, so relative to the current folder; none for those of `late`. date, rows: of the
        night. state: an evaluator as that which compares them.
        """
        key, self._state, self._typed = late.key, state, False
        given = named_input(late.input, places, "--labels") if places else late.input
        if given is None:
            raise JobError("where are the labels? Name the place: --labels URI, or late_labels.input in the job file")
        given = given.at(lambda uri: fill(uri, date))
        self._job = job.model_copy(update={"input": given})
        self.shown = given.shown
        self._storage: Storage = storage_of(self._job)
        with _of_labels():
            one = given.uri if given.format else next(input_files(self._storage, self._job)).uri
            if source_of(self._job, one).unseen is not None:
                # A guess would make a number of 00123, which is the text of a key.
                types = {name: declared(rows.field(name).type) for name in key}
                typed = {name: type_ for name, type_ in types.items() if type_}
                given = given.model_copy(update={"declared": {**typed, **given.declared}})
                self._job, self._typed = self._job.model_copy(update={"input": given}), bool(typed)
            self._found = discover(self._storage, self._job)
        schema, compared = self._found.schema, self._job.input.compared()
        for named, columns in (("key", key), ("label", (state.label,)), ("late_labels.input.where", compared)):
            check_columns(named, columns, schema.names, f"the labels at {self.shown}")
        self._schema = pa.schema([schema.field(name) for name in dict.fromkeys((*key, state.label, *compared))])
        check_kinds(key, rows, self._schema)

    def blocks(self) -> Iterator[tuple[str, pa.Table]]:
        """The labels, each block with its file."""
        for shard in make_plan(self._found, self._job, "").shards():
            for piece in shard.pieces:
                with _of_labels():
                    read = read_piece(self._storage, self._job, piece, self._schema)
                if read.failures:
                    row = min(read.failures)
                    as_rows = "; a key is read in the type of the published rows" if self._typed else ""
                    raise JobError(
                        f"labels: row {piece.first_row + read.index(row)} of {piece.uri} cannot be read: "
                        f"{read.failures[row].message}{as_rows}"
                    )
                try:
                    # Once labels have found their rows, nobody knows their file any more.
                    self._state.check(read.table[self._state.label])
                except LabelInvalid as error:
                    raise JobError(f"labels: {error} (in {piece.uri})") from error
                yield piece.uri, read.table


@contextmanager
def _of_labels() -> Iterator[None]:
    """Errors about the input are about that of the labels here."""
    try:
        yield
    except (JobError, ShardError) as error:
        raise JobError(clip(f"labels: {str(error).removeprefix('input.uri: ')}")) from error


def _check_joined(match: Join, run_id: str, labels: str) -> None:
    """Check that a label found a row: if none did, the metrics say nothing, and something is wrong."""
    counts = match.counts
    if counts.labelled:
        return
    if not counts.labels - counts.null_labels:
        raise JobError(f"labels: no label at {labels} has a value yet")
    mine, theirs = (each or "no key at all" for each in match.some_key)
    raise JobError(
        f"labels: no label at {labels} has the key of a row of the run {run_id!r}: a row has {mine}, a label has "
        f"{theirs}; look whether they are of this night, and whether both write the key alike"
    )

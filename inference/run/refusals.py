"""Checks before anything starts that a run's job, input, output and model fit together; and what preflight noticed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from itertools import combinations, product
from os.path import realpath
from pathlib import Path

import pyarrow as pa
from pyarrow.parquet import ParquetWriter

from nightjar.inference.arrow_types import alike, not_told_apart
from nightjar.inference.engine import LOCAL
from nightjar.inference.errors import JobError, LabelInvalid, Missing, ShardError, StorageError
from nightjar.inference.identity.unpacking import place_model
from nightjar.inference.input.files import with_list
from nightjar.inference.input.listing import folders, input_folder, takes_in
from nightjar.inference.input.plan import BEGINNING, Discovery, discover
from nightjar.inference.input.sources.reading import read_sample
from nightjar.inference.job.checks import DriftCheck
from nightjar.inference.job.model import Job, is_pattern
from nightjar.inference.job.modeljob import model_jobs
from nightjar.inference.job.seams import OWN
from nightjar.inference.job.where import condition
from nightjar.inference.ledger.epochs import LedgerWriter
from nightjar.inference.ledger.lines import Line, Preflight
from nightjar.inference.messages import nearest, nearest_or_all
from nightjar.inference.metrics.slices import TASKS, evaluator_of
from nightjar.inference.output import targets
from nightjar.inference.predictors import check_keys, input_columns, model_columns
from nightjar.inference.predictors.adapter import adapter_of, naming
from nightjar.inference.records import Piece, Seen
from nightjar.inference.run.request import RunRequest, check_same_run
from nightjar.inference.scoring.preflight import Loaded
from nightjar.inference.scoring.rowkeys import has_key
from nightjar.inference.storage.protocol import Storage, is_local, join
from nightjar.inference.validation.gates.rules import check_label_and_gates
from nightjar.inference.witness.seen import UNSURE, sentences

LABEL_ROWS = 4096
"""The labels that are checked at each place; this needs no model."""


def check_request(request: RunRequest) -> Discovery:
    """Check what can be checked without looking into every file. Returns the first files of the input.

    Raises:
        JobError: as `check_without_input`; or the input is empty, a column is missing or clashes, or a table cannot
            take the columns.
    """
    check_without_input(request)
    job = request.job
    beginning = discover(request.storage, job, BEGINNING)
    check_columns(job, beginning.schema, beginning.files["uri"].to_pylist())
    targets.check(request.storage, job, beginning.schema, request.date)
    return beginning


def check_without_input(request: RunRequest) -> None:
    """Check what can be checked before the input has come.

    Raises:
        JobError: the model's adapter does not take what the job says of it; the output is another job's or inside the
            input; input, output or a table is inside a model; or the model cannot be read or would run code when
            loaded.
    """
    check_keys(request.job)
    if request.engine == LOCAL and (installs := request.job.resources.runtime_env.pip):
        raise JobError(
            f"resources.runtime_env: {installs[0]} is installed by Ray for the run's processes, and --engine local "
            "starts none; leave --engine local out, or install it here and take it out of the job"
        )
    _check_places(request)
    request.check_owner()
    with suppress(Missing):
        check_same_run(request)
    check_model(request)


def check_columns(job: Job, schema: pa.Schema, uris: Sequence[str]) -> None:
    """Check that the input has every column that the job names, with a type that fits its use.

    uris: some of the input's files.
    """
    _check_declared(job, schema, uris)
    if job.input.where:
        condition(job.input.where, schema)
    seen = input_columns(job, schema)
    _check_carried(job, schema.names)
    _check_profiled(job, schema.names)
    carried = job.carried(schema.names)
    for name in (*seen, *carried, *filter(None, [job.label])):
        if schema.names.count(name) > 1:
            raise JobError(f"input.uri: the column {name!r} is there twice; rename or remove one of the two")
    if job.label and job.label not in schema.names:
        raise JobError(f"label: {job.label!r} is not a column of the input{nearest_or_all(job.label, schema.names)}")
    if job.label and not TASKS[job.evaluation.task].takes(schema.field(job.label).type):
        raise JobError(
            f"label: {job.label!r} is {schema.field(job.label).type}; a label is {TASKS[job.evaluation.task].LABELS} "
            f"(evaluation.task: {job.evaluation.task})"
        )
    for each in model_jobs(job):
        features = model_columns(each, schema)
        _check_reusable(job, [schema.field(name) for name in features])
        if each.preprocess is None:
            with naming(each):
                adapter_of(each).check_columns(each, pa.schema([schema.field(name) for name in features]))
    for name in carried:
        if two := alike([schema.field(name)]):
            raise JobError(f"carry: of the fields of {name!r} {not_told_apart(*two)}; leave the column out")
        try:
            ParquetWriter(pa.BufferOutputStream(), pa.schema([schema.field(name)])).close()
        except (pa.ArrowNotImplementedError, OSError):
            raise JobError(f"carry: {name!r} is {schema.field(name).type}, which a Parquet file cannot hold") from None
    check_label_and_gates(job, schema)


def _check_reusable(job: Job, features: Sequence[pa.Field]) -> None:
    """Check that rows of these columns have keys, if the job reuses rows."""
    for field in features if job.reuse == "rows" else ():
        if not has_key(field.type):
            raise JobError(
                f"reuse: rows of {field.name!r}, which is {field.type}, cannot be compared with those of earlier "
                "nights; convert the column, or write reuse: shards"
            )


def _check_declared(job: Job, schema: pa.Schema, uris: Sequence[str]) -> None:
    """Check that the files have the columns of `input.schema`, and that a column of their paths is declared as such."""
    there = {key: value for uri in uris for key, (value, *_) in folders(uri).items()}
    features = {
        f"{key}.features": each.model.features or ()
        for key, each in zip(job.models_by_key(), model_jobs(job), strict=True)
        if each.preprocess is None
    }
    named = {"input.schema": job.input.declared, **features, "carry": job.carry}
    for key, names in {**named, "label": filter(None, [job.label])}.items():
        for name in names:
            if name not in schema.names and name in there:
                raise JobError(
                    f"{key}: {name!r} is not a column of the input, but a folder of its paths ({name}={there[name]}); "
                    f"to have it as a column, write input.partitions: {{{name}: string}}"
                )
    for name in job.input.declared:
        if name not in schema.names:
            raise JobError(f"input.schema: {name!r} is not a column of the input{nearest_or_all(name, schema.names)}")


def _check_carried(job: Job, names: Sequence[str]) -> None:
    """Check that the input has the columns to carry, and that none of them is a column of the output already."""
    for entry in job.carry:
        if entry not in names and not any(fnmatchcase(name, entry) for name in names):
            what = (
                f"no column of the input matches {entry!r}"
                if is_pattern(entry)
                else f"{entry!r} is not a column of the input"
            )
            raise JobError(f"carry: {what}{nearest_or_all(entry, names)}")
    try:
        job.check_columns(job.carried(names))
    except ValueError as error:
        raise JobError(str(error)) from None


def _check_profiled(job: Job, names: Sequence[str]) -> None:
    """Check that there are the columns to profile. names: all columns of the input."""
    known = {*job.output_types(), *names}
    asked = {} if isinstance(job.profile.columns, str) else {"profile": job.profile.columns}
    asked |= {f"{key}.drift": check.columns for key, check in job.checks_of(DriftCheck).items()}
    for key, columns in asked.items():
        for name in columns:
            if name not in known:
                raise JobError(f"{key}: {name!r} is neither an output nor a column of the input{nearest(name, known)}")


def check_model(request: RunRequest) -> None:
    """Look at the models' files.

    Raises:
        JobError: it cannot be read, or loading it would run code and the job does not allow that.
    """
    for each, taken in zip(model_jobs(request.job), request.scoring.models, strict=False):
        if each.model.path is None or each.model.framework is OWN:
            continue
        local = each.model.path  # checked at the job's path; a process that loads its copy checks again
        with naming(each):
            if not is_local(local):
                local, _ = place_model(request.storage, taken, Path(request.cache), local)
            adapter_of(each).inspect(each, local)


def _check_places(request: RunRequest) -> None:
    """Check that input, output, tables and models have places of their own: a run would score its own predictions, a
    vacuum deletes what a table does not list, and each new file in a model's folder makes it another model.
    """
    target = request.output
    job = with_list(request.storage, request.job)
    tables = {f"output.tables[{index}].{table.kind}": table.uri for index, table in enumerate(job.output.tables)}
    written = {"output.uri": target, **tables}
    for (other, above), (key, place) in combinations(written.items(), 2):
        if _within(place, above) or _within(above, place):
            raise JobError(f"{key}: {place} and {other} {above} lie in each other; give the table a place of its own")
    parts = [
        join(target, folder, "data") for folder in (f"runs/{request.run_id}/r1", "latest", f"dates/{request.date}")
    ]
    for source, (key, place) in product(job.input.uris, written.items()):
        files = (join(folder, "part.parquet") for folder in (parts if place == target else [place]))
        if _within(input_folder(source), place) or any(takes_in(source, file) for file in files):
            raise JobError(
                f"{key}: {place} and {job.input.key} {source} lie in each other, so that a run would score "
                "predictions; keep them apart"
            )
    named = [*written.items(), *((job.input.key, input_folder(source)) for source in job.input.uris)]
    for (key, model), (name, place) in product(job.models_by_key().items(), named):
        folder = (model.path or "").rstrip("/")
        # An object store has no links.
        linked = is_local(place) and _within(realpath(place), realpath(folder))
        if folder and (_within(place, folder) or linked):
            raise JobError(
                f"{key}.path: {folder} holds {name} {place}: each new file there would make the model another one, "
                "and everything would be scored again; move the model's files to a folder of their own, and name "
                f"that in {key}.path"
            )
    with suppress(Missing):
        request.storage.stat(target)
        raise JobError(f"output.uri: {target} is a file; write a folder")


def _within(path: str, folder: str) -> bool:
    return f"{path}/".startswith(f"{folder}/")


def check_labels(
    storage: Storage, job: Job, schema: pa.Schema, places: Iterable[Piece], *, all_alike: bool = False
) -> None:
    """Check the labels in rows of each place. This needs no model and no cluster.

    schema: the input's columns. all_alike: stop at the first place with right labels, because a bad file fails only
    itself, but a wrong label column would fail the night.

    Raises:
        JobError: A label is of no value that the job's label may have. Names the file.
    """
    evaluation = evaluator_of(job)
    if evaluation is None:
        return
    wrong: JobError | None = None
    column = pa.schema([each for each in schema if each.name in {evaluation.label, *job.input.compared()}])
    for piece in places:
        try:
            labels = read_sample(storage, job, piece, column, LABEL_ROWS).table[evaluation.label]
        except (ShardError, StorageError):
            continue  # a file that cannot be read is reported elsewhere, and fails only its own shards
        try:
            evaluation.check(labels)
        except LabelInvalid as error:
            wrong = wrong or JobError(f"label: {error} (in {piece.uri})")
            if not all_alike:
                break
        else:
            if all_alike and labels.null_count < len(labels):
                return
    if wrong is not None:
        raise wrong


def told(request: RunRequest, loaded: Loaded) -> list[str]:
    """What preflight found and a person should know, whether or not the run goes on."""
    on_cpu = request.job.resources.gpus > 0 and loaded.device == "cpu"
    lost = (
        "resources.gpus reserves GPUs, but the model runs on the CPU; `nightjar doctor` on that node says which GPUs "
        "the frameworks find there"
    )
    return [*([lost] if on_cpu else []), *loaded.notes]


_BEFORE = (
    ". This run has results that were scored in this way. After a change of code, model or job they are scored again; "
    "after any other change, only with --fresh"
)


def keep_external_reads(job: Job, loaded: Loaded, notes: Sequence[str], writer: LedgerWriter) -> None:
    """Keep in the ledger what preflight noticed beyond the run's identity, or refuse it if the job is strict.

    notes: preflight's other notes.

    Raises:
        JobError: The job is strict, and something was noticed now, or while the run's results were scored.
    """
    about = writer.state.about
    refuse_external_reads(job, loaded.outside)
    refuse_external_reads(job, about.outside.all(), _BEFORE)
    lines: list[Line] = [*about.noticed(loaded.outside), *about.news(loaded.packages)]
    # If nothing is left to score, nothing was loaded.
    if loaded.packages and tuple(notes) != about.preflight:
        lines.append(Preflight(tuple(notes)))
    if lines:
        writer.append(lines)


def refuse_external_reads(job: Job, outside: Iterable[Seen], also: str = "") -> None:
    """Refuse a strict job if something was noticed. also: added to the message.

    Raises:
        JobError: Something was noticed; the message lists it.
    """
    if job.identity.strict and (found := [seen for seen in outside if seen.kind not in UNSURE]):
        raise JobError(f"identity: strict: {'; '.join(sentences(found))}{also}")

"""`check`: preflight without a run, on rows of several files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from nightjar.inference.engine import opened
from nightjar.inference.errors import JobError, NightjarError, SchemaMismatch, ShardError, StorageError, Transient
from nightjar.inference.input.discovery import Discovery
from nightjar.inference.input.plan import make_plan
from nightjar.inference.input.sources.reading import read_sample
from nightjar.inference.job.outputtypes import type_name
from nightjar.inference.messages import clip, counted
from nightjar.inference.output import targets
from nightjar.inference.output.parts import output_schema, readers_schema
from nightjar.inference.records import Piece
from nightjar.inference.run.request import RunRequest, worker_spec
from nightjar.inference.run.resume import probe_output
from nightjar.inference.run.samples import Examined, Sampled, check_labels, examine, refuse_broken, sample_notes
from nightjar.inference.run.scoring import refuse_external_reads, told
from nightjar.inference.run.waiting import awaited
from nightjar.inference.scoring.assignment import read_schema
from nightjar.inference.scoring.preflight import SAMPLE_ROWS, samples
from nightjar.inference.validation.evidence import judge_input
from nightjar.inference.witness.seen import sentences


@dataclass(frozen=True)
class Checked:
    """The result of `check`: the model's device, the scored samples, and warnings before the night.

    columns: name and Arrow type of each column of a part.
    """

    device: str
    sampled: Sampled
    columns: tuple[tuple[str, str], ...]
    warnings: tuple[str, ...]


def check_input(request: RunRequest, discovery: Discovery) -> None:
    """The part of `check` that needs neither cluster nor model.

    Raises:
        JobError: Something must be changed first.
    """
    targets.check(request.storage, request.job, discovery.schema)
    places = samples(make_plan(discovery, request.job, ""))
    check_readable(request, discovery.schema, places)
    check_labels(request.storage, request.job, discovery.schema, places)


def check_readable(request: RunRequest, schema: pa.Schema, places: Sequence[Piece]) -> None:
    """Check that rows can be read at one of these places at least. A bad file fails only its own shards, but what is
    wrong with each file fails the night. This needs no model and no cluster.

    schema: the input's columns.

    Raises:
        JobError: No row can be read at any place. Names the key, and the first file.
        Transient: The storage is away.
    """
    storage, job = request.storage, request.job
    columns = read_schema(job, schema)
    wrong: list[tuple[str, NightjarError]] = []
    for piece in places:
        try:
            read = read_sample(storage, job, piece, columns, SAMPLE_ROWS)
        except (ShardError, StorageError) as error:
            wrong.append((type(error).__name__, error))
            continue
        if read.readable or not read.failures:
            return  # it can be read, even if none of its rows matches `input.where`
        failure = read.failures[min(read.failures)]
        wrong.append((failure.error, JobError(read.unreadable(piece.uri))))
    if not wrong:
        return
    kind, first = wrong[0]
    if isinstance(first, Transient):
        raise first
    key = "input.schema" if kind == SchemaMismatch.__name__ and job.input.declared else job.input.key
    tried = f"the first rows of {counted(len(places), 'place')} of the input were tried, and none can be read"
    raise JobError(f"{key}: {tried}; the first: {clip(str(first))}")


def check(request: RunRequest, discovery: Discovery) -> Checked:
    """Preflight without a run: cluster, storage, and the model on rows of several files.

    Raises:
        JobError, ClusterError: Something must be changed first.
    """
    probe_output(request)
    made = make_plan(discovery, request.job, "")
    unknown = discovery.uncounted or request.job.input.where
    spec = worker_spec(request, discovery.schema, rows=None if unknown else discovery.rows)
    with opened(request.engine) as engine:
        engine.check_capacity(request.job)
        places = samples(made)
        loaded = engine.preflight(spec, places, examine)
        sampled = loaded.sampled if isinstance(loaded, Examined) else Sampled()
        refuse_broken(request.job, sampled)
    refuse_external_reads(request.job, loaded.outside)
    warnings = [*told(request, loaded), *([loaded.sample_error] if loaded.sample_error else [])]
    warnings += sentences(loaded.outside)
    warnings += [
        gate.sentence for gate in judge_input(request.storage, request.job, request.date, discovery) if not gate.passed
    ]
    if lacking := awaited(request.storage, request.job):
        warnings.append(f"a run begun now would be {lacking.sentence}")
    if discovery.unread:
        warnings.append(discovery.unread)
    warnings += sample_notes(spec, sampled)
    if request.job.input.where and isinstance(loaded, Examined) and not (sampled.rows or loaded.sample_error):
        warnings.append(
            "none of the sampled rows matches input.where, so the model was loaded and not tried; if no other row "
            "matches, the night does not pass the gate `complete`, unless a check `rows: {min: 0}` allows it"
        )
    columns = readers_schema(output_schema(request.job, discovery.schema))
    typed = tuple((each.name, type_name(each.type)) for each in columns)
    return Checked(loaded.device, sampled, typed, tuple(warnings))

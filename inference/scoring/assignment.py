"""What is sent to a worker: the run's part once, and one assignment for each attempt at a shard; and what it opens."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Generic, TypeVar

import pyarrow as pa
from pydantic import SecretStr

from nightjar.inference.arrow_types import value_bytes
from nightjar.inference.errors import JobError, NightjarError, raised, traced
from nightjar.inference.identity.code import explained
from nightjar.inference.identity.identity import NO_CODE, ScoringSet, changed_package, package_files
from nightjar.inference.identity.packages import in_environment
from nightjar.inference.identity.snapshots import Snapshot
from nightjar.inference.identity.unpacking import Linked, place_code, place_model, watched
from nightjar.inference.job.model import Job
from nightjar.inference.job.modeljob import ModelJob, model_jobs, modules_of
from nightjar.inference.messages import clip, hide
from nightjar.inference.metrics.profile import profiled
from nightjar.inference.output.rowindex import RowReuse
from nightjar.inference.predictors import Preprocessor, Scorer, input_columns, load_scorer, model_columns
from nightjar.inference.predictors.adapter import naming
from nightjar.inference.records import Shard
from nightjar.inference.scoring.memory import release
from nightjar.inference.scoring.prepared_batches import Preparer, PreparingThread, ScoreRows
from nightjar.inference.scoring.suspects import Attempt
from nightjar.inference.stopwatch import Stopwatch
from nightjar.inference.storage.protocol import Storage
from nightjar.inference.storage.retrying import RetryingStorage
from nightjar.inference.witness import audit as witness
from nightjar.inference.witness.notes import Notes

T = TypeVar("T")


CACHE = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "nightjar"
"""Where a node keeps the copies of code and model from which it scores."""


@dataclass(frozen=True, kw_only=True)
class OfRun:
    """What each process of a run is told."""

    job: Job
    """The job at the logical time of the run."""

    job_path: str
    """The path of the job file, absolute."""

    storage: Storage
    """The storage for the places that the job names."""

    scoring: ScoringSet = NO_CODE
    """Code and model as they were when the run began."""

    cache: str = str(CACHE)
    """Where each node keeps its copies of code and model."""

    environment: Mapping[str, SecretStr] = field(default_factory=dict)
    """Variables that a process sets before it imports the user's code. Ray would write them into its records."""


@dataclass(frozen=True, kw_only=True)
class WorkerSpec(OfRun):
    """Everything that a worker needs for the run; it is sent once."""

    run: tuple[str, ...]
    """The arguments with which `nightjar replay` names the run."""

    revision: str
    """The URI of the revision; '' for a worker that scores and writes nothing."""

    schema: pa.Schema
    """The columns to read, in order, as most files have them."""

    epoch: int
    """The epoch of the writer for whom the worker scores."""

    segment: int
    """The newest ledger segment that the writer knew."""

    budget: int | None
    """The most rows that the whole run may quarantine; None if their number is known only when they are read."""

    reuse: RowReuse | None = None
    """How to take outputs of rows from an earlier night; None if the job does not."""

    own_process: bool = True
    """Whether the worker has its process to itself, as everywhere except in tests. Then the code's folder becomes the
    working directory, and what the user's code uses is noted."""

    @property
    def secrets(self) -> tuple[str, ...]:
        """The values of the job's variables that nobody must see."""
        env = self.job.resources.runtime_env
        return tuple(value.get_secret_value() for name, value in self.environment.items() if env.secret(name))

    def patient_storage(self) -> RetryingStorage:
        """The storage, with retries as the job has them, and a count of its own."""
        retry = self.job.retry
        return RetryingStorage(self.storage, retry.attempts, retry.backoff_s)


@dataclass(frozen=True, slots=True)
class Assignment:
    """One attempt at one shard."""

    shard: Shard
    attempt: Attempt = field(default_factory=Attempt)


def read_schema(job: Job, schema: pa.Schema) -> pa.Schema:
    """The columns that a worker reads, in file order: those for the model, the carried ones, the label, those that
    `input.where` compares, and those that are profiled.
    """
    wanted = {*input_columns(job, schema), *job.carried(schema.names), job.label, *job.input.compared()}
    wanted |= set(profiled(job, schema))
    return pa.schema([item for item in schema if item.name in wanted])


@dataclass(frozen=True, slots=True)
class OpenedModels(Generic[T]):
    """What a process scores or prepares with."""

    loaded: tuple[T, ...]
    """Of each model its scorer or its preprocessor, in the job's order."""
    linked: tuple[Linked, ...] = ()
    """Files that were not copied and may be read later: large ones, and those of installed packages that count."""
    folder: str = ""
    """The job's; this process's copy, if it has code of the user's. Empty if nothing was opened."""

    def reading(self, spec: WorkerSpec) -> WorkerSpec:
        """The spec to read with: a source of the user's own comes from the copy, too."""
        if not self.folder or not spec.job.input.own:
            return spec
        return replace(spec, job=spec.job.model_copy(update={"folder": self.folder}))

    def check(self) -> None:
        """Check that the linked files have not changed.

        Raises:
            ModelChanged: One of them was written to or replaced.
        """
        for each in self.linked:
            each.check()


def open_scorers(spec: WorkerSpec, only: str | None = None) -> OpenedModels[Scorer]:
    """Load the run's models and code from this process's copies. only: the name of the one model to load.

    Raises:
        JobError: Model or code have changed since the run began, or cannot be loaded. Names the key.
        StorageError: The model cannot be fetched.
    """
    chosen = [each.name for each in spec.job.models if only in {None, each.name}]
    return _opened(spec, load_scorer, chosen, files=chosen)


def open_stage(spec: WorkerSpec) -> OpenedModels[Preprocessor]:
    """Load each model's preprocess, which is all that the CPU stage does. Raises as `open_scorers`."""
    return _opened(spec, lambda job, _: Preprocessor(job), [each.name for each in spec.job.models], files=())


def _opened(
    spec: WorkerSpec, load: Callable[[ModelJob, str | None], T], chosen: Sequence[str], files: Sequence[str]
) -> OpenedModels[T]:
    """Enter a copy of the run's code and load these models from it. files: the models whose files are needed here."""
    paths: dict[str, str] = {}
    linked: tuple[Linked, ...] = ()
    for each, taken in zip(model_jobs(spec.job), spec.scoring.models, strict=False):
        if each.model.path is not None and each.model.name in files:
            with naming(each):
                path, more = place_model(spec.storage, taken, Path(spec.cache), each.model.path)
            paths[each.model.name], linked = path, linked + more
    _set_variables(spec)
    job = spec.job
    linked += _packages(spec)
    # Also without code of the user's: a pickle imports modules, and Ray puts the driver's folder on its workers' path.
    job, more = enter_copy(job, spec.scoring.code, Path(spec.cache), stand=spec.own_process)
    linked += more
    if spec.own_process:
        # The input is not covered: a shard's identity has its own files, but not others that the predictor reads.
        known = [*paths.values(), *(each.source for each in linked)]
        chooses = any(not each.startswith("!") for each in job.code)
        notes = Notes(job.folder, known, spec.job.folder, spec.scoring.beside, chooses)
        notes.places.variables.update(spec.job.resources.runtime_env.counted)
        witness.watch(notes)
    loaded = tuple(
        _loaded(spec, each, load, paths.get(each.model.name)) for each in model_jobs(job) if each.model.name in chosen
    )
    release()
    return OpenedModels(loaded, linked, job.folder)


def _loaded(spec: WorkerSpec, job: ModelJob, load: Callable[[ModelJob, str | None], T], path: str | None) -> T:
    """Load for a model, in this process's copy of the folder."""
    try:
        with naming(job):
            return load(job, path)
    except Exception as error:
        if isinstance(error, NightjarError):
            found = explained(error, error.__cause__ or error, spec.job.folder, job.whole.folder)
        else:
            named = f"models.{job.model.name}: " if job.model.name else ""
            said = f"loading {job.model.uses} failed with {raised(error)}"
            failed = JobError(clip(f"{named}{job.model.loaded_by}: {said}"))
            found = traced(explained(failed, error, spec.job.folder, job.whole.folder), error)
        if spec.secrets and isinstance(found, JobError):
            # The text of the error may have them, and so may that of its cause.
            raise traced(JobError(clip(str(found))), error) from None
        raise found from error


def enter_copy(job: Job, code: Snapshot, cache: Path, *, stand: bool = True) -> tuple[Job, tuple[Linked, ...]]:
    """Switch to a copy of the job's folder as it was when the run began. Returns the job there, and the linked files.

    The copy belongs to this process. Python finds modules there instead of in the live folder. With `stand` the copy
    becomes the working directory, so that files that the user's code reads by relative names are the run's, too.

    Raises:
        JobError: A linked file has changed since the snapshot, or the code cannot be stored here.
    """
    folder, linked = place_code(code, cache)
    _turn_path(job.folder, folder)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    if stand:
        os.chdir(folder)
    return job.model_copy(update={"folder": folder}), linked


def _turn_path(live: str, folder: str) -> None:
    """Replace the live folder, and folders in it, on Python's path by those of this process's copy.

    Ray puts the driver's working directory on its workers' path, and the environment may name a `src/`. Installed
    packages stay on the path, also those of an environment beside the code. So do entries that are not folders, with
    which some installers mark their own import hooks.
    """
    for index, entry in enumerate(sys.path):
        below = os.path.relpath(os.path.realpath(entry or "."), os.path.realpath(live))
        if not below.startswith("..") and os.path.exists(entry or ".") and not in_environment(entry, live):  # noqa: PTH110
            sys.path[index] = os.path.normpath(os.path.join(folder, below))  # noqa: PTH118 (text, as the path is)


def _packages(spec: WorkerSpec) -> tuple[Linked, ...]:
    """The files of packages whose content counts, with the stamps that they had before the content was checked."""
    files = (path for name in spec.scoring.packages for path in package_files(spec.job, name))
    linked = tuple(map(watched, dict.fromkeys(files)))
    if name := changed_package(spec.job, spec.scoring):
        raise JobError(
            f"model.uses: the installed package {name!r} on {socket.gethostname()} is not the one the run began with: "
            "it was changed meanwhile, or that node has another release, or none. Install the same on each node and "
            "start the run again"
        )
    return linked


def _set_variables(run: OfRun) -> None:
    """Set the run's variables in this process. The values of the secret ones are hidden in its messages."""
    variables = run.job.resources.runtime_env
    hide(value.get_secret_value() for name, value in run.environment.items() if variables.secret(name))
    os.environ.update({name: value.get_secret_value() for name, value in run.environment.items()})


def enter(run: OfRun) -> Job:
    """Set the run's variables and switch to a copy of the code that the run began with. Returns the job there."""
    _set_variables(run)
    whole = run.scoring.checks if not modules_of(run.job) else run.scoring.code
    return enter_copy(run.job, whole, Path(run.cache))[0]


def aside_folder(run: OfRun, job: Job) -> Path:
    """Where the job's own checks and accumulators lie: in a copy of their own, which becomes the working directory."""
    if not modules_of(run.job) or not run.scoring.checks.files:
        return Path(job.folder)
    folder = place_code(run.scoring.checks, Path(run.cache))[0]
    os.chdir(folder)
    return Path(folder)


# ---- the models of a process -----------------------------------------------------------------------------------

PACKED_ROWS, PACKED_ROWS_GPU = 2048, 16384
"""Rows of a micro-batch that a predictor packs into calls of the model: many, so that it finds rows of one size; and
few enough that a large model on a few cores, at four rows a second, is done with them before `retry.stall_s`."""


class BatchSize:
    """The largest micro-batch, kept from table to table, so that running out of memory happens only once.

    most: the rows in use. forced: the same if lack of memory reduced them, else 0.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.forced = 0

    def force(self, most: int) -> None:
        """Reduce the size, because memory did not suffice for more than this."""
        self.most = self.forced = most


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model, and what is needed to score with it."""

    name: str
    """Empty for the only model of a job."""

    prefix: str
    """Of the names of its output columns."""

    columns: tuple[str, ...]
    """The input columns that it takes."""

    types: Mapping[str, pa.DataType]
    """Its outputs, by the names that the model gives them."""

    scorer: ScoreRows
    """Makes the outputs of rows."""

    size: BatchSize
    """Of its micro-batches."""

    preparer: Preparer | None = None
    """Prepares micro-batches; None if `scorer` prepares them."""


def loaded_models(
    spec: WorkerSpec,
    scorers: Sequence[Scorer],
    *,
    only: str | None = None,
    thread: PreparingThread | None = None,
    watch: Stopwatch | None = None,
) -> tuple[LoadedModel, ...]:
    """The models of a job with their scorers, in the job's order.

    only: the name of the one model that is loaded. thread: prepares batches while models compute. watch: of the thread
    that scores.
    """
    chosen = [each for each in model_jobs(spec.job) if only in {None, each.model.name}]
    return tuple(
        LoadedModel(
            each.model.name,
            each.model.prefix,
            model_columns(each, spec.schema),
            each.model.output_types(),
            scorer,
            batch_size(each, spec.schema),
            Preparer(scorer, thread, watch),
        )
        for each, scorer in zip(chosen, scorers, strict=True)
    )


def batch_size(job: ModelJob, schema: pa.Schema) -> BatchSize:
    """The size of a model's micro-batches to begin with. It depends only on the job and the schema."""
    size, framework, gpu = job.model.batch_size, job.model.framework, job.resources.gpus > 0
    if isinstance(size, int):
        return BatchSize(size)
    if framework.rows:
        return BatchSize(framework.rows[gpu])
    features = pa.schema([schema.field(name) for name in model_columns(job, schema)])
    return BatchSize(auto_batch_rows(features, gpu, framework.packs))


def auto_batch_rows(schema: pa.Schema, gpu: bool, packs: bool = False) -> int:
    """Rows per micro-batch for `batch_size: auto`: a pure function of the features and the device.

    The largest power of two whose features take at most 4 MiB (64 MiB on a GPU), from 32 to 16,384
    (65,536) rows. Text counts as 256 bytes, a list of unknown length as 64 items. packs: as in `Framework`.
    """
    if packs:
        return PACKED_ROWS_GPU if gpu else PACKED_ROWS
    target, most = (64 << 20, 65536) if gpu else (4 << 20, 16384)
    width = max(1, int(sum(max(1, value_bytes(column.type, text=256, items=64)) for column in schema)))
    return min(most, 1 << (max(32, target // width).bit_length() - 1))

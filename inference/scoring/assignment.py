"""What is sent to a worker: the run's part once, and one assignment for each attempt at a shard."""

from __future__ import annotations

import os
import socket
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from nightjar.inference import witness
from nightjar.inference.errors import JobError, NightjarError
from nightjar.inference.identity.identity import ScoringSet, changed_package, package_files
from nightjar.inference.identity.missing import explained
from nightjar.inference.identity.packages import in_environment, places_of
from nightjar.inference.identity.snapshots import Snapshot
from nightjar.inference.identity.unpacking import (
    Linked,
    place_code,
    place_model,
    watched,
)
from nightjar.inference.job.model import Job
from nightjar.inference.job.seams import FRAMEWORKS
from nightjar.inference.messages import clip
from nightjar.inference.predictors import Scorer, input_columns, load_scorer
from nightjar.inference.records import Shard
from nightjar.inference.scoring.microbatches import BatchSize, auto_batch_rows
from nightjar.inference.scoring.suspects import Attempt
from nightjar.inference.storage.protocol import Storage


@dataclass(frozen=True)
class WorkerSpec:
    """Everything that a worker needs for the run; it is sent once.

    run: the arguments with which `nightjar replay` names the run. schema: the columns to read, in order, as most files
    have them. scoring, cache: as in `RunRequest`. epoch, segment: the writer's epoch, and the newest ledger segment
    that it knew. budget: the most rows that the whole run may quarantine; None if the run's rows are not known before
    they are read. own_process: whether the worker has its process to itself, as everywhere except in tests. Then the
    code's folder becomes the working directory, and what the user's code uses is noted. ceiling: the most rows of a
    micro-batch for `batch_size: auto`, because memory did not suffice for more before; 0 if nothing is known.
    """

    job: Job
    job_path: str
    run: tuple[str, ...]
    revision: str
    storage: Storage
    schema: pa.Schema
    epoch: int
    segment: int
    budget: int | None
    scoring: ScoringSet
    cache: str
    own_process: bool = True
    ceiling: int = 0


@dataclass(frozen=True, slots=True)
class Assignment:
    """One attempt at one shard."""

    shard: Shard
    attempt: Attempt = field(default_factory=Attempt)


def read_schema(job: Job, schema: pa.Schema) -> pa.Schema:
    """The columns that a worker reads, in file order: those for the model, the carried ones, and the label."""
    wanted = {*input_columns(job, schema), *job.carry, job.label}
    return pa.schema([item for item in schema if item.name in wanted])


@dataclass(frozen=True, slots=True)
class Opened:
    """What a process scores with: the loaded model, and the run's files that were not copied.

    linked: large files, and files of the installed packages that count. Both may still be read later.
    """

    scorer: Scorer
    linked: tuple[Linked, ...] = ()

    def check(self) -> None:
        """Check that the linked files have not changed.

        Raises:
            ModelChanged: One of them was written to or replaced.
        """
        for each in self.linked:
            each.check()


def open_scorer(spec: WorkerSpec) -> Opened:
    """Load the run's model and code from this process's copies.

    Raises:
        JobError: Model or code have changed since the run began, or cannot be loaded. Names the key.
        StorageError: The model cannot be fetched.
    """
    job, cache = spec.job, Path(spec.cache)
    linked = _installed_packages(spec)
    path: str | None = None
    if job.model.path is not None:
        path, more = place_model(spec.storage, spec.scoring.model, cache, job.model.path)
        linked += more
    if job.modules():
        job, more = enter_copy(job, spec.scoring.code, cache, stand=spec.own_process)
        linked += more
        if spec.own_process:
            # The input is not covered: a shard's identity has its own files, but not others that the predictor reads.
            known = filter(None, [path, *(each.source for each in linked)])
            packages = _installed_predictor(spec)
            witness.watch(job.folder, known, spec.job.folder, options=job.model.options, packages=packages)
    try:
        return Opened(load_scorer(job, path), linked)
    except NightjarError as error:
        raise explained(error, error.__cause__ or error, spec.scoring.left_out, spec.job.folder, job.folder) from error
    except Exception as error:
        said = f"loading {job.model.uses} failed with {type(error).__name__}: {error}"
        failed = JobError(clip(f"{job.model.loaded_by}: {said}"))
        raise explained(failed, error, spec.scoring.left_out, spec.job.folder, job.folder) from error


def _installed_predictor(spec: WorkerSpec) -> list[str]:
    """The paths of the installed packages that `uses` or `preprocess` name."""
    named = [module for module in spec.job.modules().values() if module.partition(".")[0] in spec.scoring.packages]
    return [place for module in named for place in places_of(module)]


def enter_copy(job: Job, code: Snapshot, cache: Path, *, stand: bool = True) -> tuple[Job, tuple[Linked, ...]]:
    """Switch to a copy of the job's folder as it was when the run began. Returns the job there, and the linked files.

    The copy belongs to this process. Python finds modules there instead of in the live folder. With `stand` the copy
    becomes the working directory, so that files that the user's code reads by relative names are the run's, too.

    Raises:
        JobError: A linked file has changed since the snapshot, or the code cannot be stored here.
    """
    folder, linked = place_code(code, cache)
    _turn_path(job.folder, folder)
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


def _installed_packages(spec: WorkerSpec) -> tuple[Linked, ...]:
    """The files of the installed packages that count; their stamps are taken before their content is checked."""
    files = (path for name in spec.scoring.packages for path in package_files(spec.job, name))
    linked = tuple(map(watched, dict.fromkeys(files)))
    if name := changed_package(spec.job, spec.scoring):
        raise JobError(
            f"model.uses: the installed package {name!r} on {socket.gethostname()} is not the one the run began with: "
            "it was changed meanwhile, or that node has another release, or none. Install the same on each node and "
            "start the run again"
        )
    return linked


def batch_size(spec: WorkerSpec) -> BatchSize:
    """The rows per micro-batch to begin with. They depend only on the job, the schema, and what is known of memory."""
    size = spec.job.model.batch_size
    if isinstance(size, int):
        return BatchSize(size)
    columns = input_columns(spec.job, spec.schema)
    features = pa.schema([spec.schema.field(name) for name in columns])
    framework = FRAMEWORKS.get(spec.job.model.uses)
    packs = framework is not None and framework.packs
    found = BatchSize(auto_batch_rows(features, spec.job.resources.gpus > 0, packs))
    if 0 < spec.ceiling < found.rows:
        found.force(spec.ceiling)
    return found

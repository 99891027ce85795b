"""The identity of a shard's result: everything that scores it, by content. If any of it changes, it is scored again.

It is made of the input × a snapshot of code and model × installed packages that count × `model.version` and everything
else in the job that can change an output × the columns as they reach the model.
"""

from __future__ import annotations

import hashlib
import json
import socket
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from nightjar.inference.errors import JobError, RunFailed
from nightjar.inference.identity.code import Code, data_of, find_code, find_objects, names_beside
from nightjar.inference.identity.packages import Package, distribution, package_at, package_of
from nightjar.inference.identity.snapshots import NOTHING, Snapshot, names, take, take_model
from nightjar.inference.input.sources.protocol import binding
from nightjar.inference.job.model import Job
from nightjar.inference.job.modeljob import model_jobs, row_keys_of, scoring_keys
from nightjar.inference.jsonform import to_json
from nightjar.inference.predictors import model_columns
from nightjar.inference.predictors.adapter import adapter_of, naming
from nightjar.inference.storage.protocol import Storage

_SCORING_VERSION = 1
"""Increase this number when a change of Nightjar scores the same job, model and input differently."""

_CODE_VERSION = "closure"
"""Marks code that is what the job's modules import and name."""


@dataclass(frozen=True)
class ScoringSet:
    """What a run scores with. It is fixed when the run begins."""

    code: Snapshot = NOTHING
    """The files of the job's folder that score."""

    models: tuple[Snapshot, ...] = ()
    """The files of each model, in the job's order."""

    packages: Mapping[str, str] = field(default_factory=dict)
    """The version or content of each installed package that counts, by name."""

    reasons: Mapping[str, str] = field(default_factory=dict)
    """Why each file of the code scores, by its name, as in `Code`."""

    beside: tuple[str, ...] = ()
    """Names of other files of the job's folder: a node that does not see it refuses code that looks for one, too."""

    checks: Snapshot = NOTHING
    """The files of the job's own checks and accumulators. They score nothing, and are no part of the identity."""

    judging: str = ""
    """A digest of what the night is judged by: checks and accumulators, their code, and the limits on every night."""

    @property
    def snapshots(self) -> tuple[Snapshot, ...]:
        """Those that score."""
        return (self.code, *self.models)


NO_CODE = ScoringSet()


@dataclass(frozen=True)
class Identity:
    """What scores every shard of a plan, in the form that is kept beside the plan."""

    job: dict[str, Any]
    """The keys of the job that can change an output, as `scoring_keys` has them, and the carried columns as `carry`."""

    columns: list[Any]
    """The columns as they reach each model: [name of the model, [[column, types], …]], in the job's order."""

    kept: list[Any]
    """The carried columns, the label and those that `input.where` compares: [column, types], sorted by name."""

    model: dict[str, str]
    """The files of the models: name → SHA-256; of several models the name is `<model>/<file>`."""

    code: dict[str, str]
    """The files of the job's folder that score: name → SHA-256."""

    packages: dict[str, str]
    """The version or content of each installed package that counts, by name."""

    models: dict[str, str]
    """The digest of each model, by name, in the job's order; one that is alone has the name ''."""

    code_digest: str
    """The digest of the snapshot of the code; '' without code."""

    @property
    def model_digest(self) -> str:
        """The digest of the model's files; of several models, that of their names and digests."""
        if len(self.models) < 2:
            return "".join(self.models.values())
        lines = (f"{name}\0{digest}\0" for name, digest in self.models.items())
        return hashlib.sha256("".join(lines).encode()).hexdigest()

    @property
    def fingerprint(self) -> str:
        """A SHA-256 of everything, independent of where folder and model are."""
        code = [_CODE_VERSION, self.code_digest, self.packages] if self.code or self.packages else ""
        identity = [_SCORING_VERSION, self.job, self.model_digest, code, self.columns, self.kept]
        text = json.dumps(identity, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    def to_bytes(self) -> bytes:
        """As JSON, of which `jsonform.of_bytes` is the inverse."""
        return json.dumps({**to_json(self), "fingerprint": self.fingerprint}, indent=1).encode()


def fix(storage: Storage, job: Job) -> ScoringSet:
    """Take a snapshot of what scores the job, without running any of the user's code.

    Raises:
        JobError: Model or code cannot be found or read. Names the key.
    """
    code = find_code(job)
    counted = {*code.installed, *job.identity.packages, *_versions(job), *_read(job)}
    packages = {name: _package(job, name).content for name in sorted(counted)}
    beside = find_objects(job, job.beside())
    checks = _snapshot("checks", storage, beside)
    taken = _snapshot("model.uses", storage, code)
    return ScoringSet(
        taken,
        take_models(storage, job),
        packages,
        code.reasons,
        names_beside(job, code),
        checks,
        _judging(job, checks, beside.installed),
    )


def _snapshot(key: str, storage: Storage, code: Code) -> Snapshot:
    return take(key, storage, [(name, path, code.sizes[name]) for name, path in code.files.items()])


def _judging(job: Job, checks: Snapshot, installed: Iterable[str]) -> str:
    """checks, installed: the files and packages of the job's own checks and accumulators."""
    keys = [each.model_dump(mode="json") for each in (*job.checks, job.rescore)]
    packages = {top: package_of(top, job.folder, data_of(job)).content for top in installed}
    judged = [keys, job.accumulators, job.retry.max_quarantined, names(checks.files), packages]
    return hashlib.sha256(json.dumps(judged, sort_keys=True).encode()).hexdigest()


def take_models(storage: Storage, job: Job) -> tuple[Snapshot, ...]:
    """Take the snapshot of each model, in the job's order.

    Raises:
        JobError: There is nothing at a model's path. Names the key.
    """
    taken = []
    for each in model_jobs(job):
        with naming(each):
            taken.append(take_model(storage, each.model.path))
    return tuple(taken)


def _versions(job: Job) -> dict[str, str]:
    """What counts of the frameworks' libraries, by name, as the models' adapters say."""
    return {name: version for each in model_jobs(job) for name, version in adapter_of(each).fingerprint(each).items()}


def _read(job: Job) -> set[str]:
    """The files and folders that the models' options name, as the adapters say."""
    adapters = ((each, adapter_of(each)) for each in model_jobs(job))
    return {path for each, adapter in adapters for path in adapter.reads(each)}


def _package(job: Job, name: str) -> Package:
    """An installed package that counts, or a file or folder, as it is now.

    Raises:
        JobError: It is not installed. Names the key.
    """
    if name in job.identity.packages:
        return distribution(name, data_of(job))
    if name in (versions := _versions(job)):
        return Package(versions[name])
    if name in _read(job):
        return package_at(name)
    try:
        return package_of(name, job.folder, data_of(job))
    except LookupError:
        raise JobError(f"model.uses: the package {name!r} is not installed on {socket.gethostname()}") from None


def package_files(job: Job, name: str) -> list[Path]:
    """The files whose content counts; none of a package that counts by its version, or is not there."""
    with suppress(JobError, OSError):
        return [path for _, path in _package(job, name).files]
    return []


def changed_package(job: Job, scoring: ScoringSet) -> str:
    """The first installed package that counts and has changed since, as this process sees it; '' for none."""
    for name, content in scoring.packages.items():
        try:
            same = _package(job, name).content == content
        except (JobError, OSError):  # while it is being installed, files of it are missing
            same = False
        if not same:
            return name
    return ""


def verify_packages(job: Job, scoring: ScoringSet) -> None:
    """Check, before a publication, that the installed packages that count are unchanged, by reading all their files.

    Raises:
        RunFailed: One of them has changed.
    """
    if name := changed_package(job, scoring):
        what = name if name in _read(job) else f"the installed package {name!r}"
        raise RunFailed(f"{what} changed while the run went on; repeat the command: it scores with what is there now")


def identify(job: Job, scoring: ScoringSet, schema: pa.Schema) -> Identity:
    """The identity of this run's results.

    schema: all columns of the input. If the job does not list its features, the schema decides which columns the model
    sees.

    Raises:
        JobError: A feature that the job names is not in the schema.
    """
    types: dict[str, list[str]] = {}
    for column in schema:
        to = binding(column)
        types.setdefault(column.name, []).append(f"{column.type} of {to}" if to else str(column.type))
    carried = job.carried(schema.names)
    models = {each.name: taken for each, taken in zip(job.models, scoring.models, strict=False)}
    return Identity(
        # The columns, not the patterns that name them: a column that is new in the input is carried from now on.
        job={**scoring_keys(job), "carry": carried},
        columns=[
            [each.model.name, [[name, types[name]] for name in model_columns(each, schema)]] for each in model_jobs(job)
        ],
        kept=sorted([name, types.get(name)] for name in {*carried, *filter(None, [job.label]), *job.input.compared()}),
        model={
            "/".join(filter(None, (name, file))): content
            for name, taken in models.items()
            for file, content in names(taken.files).items()
        },
        code=names(scoring.code.files),
        packages=dict(scoring.packages),
        models={name: taken.digest for name, taken in models.items()},
        code_digest=scoring.code.digest,
    )


def row_identities(job: Job, scoring: ScoringSet, schema: pa.Schema) -> dict[str, str]:
    """A SHA-256 of all that decides what each model makes of a row, by the model's name, but for the row's values.

    schema: all columns of the input.
    """
    found = {}
    for each, taken in zip(model_jobs(job), scoring.models, strict=True):
        columns = [[name, str(schema.field(name).type)] for name in model_columns(each, schema)]
        code = [scoring.code.digest, dict(scoring.packages)]
        content = [_SCORING_VERSION, row_keys_of(each), taken.digest, code, columns]
        found[each.model.name] = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    return found

"""The identity of a shard's result: everything that scores it, by content. If any of it changes, it is scored again.

It is made of the input × a snapshot of code and model × installed packages that count × `model.version` and everything
else in the job that can change an output × the columns as they reach the model.
"""

from __future__ import annotations

import ast
import hashlib
import json
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from nightjar.inference.errors import JobError, RunFailed
from nightjar.inference.identity.folder import Listing, is_of, list_checks, list_code
from nightjar.inference.identity.packages import (
    content_at,
    content_of,
    files_at,
    files_of,
    files_of_distribution,
    importable_places,
    is_installed,
    module_files,
    of_distribution,
)
from nightjar.inference.identity.snapshots import (
    NOTHING,
    Snapshot,
    names,
    take,
    take_model,
)
from nightjar.inference.input.sources.bindings import binding
from nightjar.inference.job.model import Job
from nightjar.inference.job.scoringkeys import scoring_keys
from nightjar.inference.jsonform import SELDOM, of_json, to_json
from nightjar.inference.messages import nearest
from nightjar.inference.predictors import input_columns
from nightjar.inference.predictors.adapter import Reads, adapter_of
from nightjar.inference.predictors.naming import naming
from nightjar.inference.storage.protocol import Storage

_SCORING_VERSION = 1
"""Increase this number when a change of Nightjar scores the same job, model and input differently."""

_CODE_VERSION = "snapshot"
"""Marks code that is identified by its files' content. Older results, with code guessed from imports, never match."""


@dataclass(frozen=True)
class ScoringSet:
    """What a run scores with. It is fixed when the run begins.

    code: the files of the job's folder. models: the files of each model, in the job's order. packages: the content of
    each installed package that counts, by name. left_out: the reason for each file of the folder that does not score,
    as in `Listing`. checks: the files that the job's own checks and accumulators need besides, as in
    `folder.list_checks`. They score nothing, and are no part of the identity. counting: a digest of what accumulates;
    '' if the job has no accumulator.
    """

    code: Snapshot = NOTHING
    models: tuple[Snapshot, ...] = ()
    packages: Mapping[str, str] = field(default_factory=dict)
    left_out: Mapping[str, str] = field(default_factory=dict)
    checks: Snapshot = NOTHING
    counting: str = ""

    @property
    def snapshots(self) -> tuple[Snapshot, ...]:
        """Those that score."""
        return (self.code, *self.models)


NO_CODE = ScoringSet()


@dataclass(frozen=True)
class Identity:
    """What scores every shard of a plan, in the form that is kept beside the plan. Files: name → SHA-256.

    models: the digest of each of several models, by name; empty for one model, whose digest is `model_digest`.
    """

    job: dict[str, Any]
    columns: list[Any]
    kept: list[Any]
    model: dict[str, str]
    code: dict[str, str]
    packages: dict[str, str]
    model_digest: str
    code_digest: str
    models: dict[str, str] = field(default_factory=dict, metadata=SELDOM)

    @property
    def model_digests(self) -> tuple[str, ...]:
        """The digest of each model, in the job's order."""
        return tuple(self.models.values()) or (self.model_digest,)

    @property
    def fingerprint(self) -> str:
        """A SHA-256 of everything, independent of where folder and model are."""
        code = [_CODE_VERSION, self.code_digest, self.packages] if self.code or self.packages else ""
        identity = [_SCORING_VERSION, self.job, self.model_digest, code, self.columns, self.kept]
        text = json.dumps(identity, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    def to_bytes(self) -> bytes:
        """As JSON."""
        return json.dumps({**to_json(self), "fingerprint": self.fingerprint}, indent=1).encode()


def fix(storage: Storage, job: Job) -> ScoringSet:
    """Take a snapshot of what scores the job, without running any of the user's code.

    Raises:
        JobError: Model or code cannot be found or read. Names the key.
    """
    listing = list_code(job)
    code = take("model.uses", storage, [(name, path, listing.sizes[name]) for name, path in listing.files.items()])
    installed = {
        module.partition(".")[0]
        for key, module in job.modules().items()
        if not _is_in_folder(key, module, job, listing)
    }
    counted = installed.union(job.identity.packages, _versions(job), _read(job))
    packages = {name: package_content(job, name) for name in sorted(counted)}
    checks = _fix_checks(storage, job, listing)
    counting = _counting(job, checks) if job.accumulators else ""
    return ScoringSet(code, take_models(storage, job), packages, listing.left_out, checks, counting)


def _fix_checks(storage: Storage, job: Job, scoring: Listing) -> Snapshot:
    """Take a snapshot of the job's own checks and accumulators. scoring: the code that scores, which they may use."""
    listing = list_checks(job)
    whole = Listing({**scoring.files, **listing.files}, {}, listing.left_out)
    for key, spec in job.beside().items():
        _is_in_folder(key, spec.partition(":")[0], job, whole)
    return take("checks", storage, [(name, path, listing.sizes[name]) for name, path in listing.files.items()])


def _counting(job: Job, checks: Snapshot) -> str:
    """A digest of the files and installed packages of the job's accumulators. checks: as of a `ScoringSet`."""
    own, places = names(checks.files), importable_places(job.folder)
    files = {name: content for name, content in own.items() if not is_of(name, job.only_called, places)}
    tops = dict.fromkeys(spec.partition(":")[0].partition(".")[0] for spec in job.accumulators.values())
    packages = {top: content_of(top, outside=job.folder) for top in tops if is_installed(top, outside=job.folder)}
    return hashlib.sha256(json.dumps([files, packages], sort_keys=True).encode()).hexdigest()


def take_models(storage: Storage, job: Job) -> tuple[Snapshot, ...]:
    """Take the snapshot of each model, in the job's order.

    Raises:
        JobError: There is nothing at a model's path. Names the key.
    """
    taken = []
    for each in job.each:
        with naming(each):
            taken.append(take_model(storage, each.model.path))
    return tuple(taken)


def _versions(job: Job) -> dict[str, str]:
    """What counts of the frameworks' libraries, by name, as the models' adapters say."""
    return {name: version for each in job.each for name, version in adapter_of(each).fingerprint(each).items()}


def _read(job: Job) -> set[str]:
    """The files and folders that the models' options name, as the adapters say."""
    adapters = ((each, adapter_of(each)) for each in job.each)
    return {path for each, adapter in adapters if isinstance(adapter, Reads) for path in adapter.reads(each)}


def package_content(job: Job, name: str) -> str:
    """The present content of an installed package that counts, or of a file or folder, as this process sees it.

    Raises:
        JobError: It is not installed. Names the key.
    """
    if name in job.identity.packages:
        return of_distribution(name)
    if name in (versions := _versions(job)):
        return versions[name]
    if name in _read(job):
        return content_at(name)
    try:
        return content_of(name, outside=job.folder)
    except LookupError:
        raise JobError(f"model.uses: the package {name!r} is not installed on {socket.gethostname()}") from None


def package_files(job: Job, name: str) -> list[Path]:
    """The files whose content `package_content` includes; empty for a package of which only the version counts."""
    if name in job.identity.packages:
        return files_of_distribution(name)
    if name in _read(job):
        return files_at(name)
    return [] if name in _versions(job) else files_of(name, outside=job.folder)


def changed_package(job: Job, scoring: ScoringSet) -> str:
    """The first installed package that counts and has changed since, as this process sees it; '' for none."""
    for name, content in scoring.packages.items():
        try:
            same = package_content(job, name) == content
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


def _is_in_folder(key: str, module: str, job: Job, listing: Listing) -> bool:
    """Whether a module that the job names is in the job's folder; else it belongs to an installed package.

    Raises:
        JobError: It is in neither, or is not valid Python. Names the key.
    """
    for place in importable_places(job.folder):
        own = {name: listing.files[place + name] for name in module_files(module) if place + name in listing.files}
        if any(_is_module(name, module) for name in own):
            for name, path in own.items():
                if name.endswith(".py"):
                    _check_syntax(key, path)
            return True
    top = module.partition(".")[0]
    if not any(_is_module(name, top) for name in listing.files) and is_installed(top, outside=job.folder):
        return False
    said = f"{key}: there is no module {module!r} in {job.folder} or among the installed packages"
    for name, why in listing.left_out.items():
        if any(file == name or (name.endswith("/") and file.startswith(name)) for file in module_files(module)):
            raise JobError(f"{said}: {name} is left out ({why}); remove it from there, or name the code in model.code")
    modules = {name.removesuffix(".py").replace("/", ".") for name in listing.files if name.endswith(".py")}
    raise JobError(said + nearest(module, modules))


def _is_module(name: str, module: str) -> bool:
    """Whether a file is the module itself, not a package around it."""
    path = module.replace(".", "/")
    return name in module_files(module) and name.startswith((f"{path}.", f"{path}/__init__."))


def _check_syntax(key: str, path: str) -> None:
    try:
        ast.parse(Path(path).read_bytes(), path)
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None) or 1
        raise JobError(f"{key}: {path}, line {line}: {getattr(error, 'msg', None) or error}") from error


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
    # Only from the input could the states be made again, if the parts lack the label.
    apart = (
        {"accumulators.code": scoring.counting} if scoring.counting and job.label and job.label not in carried else {}
    )
    return Identity(
        # The columns, not the patterns that name them: a column that is new in the input is carried from now on.
        job={**scoring_keys(job), "carry": carried, **apart},
        columns=_columns(job, schema, types),
        kept=sorted([name, types.get(name)] for name in {*carried, *filter(None, [job.label]), *job.input.compared()}),
        model=_model_files(job, scoring),
        code=names(scoring.code.files),
        packages=dict(scoring.packages),
        model_digest=_model_digest(job, scoring),
        code_digest=scoring.code.digest,
        models=_by_name(job, scoring),
    )


def _columns(job: Job, schema: pa.Schema, types: dict[str, list[str]]) -> list[Any]:
    """The columns that each model sees, with their types and what they are bound to."""
    if job.models:
        return [[each.model.called, _columns(each, schema, types)] for each in job.each]
    return [[name, types[name]] for name in input_columns(job, schema)]


def _by_name(job: Job, scoring: ScoringSet) -> dict[str, str]:
    return {model.name: taken.digest for model, taken in zip(job.models, scoring.models, strict=False)}


def _model_files(job: Job, scoring: ScoringSet) -> dict[str, str]:
    """The model's files; for several models each with the model's name before its own."""
    if not job.models:
        return {name: content for taken in scoring.models for name, content in names(taken.files).items()}
    return {
        f"{model.name}/{file}".rstrip("/"): content
        for model, taken in zip(job.models, scoring.models, strict=False)
        for file, content in names(taken.files).items()
    }


def _model_digest(job: Job, scoring: ScoringSet) -> str:
    """The digest of the model's files; of several models, that of their names and digests."""
    if not job.models:
        return "".join(taken.digest for taken in scoring.models)
    lines = (f"{name}\0{digest}\0" for name, digest in _by_name(job, scoring).items())
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def read_identity(content: bytes) -> Identity:
    """The inverse of `to_bytes`, for comparing."""
    return of_json(Identity, json.loads(content))

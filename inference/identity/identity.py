"""What a shard's result is kept under: what really scores it, by content. Change any of it, and it is scored again.

Input × a snapshot of code and model × installed packages that count × `model.version` and everything else in the job
that can change an output × the columns as they reach the model.
"""

from __future__ import annotations

import ast
import hashlib
import json
import re
import socket
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from nightjar.inference.errors import JobError, RunFailed
from nightjar.inference.identity.folder import Listing, list_code
from nightjar.inference.identity.packages import (
    content_of,
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
from nightjar.inference.job.model import Job
from nightjar.inference.messages import nearest
from nightjar.inference.predictors import input_columns
from nightjar.inference.predictors.adapter import adapter_of
from nightjar.inference.records import known
from nightjar.inference.storage.protocol import Storage
from nightjar.inference.yamlvalues import mapping

_SCORING_VERSION = 1
"""Raise it when Nightjar itself comes to score the same job, model and input differently."""

_CODE_VERSION = "snapshot"
"""Marks code that is known by its files' content: results kept under what was guessed from imports never match it."""

_SHOWN = 5

_SECRET = re.compile(
    r"(^|/)(\.env(\.\w+)?|\.netrc|\.pgpass|\.npmrc|\.pypirc|id_(rsa|dsa|ecdsa|ed25519)"
    r"|(secrets?|credentials?|passwords?)(\.\w+)?|service[-_]?account[^/]*\.json|[^/]*\.(pem|key|p12|pfx|jks|keystore|kdbx))$",
    re.IGNORECASE,
)
"""Names of files that hold keys and passwords, by custom."""


@dataclass(frozen=True)
class ScoringSet:
    """What a run scores with, fixed when it begins.

    code: the files of the job's folder. packages: installed ones that count, by name, with their content. left_out:
    what lies in the folder and does not score, with the ignore file or the other job's file that says so.
    """

    code: Snapshot = NOTHING
    model: Snapshot = NOTHING
    packages: Mapping[str, str] = field(default_factory=dict)
    left_out: Mapping[str, str] = field(default_factory=dict)


NO_CODE = ScoringSet()


@dataclass(frozen=True)
class Identity:
    """What scores every shard of a plan, in the form that is kept beside it. Files by name, with their SHA-256."""

    job: dict[str, Any]
    columns: list[Any]
    kept: list[Any]
    model: dict[str, str]
    code: dict[str, str]
    packages: dict[str, str]
    model_digest: str
    code_digest: str

    @property
    def fingerprint(self) -> str:
        """SHA-256 of it all, the same wherever folder and model lie."""
        code = [_CODE_VERSION, self.code_digest, self.packages] if self.code or self.packages else ""
        identity = [_SCORING_VERSION, self.job, self.model_digest, code, self.columns, self.kept]
        text = json.dumps(identity, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    def to_bytes(self) -> bytes:
        """As JSON."""
        return json.dumps({**asdict(self), "fingerprint": self.fingerprint}, indent=1).encode()


def fix(storage: Storage, job: Job) -> ScoringSet:
    """Take what scores the job, as it is now. Runs none of the user's code.

    Raises:
        JobError: model or code cannot be found or read; names the key.
    """
    listing = list_code(job)
    code = take("model.uses", storage, [(name, path, listing.sizes[name]) for name, path in listing.files.items()])
    installed = {
        module.partition(".")[0]
        for key, module in job.modules().items()
        if not _is_in_folder(key, module, job, listing)
    }
    counted = installed.union(job.identity.packages, adapter_of(job).fingerprint(job))
    packages = {name: package_content(job, name) for name in sorted(counted)}
    return ScoringSet(code, take_model(storage, job.model.path), packages, listing.left_out)


def package_content(job: Job, name: str) -> str:
    """What an installed package that counts is now, in this process.

    Raises:
        JobError: it is not installed; names the key.
    """
    if name in job.identity.packages:
        return of_distribution(name)
    if name in (versions := adapter_of(job).fingerprint(job)):
        return versions[name]
    try:
        return content_of(name, outside=job.folder)
    except LookupError:
        raise JobError(f"model.uses: the package {name!r} is not installed on {socket.gethostname()}") from None


def package_files(job: Job, name: str) -> list[Path]:
    """The files whose content `package_content` counts; none of a package whose version alone does."""
    return files_of_distribution(name) if name in job.identity.packages else files_of(name, outside=job.folder)


def changed_package(job: Job, scoring: ScoringSet) -> str:
    """The first of the installed packages that count which is no longer, in this process, what it was; '' for none."""
    for name, content in scoring.packages.items():
        try:
            same = package_content(job, name) == content
        except (JobError, OSError):  # while it is being installed, a file or all of it is not there
            same = False
        if not same:
            return name
    return ""


def verify_packages(job: Job, scoring: ScoringSet) -> None:
    """Whether the installed packages that count are still what they were: read whole, before a publication.

    Raises:
        RunFailed: one of them is not.
    """
    if name := changed_package(job, scoring):
        raise RunFailed(
            f"the installed package {name!r} changed while the run went on; repeat the command: it scores with what is "
            "there now"
        )


def _is_in_folder(key: str, module: str, job: Job, listing: Listing) -> bool:
    """Whether a module that the job names lies in its folder; else it is an installed package's.

    Raises:
        JobError: it is neither, or is no Python; names the key.
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
            raise JobError(f"{said}: {name} is left out ({why}); take it from there, or name the code in model.code")
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
    """The identity under which results are kept.

    schema: all columns of the input. Where the job does not list its features they follow from it, and with them
    what the model sees.

    Raises:
        JobError: a feature that the job names is not in the schema.
    """
    types: dict[str, list[str]] = {}
    for column in schema:
        types.setdefault(column.name, []).append(str(column.type))
    return Identity(
        job=job.scoring_keys(),
        columns=[[name, types[name]] for name in input_columns(job, schema)],
        kept=sorted([name, types.get(name)] for name in {*job.carry, *filter(None, [job.label])}),
        model=names(scoring.model.files),
        code=names(scoring.code.files),
        packages=dict(scoring.packages),
        model_digest=scoring.model.digest,
        code_digest=scoring.code.digest,
    )


def described(job: Job, scoring: ScoringSet) -> list[str]:
    """What identity is made of, a line each, for people: what counts, and what lies there and does not."""
    lines = []
    if job.modules():
        lines.append(f"code: {_listed([file.name for file in scoring.code.files])}")
    if scoring.model.files:
        lines.append(f"model.path: {_listed([file.name or str(job.model.path) for file in scoring.model.files])}")
    lines += [f"package {name}" for name in scoring.packages]
    if job.model.version is not None:
        lines.append(f"model.version: {job.model.version}")
    if scoring.left_out:
        left = [f"{name}: {why.removeprefix(f'{job.folder}/')}" for name, why in scoring.left_out.items()]
        lines.append(f"left out, and so not there when it scores: {summed(left)}")
    if secret := [file.name for file in scoring.code.files if _SECRET.search(file.name) and not file.source]:
        lines.append(
            f"{summed(secret)}: kept in {job.output.uri} with the code, for all who read there; a secret that no score "
            "depends on belongs into .rayignore"
        )
    for snapshot in (scoring.code, scoring.model):
        lines += [f"{file.source}: too large to copy, read where it lies and watched" for file in snapshot.linked]
    return lines


def _listed(names: list[str]) -> str:
    return f"{len(names)} {'file' if len(names) == 1 else 'files'} ({summed(names)})"


def read_identity(content: bytes) -> Identity:
    """The inverse of `to_bytes`, for comparing."""
    return known(Identity, json.loads(content))


def differences(before: Identity, now: Identity) -> list[str]:
    """What differs, in words, most telling first; empty when nothing does."""
    found = [
        *_files("", before.code, now.code),
        *_files("model.path", before.model, now.model),
        *(
            f"package {name} changed" if name in before.packages else f"package {name} counts now"
            for name, content in now.packages.items()
            if before.packages.get(name) != content
        ),
        *(f"package {name} counts no more" for name in before.packages if name not in now.packages),
        *_keys(_plain(before.job), _plain(now.job)),
    ]
    if _plain([before.columns, before.kept]) != _plain([now.columns, now.kept]) and not found:
        found.append("the columns of the input changed")
    return found


def _files(key: str, before: Mapping[str, str], now: Mapping[str, str]) -> Iterator[str]:
    prefix = f"{key} " if key else ""
    for name in sorted({*before, *now}):
        if before.get(name) != now.get(name):
            what = "changed" if name in before and name in now else "is new" if name in now else "is gone"
            yield f"{prefix}{name}".strip() + f" {what}"


def _keys(before: dict[str, Any], now: dict[str, Any], prefix: str = "") -> Iterator[str]:
    for key in sorted({*before, *now}):
        old, new = before.get(key), now.get(key)
        inner_old, inner_new = mapping(old), mapping(new)
        if inner_old is not None and inner_new is not None:
            inner = list(_keys(inner_old, inner_new, f"{prefix}{key}."))
            yield from inner or ([f"{prefix}{key} has another order in the job"] if old != new else [])
        elif old != new:
            yield f"{prefix}{key} changed in the job"


def summed(found: list[str]) -> str:
    """The first few of many, for one line."""
    more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    return ", ".join(found[:_SHOWN]) + more


def _plain(value: Any) -> Any:
    """As it comes back from storage: tuples are lists."""
    return json.loads(json.dumps(value))

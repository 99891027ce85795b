"""Lists the files that an input uri names: a file, a folder or a pattern; and says which columns their paths give."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache, partial
from itertools import islice, takewhile
from urllib.parse import unquote

import pyarrow as pa

from nightjar.inference.arrow_types import type_name
from nightjar.inference.errors import JobError, Missing, SchemaMismatch
from nightjar.inference.messages import nearest
from nightjar.inference.storage.protocol import Entry, Storage, is_local, join

_FOLDERS = 64
"""Up to this number of folders, a pattern's folders are listed one by one; beyond it, one listing of all is faster."""

_GLOB = re.compile(r"[*?\[]")
_ESCAPED = re.compile(r"\[([*?\[])\]")
_ANY = re.compile(".*", re.DOTALL)


def matching(storage: Storage, uri: str, look: Callable[[str], object] = lambda _: None) -> Iterator[Entry]:
    """The files that an input uri names, sorted by uri, whatever their format.

    look: called with the name below the uri's folder of everything that is listed, also of what is left out. Hidden
    files, as of `hidden`, are left out. A linked folder is followed, but a file that also matches under its own name,
    or under that of an earlier link, is input once.

    Raises:
        JobError: A file's name is not text. Names `input.uri`.
    """
    base, pattern = _split_glob(uri)
    exact = there(storage, uri)
    if exact is None and pattern is _ANY and base != uri.rstrip("/"):
        exact = there(storage, base)  # a file whose name had to be escaped
    if exact is not None:
        yield _named(exact)
        return

    def takes(name: str) -> bool:
        return not hidden(name) and pattern.fullmatch(name) is not None

    linked = defaultdict[str, list[str]](list)
    real_folder = lru_cache(maxsize=16)(partial(_real_folder, base))
    for entry in _listed(storage, uri, base):
        name = entry.uri[len(base.rstrip("/")) + 1 :]
        look(name)
        if not takes(name):
            continue
        folder, _, file = name.rpartition("/")
        if folder and is_local(base) and (own := real_folder(folder)) != folder:
            names = linked[own]  # one name for each link, not for each file: there may be millions
            if folder not in names:
                names.append(folder)
            others = (own, *names[: names.index(folder)])
            if any(takes(join(other, file).removeprefix("./")) for other in others):
                continue
        yield _named(entry)


def hidden(name: str) -> bool:
    """Whether its file or a folder has a name that begins with `.` or `_`; but, as in Spark, no folder `_key=value`."""
    *folders, file = name.split("/")
    return file.startswith((".", "_")) or any(
        each.startswith(".") or (each.startswith("_") and "=" not in each) for each in folders
    )


def _real_folder(base: str, folder: str) -> str:
    """Where a folder below `base` really lies, from there; it may begin with `..`."""
    return os.path.relpath(os.path.realpath(join(base, folder)), os.path.realpath(base))


def _listed(storage: Storage, uri: str, base: str) -> Iterator[Entry]:
    """A sorted listing that contains every match of the pattern, without listing all nights of a bucket for one night.

    A local disk is walked as a whole, and follows links in its own way.
    """
    folders = [base]
    for step in _folder_steps(uri) if not is_local(uri) else ():
        matches = re.compile(_translate(step), re.DOTALL).fullmatch
        named = (
            join(folder, name)
            for folder in folders
            for name in (filter(matches, storage.subfolders(folder)) if _is_glob(step) else [_unescaped(step)])
        )
        narrowed = list(islice(named, _FOLDERS + 1))
        if len(narrowed) > _FOLDERS:
            break
        folders = narrowed
    for folder in sorted(folders, key=lambda each: each + "/"):
        yield from storage.list(folder)


def _folder_steps(uri: str) -> list[str]:
    """The parts of a pattern that name one folder each, beginning with the first part that has a wildcard."""
    parts = uri.partition("://")[2].rstrip("/").split("/")
    steps = parts[_literal(parts) :] if uri.endswith("/") else parts[_literal(parts) : -1]
    return list(takewhile(lambda part: "**" not in part, steps))


def _literal(parts: list[str]) -> int:
    return next((i for i, part in enumerate(parts) if _is_glob(part)), len(parts))


def _is_glob(part: str) -> bool:
    return _GLOB.search(_ESCAPED.sub("", part)) is not None


def _unescaped(path: str) -> str:
    return _ESCAPED.sub(r"\g<1>", path)


def _named(entry: Entry) -> Entry:
    """Return the entry if its name is text, because outputs and reports must be able to name the file."""
    try:
        entry.uri.encode()
    except UnicodeEncodeError:
        raise JobError(f"input.uri: the name of {os.fsencode(entry.uri)!r} is not UTF-8; rename the file") from None
    return entry


def takes_in(uri: str, file: str) -> bool:
    """Whether an input uri would match a file at this location."""
    base, pattern = _split_glob(uri)
    folder = base.rstrip("/") + "/"
    below = file.startswith(folder) and pattern.fullmatch(file.removeprefix(folder)) is not None
    return below or file == uri


def input_folder(uri: str) -> str:
    """The folder (or file) that an input uri names, without its pattern."""
    return _split_glob(uri)[0]


def there(storage: Storage, uri: str) -> Entry | None:
    """The file of this name; None if there is none."""
    if uri.endswith("/"):
        return None
    try:
        return storage.stat(uri)
    except Missing:
        return None


@lru_cache(maxsize=256)
def _split_glob(uri: str) -> tuple[str, re.Pattern[str]]:
    """The folder to list, and the pattern for names below it. A pattern that ends with a slash matches folders."""
    scheme, _, path = ("", "", uri) if is_local(uri) else uri.partition("://")
    parts = path.rstrip("/").split("/")
    depth = _literal(parts)
    base = _unescaped("/".join(parts[:depth]))
    base = f"{scheme}://{base}" if scheme else base or "/"
    rest = "/".join(parts[depth:])
    if not rest:
        return base, _ANY
    try:
        # A name may contain a newline.
        return base, re.compile(f"{_translate(rest)}{'/.*' if path.endswith('/') else ''}", re.DOTALL)
    except re.error as error:
        raise JobError(f"input.uri: {uri!r} is not a valid pattern: {error}") from None


def _translate(glob: str) -> str:
    """A glob over whole paths as a regular expression: `*` stays in one folder, `**` crosses them."""
    out = ""
    for token in re.split(r"(\*\*/|\*\*|\*|\?|\[[^\]]+\])", glob):
        out += {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}.get(token) or (
            _character(token[1:-1]) if token.startswith("[") else re.escape(token)
        )
    return out


def _character(choice: str) -> str:
    """`a-c` or `!a-c`, as between a glob's brackets."""
    negated = choice.startswith("!")
    inside = re.escape(choice[negated:]).replace("\\-", "-")
    return f"[{'^/' if negated else ''}{inside}]"


# ---- columns from paths: of `…/country=de/year=2026/x.parquet` the columns `country` and `year` -------------
# Only the keys of `input.partitions` become columns, with the types that it declares: a type that is inferred from the
# folders of tonight may be wrong tomorrow.

_NULL = "__HIVE_DEFAULT_PARTITION__"
"""How Hive and Spark write that the value is missing."""


def folders(uri: str) -> dict[str, list[str]]:
    """The `key=value` folders in a path: key → its values, the outermost first, as they are written."""
    found: dict[str, list[str]] = {}
    for part in uri.split("/")[:-1]:
        key, equals, value = part.partition("=")
        if key and equals:
            found.setdefault(unquote(key), []).append(value)
    return found


def values_of(uri: str, declared: Mapping[str, pa.DataType]) -> dict[str, pa.Scalar]:
    """The values that a file's path gives to the declared columns.

    Raises:
        SchemaMismatch: A key is not in the path, is there with two values, or its value is not of its type.
    """
    if not declared:
        return {}
    there = folders(uri)
    return {key: _value(uri, key, there, kind) for key, kind in declared.items()}


def _value(uri: str, key: str, there: Mapping[str, list[str]], kind: pa.DataType) -> pa.Scalar:
    written = sorted({*there.get(key, ())})
    if not written:
        raise SchemaMismatch(
            f"{uri}: the path has no folder {f'{key}=…'!r}, and input.partitions declares {key}{nearest(key, there)}"
        )
    if len(written) > 1:
        both = " and ".join(f"{key}={value}" for value in written[:2])
        raise SchemaMismatch(f"{uri}: the path has {both}; only one of them can be the column {key!r}")
    (value,) = written
    if value == _NULL:
        return pa.scalar(None, kind)
    try:
        return pa.scalar(unquote(value, errors="strict"), pa.string()).cast(kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, UnicodeDecodeError):
        raise SchemaMismatch(
            f"{uri}: the folder {f'{key}={value}'!r} has no value of the type {type_name(kind)}, which "
            f"input.partitions declares for {key}"
        ) from None

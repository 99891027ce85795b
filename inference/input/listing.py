"""Input uri → the files it names: folders, and the patterns over them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from itertools import islice, takewhile

from nightjar.inference.errors import JobError, Missing
from nightjar.inference.storage.protocol import (
    Entry,
    Storage,
    is_local,
    join,
)

_FOLDERS = 64
"""A pattern's folders are listed one by one up to so many; where there are more, all at once is quicker."""

_GLOB = re.compile(r"[*?\[]")
_ESCAPED = re.compile(r"\[([*?\[])\]")
_ANY = re.compile(".*", re.DOTALL)


def matching(storage: Storage, uri: str) -> Iterator[Entry]:
    """The files that an input uri names, sorted by uri, whatever their format.

    Hidden ones (a name starting with `.` or `_`) are left out. A linked folder is followed, unless it leads to files
    that match under their own names, too: rows count once.

    Raises:
        JobError: a name that is no text; names `input.uri`.
    """
    base, pattern = _split_glob(uri)
    exact = _stat(storage, uri)
    if exact is None and pattern is _ANY and base != uri.rstrip("/"):
        exact = _stat(storage, base)  # a file whose name had to be escaped
    if exact is not None:
        yield _named(exact)
        return
    links = _Links(base)
    for entry in _listed(storage, uri, base):
        name = entry.uri[len(base.rstrip("/")) + 1 :]
        if hidden(name) or not pattern.fullmatch(name):
            continue
        own = links.own_name(name)
        if own == name or hidden(own) or not pattern.fullmatch(own):
            yield _named(entry)


def hidden(name: str) -> bool:
    """Whether a name below the input is no input: it, or a folder in it, begins with `.` or `_`."""
    return any(part.startswith((".", "_")) for part in name.split("/"))


class _Links:
    """Which files below a folder are reached through a link to another folder below it, and their names there."""

    def __init__(self, base: str) -> None:
        self._base = base
        self._real = os.path.realpath(base) if is_local(base) else ""
        self._folder, self._own = "", ""

    def own_name(self, name: str) -> str:
        """A file's name where it lies, if that is below the folder, else as given. Names come sorted."""
        folder, _, file = name.rpartition("/")
        if not self._real or not folder:
            return name
        if folder != self._folder:
            real = os.path.realpath(join(self._base, folder))
            below = os.path.relpath(real, self._real)
            self._folder, self._own = folder, folder if below.startswith("..") else below
        return file if self._own == "." else join(self._own, file)


def _listed(storage: Storage, uri: str, base: str) -> Iterator[Entry]:
    """All that the pattern can match, and more, sorted: a bucket of all nights is not listed for one of them.

    A local disk is walked anyway, and follows links in its own way.
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
    """The parts of a pattern that name one folder each, from the first with a wildcard on."""
    parts = uri.partition("://")[2].rstrip("/").split("/")
    steps = parts[_literal(parts) :] if uri.endswith("/") else parts[_literal(parts) : -1]
    return list(takewhile(lambda part: "**" not in part, steps))


def _literal(parts: list[str]) -> int:
    """How many parts of a path stand before the first one with a wildcard."""
    return next((i for i, part in enumerate(parts) if _is_glob(part)), len(parts))


def _is_glob(part: str) -> bool:
    return _GLOB.search(_ESCAPED.sub("", part)) is not None


def _unescaped(path: str) -> str:
    return _ESCAPED.sub(r"\g<1>", path)


def _named(entry: Entry) -> Entry:
    """The entry, if its name is text: only then can outputs and reports name it."""
    try:
        entry.uri.encode()
    except UnicodeEncodeError:
        raise JobError(f"input.uri: the name of {os.fsencode(entry.uri)!r} is not UTF-8; rename the file") from None
    return entry


def takes_in(uri: str, file: str) -> bool:
    """Whether an input uri would take in a file at that place."""
    base, pattern = _split_glob(uri)
    folder = base.rstrip("/") + "/"
    below = file.startswith(folder) and pattern.fullmatch(file.removeprefix(folder)) is not None
    return below or file == uri


def input_folder(uri: str) -> str:
    """The folder (or file) an input uri names, without its pattern."""
    return _split_glob(uri)[0]


def _stat(storage: Storage, uri: str) -> Entry | None:
    if uri.endswith("/"):
        return None
    try:
        return storage.stat(uri)
    except Missing:
        return None


def _split_glob(uri: str) -> tuple[str, re.Pattern[str]]:
    """The folder to list, and the pattern of names below it; a pattern with a slash at its end names folders."""
    scheme, _, path = ("", "", uri) if is_local(uri) else uri.partition("://")
    parts = path.rstrip("/").split("/")
    depth = _literal(parts)
    base = _unescaped("/".join(parts[:depth]))
    base = f"{scheme}://{base}" if scheme else base or "/"
    rest = "/".join(parts[depth:])
    if not rest:
        return base, _ANY
    try:
        # A name may hold a newline.
        return base, re.compile(f"{_translate(rest)}{'/.*' if path.endswith('/') else ''}", re.DOTALL)
    except re.error as error:
        raise JobError(f"input.uri: {uri!r} is no pattern: {error}") from None


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

"""Control files: small files that one command creates, and others read. If one cannot be read, the error names it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import TypeVar

from nightjar.inference.errors import Damaged
from nightjar.inference.storage.protocol import Storage

T = TypeVar("T")


def read_control(storage: Storage, uri: str, parse: Callable[[bytes], T], what: str, remedy: str) -> T:
    """What a control file says. what: its kind, as "a publication". remedy: says what a person can do without it.

    Raises:
        Missing: It does not exist.
        Damaged: `parse` cannot read it.
    """
    raw = storage.read(uri)
    try:
        return parse(raw)
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise Damaged(
            f"{uri}: not {what} that this version can read; it was damaged, or a newer version wrote it: {remedy}"
        ) from error


def numbered(storage: Storage, folder: str, ending: str, after: str = "") -> Iterator[int]:
    """The numbers of the files in a folder that are named by a number, as `00000042.json`; others there are ignored.

    after: as in `Storage.list`.
    """
    named = re.compile(rf"(\d{{8,}}){re.escape(ending)}")
    for entry in storage.list(folder, after=after):
        if found := named.fullmatch(entry.uri[len(folder) :].lstrip("/")):
            yield int(found[1])
